#include "launcher/schedulers/step_daemon.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/io/read_file.h"

namespace muster::launcher {
namespace {

constexpr int kMaxAncestors = 64;

// A line "Name:\tvalue" of /proc/PID/status; empty if there is none.
std::string FieldOf(pid_t pid, const std::string& name) {
  const std::string beginning = absl::StrCat(name, ":\t");
  const std::string status = TextOf(absl::StrCat("/proc/", pid, "/status"));
  for (absl::string_view line : absl::StrSplit(status, '\n')) {
    if (absl::ConsumePrefix(&line, beginning)) return std::string(line);
  }
  return "";
}

// The first namespace of processes, in which all of a machine are. Source: Linux,
// include/linux/proc_ns.h, PROC_PID_INIT_INO; user space relies on it.
constexpr char kAllProcesses[] = "pid:[4026531836]";

bool SeesAllProcesses() {
  char space[64] = {};
  return readlink("/proc/self/ns/pid", space, sizeof(space) - 1) > 0 &&
         absl::string_view(space) == kAllProcesses && !FieldOf(1, "Name").empty();
}

std::string TitleOf(pid_t pid) { return TextOf(absl::StrCat("/proc/", pid, "/cmdline")).c_str(); }

}  // namespace

bool MayBeDaemonOf(int64_t job, int64_t step, const std::string& title) {
  const std::string own = absl::StrCat("slurmstepd: [", job, ".", step);
  if (!absl::StrContains(title, ": [")) return !absl::StrContains(title, "infinity");
  return absl::StartsWith(own, title) || title == absl::StrCat(own, "]") ||
         absl::StartsWith(title, absl::StrCat(own, "+"));
}

std::optional<bool> IsStepAlive(int64_t job, int64_t step) {
  if (OpenStepDaemon()) return true;
  if (!SeesAllProcesses()) return std::nullopt;
  for (const std::string& name : NamesIn("/proc")) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(name, &pid) || FieldOf(pid, "Name") != "slurmstepd") continue;
    if (MayBeDaemonOf(job, step, TitleOf(pid))) return true;
  }
  return false;
}

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
