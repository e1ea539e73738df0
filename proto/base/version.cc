#include "proto/base/version.h"

#include "absl/strings/str_cat.h"

namespace muster {

extern const char kBuiltCommit[];  // by deploy/write_commit.cmake; empty: it is none

absl::string_view Version() { return MUSTER_VERSION; }

std::string BuildDetails() {
  const absl::string_view commit = kBuiltCommit;
  return absl::StrCat(commit.empty() ? "built from a working tree" : "built from commit ", commit,
                      " by " MUSTER_COMPILER "\nwith " MUSTER_LIBRARIES "\n");
}

}  // namespace muster
