#include "tests/support/process_table.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tests/support/files.h"

namespace muster::testing {
namespace {

std::vector<pid_t> AllProcesses() {
  std::vector<pid_t> pids;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    pid_t pid = 0;
    if (absl::SimpleAtoi(entry.path().filename().string(), &pid)) pids.push_back(pid);
  }
  std::sort(pids.begin(), pids.end());
  return pids;
}

std::string ProcFile(pid_t pid, const char* name) {
  return ReadFile(absl::StrCat("/proc/", pid, "/", name));
}

// 0 if the process is gone. The name in the second field may hold anything, so fields count from
// its last bracket.
pid_t ParentOf(pid_t pid) {
  const std::string stat = ProcFile(pid, "stat");
  const size_t bracket = stat.rfind(')');
  if (bracket == std::string::npos) return 0;
  const std::vector<std::string> fields =
      absl::StrSplit(stat.substr(bracket + 1), ' ', absl::SkipEmpty());
  pid_t parent = 0;
  return fields.size() > 1 && absl::SimpleAtoi(fields[1], &parent) ? parent : 0;
}

template <typename Predicate>
std::vector<pid_t> ProcessesThat(Predicate predicate) {
  std::vector<pid_t> found;
  for (pid_t pid : AllProcesses()) {
    if (predicate(pid)) found.push_back(pid);
  }
  return found;
}

}  // namespace

std::vector<pid_t> ProcessesWith(const std::string& assignment) {
  return ProcessesThat([&](pid_t pid) {
    const std::string environment = ProcFile(pid, "environ");  // empty for a zombie
    for (absl::string_view variable : absl::StrSplit(environment, '\0')) {
      if (variable == assignment) return true;
    }
    return false;
  });
}

std::vector<pid_t> ChildrenOf(pid_t parent) {
  return ProcessesThat([&](pid_t pid) { return ParentOf(pid) == parent; });
}

std::string NameOf(pid_t pid) {
  return std::string(absl::StripSuffix(ProcFile(pid, "comm"), "\n"));
}

std::string Describe(const std::vector<pid_t>& pids) {
  std::string text;
  for (pid_t pid : pids) {
    const std::string command = ProcFile(pid, "cmdline");
    absl::StrAppend(&text, pid, " ", NameOf(pid), ": ",
                    absl::StrReplaceAll(command, {{std::string(1, '\0'), " "}}), "\n");
  }
  return text;
}

}  // namespace muster::testing
