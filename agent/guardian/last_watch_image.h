// The program of last_watch.cc, which the build puts into this one.
#pragma once

#include "absl/strings/string_view.h"

namespace muster::agent {

absl::string_view LastWatchImage();

}  // namespace muster::agent
