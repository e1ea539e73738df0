#include "agent/machine/leftovers.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/machine/descendants.h"
#include "agent/machine/pidfd.h"
#include "agent/process/runtime_directory.h"
#include "proto/io/read_file.h"

namespace muster::agent {
namespace {

constexpr char kLockName[] = "/in_use";
// A process may fork while the list is read.
constexpr int kLooks = 5;

// Whether the process was started in the job of `directory`: every worker and what it starts
// carries the path of the agent's socket.
bool IsOfJob(const std::string& pid, const std::string& directory) {
  const std::string environment = TextOf(absl::StrCat("/proc/", pid, "/environ"));
  return absl::StrContains(environment, absl::StrCat("=", directory, "/"));
}

// But resource trackers: those end by themselves once the others are gone.
std::vector<int> KillProcessesOf(const std::string& directory) {
  std::vector<int> killed;
  for (int look = 0; look < kLooks; ++look) {
    bool found = false;
    for (const std::string& name : NamesIn("/proc")) {
      int pid;
      if (!absl::SimpleAtoi(name, &pid) || pid == ::getpid()) continue;
      const UniqueFd pidfd = OpenPidfd(pid);  // before it is judged: then it is the judged one
      if (!pidfd || !IsOfJob(name, directory) || IsResourceTracker(pid)) continue;
      if (!SendSignal(pidfd, SIGKILL)) continue;
      found = true;
      if (!absl::c_linear_search(killed, pid)) killed.push_back(pid);
    }
    if (!found) break;
  }
  return killed;
}

// The lock, if no living agent has it.
UniqueFd TakeOver(const std::string& directory) {
  UniqueFd lock(
      ::open(absl::StrCat(directory, kLockName).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) lock.reset();
  return lock;
}

}  // namespace

absl::StatusOr<UniqueFd> LockRuntimeDirectory(const std::string& runtime_directory) {
  // Locked before it has its name, so that nobody finds it unlocked.
  const std::string path = absl::StrCat(runtime_directory, kLockName);
  const std::string temporary = absl::StrCat(path, ".new");
  UniqueFd lock(::open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!lock || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0 ||
      ::rename(temporary.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot lock ", path, ": ", std::strerror(errno)));
  }
  return lock;
}

std::vector<std::string> EndLeftovers(const std::vector<std::string>& places) {
  std::vector<std::string> ended;
  for (const std::string& place : places) {
    const size_t slash = place.rfind('/');
    const std::string parent = place.substr(0, slash), prefix = place.substr(slash + 1);
    for (const std::string& name : NamesIn(parent)) {
      if (!absl::StartsWith(name, prefix)) continue;
      const std::string directory = absl::StrCat(parent, "/", name);
      if (!CheckPrivateDirectory(directory).ok()) continue;
      const UniqueFd lock = TakeOver(directory);
      if (!lock) continue;
      const std::vector<int> killed = KillProcessesOf(directory);
      RemoveOwnedPath(directory);
      if (killed.empty()) continue;
      ended.push_back(absl::StrCat(killed.size(),
                                   killed.size() == 1 ? " process (pid " : " processes (pids ",
                                   absl::StrJoin(killed, ", "), ") of the job in ", directory));
    }
  }
  return ended;
}

}  // namespace muster::agent
