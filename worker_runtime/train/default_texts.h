// Text that most machines have, for a first run without any data.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace muster::train {

inline constexpr char kDefaultTexts[] = "/usr/share/common-licenses";

// The regular files of `directory` by name. Links are left out: here they are second names of
// others, and each text shall count once.
//
// Errors: kNotFound: there are none (says to give --data).
absl::StatusOr<std::vector<std::string>> DefaultTexts(const std::string& directory = kDefaultTexts);

}  // namespace muster::train
