#include "tests/support/peer_python.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace muster::testing {
namespace {

std::string VariableOr(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

std::string Cache() {
  return VariableOr("XDG_CACHE_HOME", VariableOr("HOME", "/root") + "/.cache") + "/muster";
}

}  // namespace

std::string PeerPython() {
  const std::string given = VariableOr("MUSTER_PEER_PYTHON", "");
  if (!given.empty()) return given;
  std::vector<int> newest;
  std::string python;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(Cache(), error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (!absl::StartsWith(name, "peers-") || !std::filesystem::exists(entry->path() / "complete")) {
      continue;
    }
    std::vector<int> version;
    for (const absl::string_view part : absl::StrSplit(name.substr(name.find('-') + 1), '.')) {
      version.push_back(std::atoi(std::string(part).c_str()));
    }
    if (version <= newest) continue;
    newest = version;
    python = entry->path() / "bin/python";
  }
  return python;
}

std::string PeerPrometheus(const std::string& program) {
  for (const std::string& folder : {std::string("/usr/bin"), Cache() + "/prometheus/usr/bin"}) {
    const std::string path = absl::StrCat(folder, "/", program);
    if (std::filesystem::exists(path)) return path;
  }
  return "";
}

}  // namespace muster::testing
