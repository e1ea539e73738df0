#include "proto/base/version.h"

#include "absl/strings/str_cat.h"

namespace muster {

absl::string_view Version() { return MUSTER_VERSION; }

std::string BuildDetails() {
  constexpr absl::string_view kCommit = MUSTER_COMMIT;
  return absl::StrCat(kCommit.empty() ? "built from a working tree" : "built from commit ", kCommit,
                      " by " MUSTER_COMPILER "\nwith " MUSTER_LIBRARIES "\n");
}

}  // namespace muster
