#include "launcher/schedulers/step_daemon.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace muster::launcher {
namespace {

constexpr int kMaxAncestors = 64;

// A line "Name:\tvalue" of /proc/PID/status; empty if there is none.
std::string FieldOf(pid_t pid, const std::string& name) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(file, line);) {
    if (absl::StartsWith(line, name + ":\t")) return line.substr(name.size() + 2);
  }
  return "";
}

}  // namespace

UniqueFd OpenStepDaemon() {
  pid_t pid = getppid();
  for (int i = 0; i < kMaxAncestors && pid > 1; ++i) {
    if (FieldOf(pid, "Name") == "slurmstepd") {
      return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    }
    if (!absl::SimpleAtoi(FieldOf(pid, "PPid"), &pid)) break;
  }
  return UniqueFd();
}

}  // namespace muster::launcher
