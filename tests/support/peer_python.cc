#include "tests/support/peer_python.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace muster::testing {
namespace {

std::string CacheFolder() {
  const char* cache = getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != 0) return absl::StrCat(cache, "/muster");
  const char* home = getenv("HOME");
  return absl::StrCat(home == nullptr ? "" : home, "/.cache/muster");
}

}  // namespace

std::string PeerPython() {
  std::string newest;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(CacheFolder(), error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string python = absl::StrCat(entry->path().string(), "/bin/python");
    if (!absl::StartsWith(entry->path().filename().string(), "peers-")) continue;
    if (access(python.c_str(), X_OK) == 0) newest = std::max(newest, python);
  }
  return newest;
}

}  // namespace muster::testing
