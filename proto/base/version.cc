#include "proto/base/version.h"

namespace muster {

absl::string_view Version() { return MUSTER_VERSION; }

}  // namespace muster
