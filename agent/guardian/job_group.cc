#include "agent/guardian/job_group.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "agent/guardian/last_watch_image.h"
#include "agent/machine/control_group.h"
#include "agent/machine/pidfd.h"
#include "proto/io/read_file.h"

namespace muster::agent {
namespace {

// Inode of the namespace of control groups that the machine began with (PROC_CGROUP_INIT_INO).
constexpr char kInitialNamespace[] = "cgroup:[4026531835]";
// The same values as in last_watch.cc.
constexpr int kAgentDescriptor = 3;
constexpr int kPipeDescriptor = 4;
constexpr int kAboveDescriptor = 5;

bool IsMarkedAsDelegated(const std::string& directory) {
  for (const char* name : {"user.delegate", "trusted.delegate"}) {
    char value = 0;
    if (::getxattr(directory.c_str(), name, &value, 1) == 1 && value == '1') return true;
  }
  return false;
}

// Our group is all that is seen of the hierarchy.
bool IsRootOfAContainer(absl::string_view cgroup) {
  char name[64];
  const ssize_t length = ::readlink("/proc/self/ns/cgroup", name, sizeof(name));
  if (length <= 0 || absl::string_view(name, length) == kInitialNamespace) return false;
  for (const absl::string_view line : absl::StrSplit(cgroup, '\n')) {
    if (line == "0::/") return true;
  }
  return false;
}

bool IsDelegated(const std::string& directory, absl::string_view cgroup) {
  struct stat info {};
  const std::string procs = directory + "/cgroup.procs";
  if (::stat(directory.c_str(), &info) != 0 || ::access(directory.c_str(), W_OK | X_OK) != 0 ||
      ::access(procs.c_str(), W_OK) != 0) {
    return false;
  }
  // It may be another's of that name: what is mounted need not be what we are in.
  const std::string own = absl::StrCat(::getpid());
  bool is_ours = false;
  for (const absl::string_view pid : absl::StrSplit(TextOf(procs), '\n')) is_ours |= pid == own;
  if (!is_ours) return false;
  if (::geteuid() != 0) return info.st_uid == ::geteuid();
  return IsMarkedAsDelegated(directory) || IsRootOfAContainer(cgroup);
}

// The program, in memory; empty if it cannot be made.
UniqueFd MakeImage() {
  UniqueFd image(::memfd_create("muster-last-watch", MFD_CLOEXEC));
  absl::string_view bytes = LastWatchImage();
  while (image && !bytes.empty()) {
    const ssize_t put = ::write(image.get(), bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return UniqueFd();
    bytes.remove_prefix(static_cast<size_t>(put));
  }
  return image;
}

// Above the numbers that the program has its own at.
UniqueFd MoveUp(const UniqueFd& fd) { return UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 16)); }

}  // namespace

std::optional<JobGroup> MakeJobGroup() {
  if (::getpid() == 1) return std::nullopt;  // what we leave behind ends with us
  const std::string cgroup = TextOf("/proc/self/cgroup");
  const auto own = FindControlGroup(cgroup, TextOf("/proc/self/mountinfo"), "");
  if (!own || !IsDelegated(own->directory, cgroup)) return std::nullopt;
  JobGroup group{
      .above = UniqueFd(::open(own->directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)),
      .name = absl::StrCat("muster-", ::getpid(), "-",
                           absl::Hex(std::random_device()(), absl::kZeroPad8))};
  if (!group.above || ::mkdirat(group.above.get(), group.name.c_str(), 0755) != 0) {
    return std::nullopt;
  }
  group.procs.reset(::openat(group.above.get(), absl::StrCat(group.name, "/cgroup.procs").c_str(),
                             O_WRONLY | O_CLOEXEC));
  const std::string kill = absl::StrCat(group.name, "/cgroup.kill");
  if (group.procs && ::faccessat(group.above.get(), kill.c_str(), W_OK, 0) == 0) return group;
  RemoveJobGroup(group);
  return std::nullopt;
}

void RemoveJobGroup(const JobGroup& group) {
  ::unlinkat(group.above.get(), group.name.c_str(), AT_REMOVEDIR);
}

bool LastWatch::Start(const JobGroup& group) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return false;
  UniqueFd read_end(ends[0]);
  guardian_pipe_.reset(ends[1]);
  const UniqueFd image = MakeImage();
  const UniqueFd self = OpenPidfd(::getpid());
  const std::array<UniqueFd, 3> moved = {MoveUp(self), MoveUp(read_end), MoveUp(group.above)};
  if (!image || !moved[0] || !moved[1] || !moved[2]) return false;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, moved[0].get(), kAgentDescriptor);
  posix_spawn_file_actions_adddup2(&actions, moved[1].get(), kPipeDescriptor);
  posix_spawn_file_actions_adddup2(&actions, moved[2].get(), kAboveDescriptor);
  std::string program = "muster-last";
  std::string name = group.name;
  char* const argv[] = {program.data(), name.data(), nullptr};
  char* const environment[] = {nullptr};
  const std::string path = absl::StrCat("/proc/self/fd/", image.get());
  pid_t pid = -1;
  const int error =
      ::posix_spawn(&pid, path.c_str(), &actions, /*attributes=*/nullptr, argv, environment);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return false;
  // It forks, and ends at once: the other is init's.
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void LastWatch::TellGuardian(pid_t guardian) {
  [[maybe_unused]] const ssize_t told = ::write(guardian_pipe_.get(), &guardian, sizeof(guardian));
  guardian_pipe_.reset();
}

}  // namespace muster::agent
