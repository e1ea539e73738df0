#include "agent/watch/file_wait.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "agent/machine/descendants.h"
#include "agent/machine/mount_info.h"
#include "agent/watch/process_look.h"
#include "proto/io/read_file.h"
#include "proto/io/unique_fd.h"

namespace muster::agent {
namespace {

constexpr size_t kPathBytesMax = 4096;
// Whoever reads a lot waits for a disk now and then; who waits at the same place after this time,
// and has used none, waits for longer.
constexpr absl::Duration kSameCallFor = absl::Milliseconds(200);

// How a call names its file: by a descriptor, by a path, or by a path and a directory's descriptor.
enum class By { kDescriptor, kPath, kDirectory };

struct Call {
  int64_t number;
  const char* name;
  By by;
};

constexpr Call kCalls[] = {
    {SYS_read, "read", By::kDescriptor},
    {SYS_pread64, "pread", By::kDescriptor},
    {SYS_readv, "readv", By::kDescriptor},
    {SYS_preadv, "preadv", By::kDescriptor},
    {SYS_write, "write", By::kDescriptor},
    {SYS_pwrite64, "pwrite", By::kDescriptor},
    {SYS_writev, "writev", By::kDescriptor},
    {SYS_fsync, "fsync", By::kDescriptor},
    {SYS_fdatasync, "fdatasync", By::kDescriptor},
    {SYS_lseek, "lseek", By::kDescriptor},
    {SYS_ioctl, "ioctl", By::kDescriptor},
    {SYS_fallocate, "fallocate", By::kDescriptor},
    {SYS_ftruncate, "ftruncate", By::kDescriptor},
    {SYS_fstat, "fstat", By::kDescriptor},
    {SYS_getdents64, "getdents", By::kDescriptor},
    {SYS_flock, "flock", By::kDescriptor},
    {SYS_close, "close", By::kDescriptor},
    {SYS_openat, "openat", By::kDirectory},
    {SYS_newfstatat, "stat", By::kDirectory},
    {SYS_statx, "stat", By::kDirectory},
    {SYS_faccessat, "access", By::kDirectory},
    {SYS_faccessat2, "access", By::kDirectory},
    {SYS_readlinkat, "readlink", By::kDirectory},
    {SYS_mkdirat, "mkdir", By::kDirectory},
    {SYS_unlinkat, "unlink", By::kDirectory},
    {SYS_renameat2, "rename", By::kDirectory},
    {SYS_chdir, "chdir", By::kPath},
    {SYS_statfs, "statfs", By::kPath},
    {SYS_execve, "execve", By::kPath},
#ifdef SYS_open
    {SYS_open, "open", By::kPath},
    {SYS_stat, "stat", By::kPath},
    {SYS_lstat, "stat", By::kPath},
    {SYS_access, "access", By::kPath},
    {SYS_readlink, "readlink", By::kPath},
    {SYS_mkdir, "mkdir", By::kPath},
    {SYS_unlink, "unlink", By::kPath},
    {SYS_rename, "rename", By::kPath},
#endif
};

// "nr 0xarg 0xarg …", or a word where it is in none.
struct PresentCall {
  const Call* call = nullptr;
  std::vector<uint64_t> arguments;
};

std::optional<PresentCall> ReadCall(const std::string& directory) {
  const std::string text = TextOf(directory + "/syscall");
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  int64_t number = -1;
  if (!absl::SimpleAtoi(words[0], &number)) return std::nullopt;
  PresentCall present;
  for (const Call& call : kCalls) {
    if (call.number == number) present.call = &call;
  }
  for (size_t i = 1; i < words.size(); ++i) {
    uint64_t argument = 0;
    if (!absl::SimpleHexAtoi(absl::StripAsciiWhitespace(words[i]), &argument)) return std::nullopt;
    present.arguments.push_back(argument);
  }
  constexpr size_t kArguments = 6;
  if (present.call == nullptr || present.arguments.size() < kArguments) return std::nullopt;
  return present;
}

// A link of procfs: the kernel knows where it goes, and asks no file system.
std::string LinkOf(const std::string& path) {
  char buffer[kPathBytesMax];
  const ssize_t size = ::readlink(path.c_str(), buffer, sizeof(buffer));
  return size < 0 ? std::string() : std::string(buffer, static_cast<size_t>(size));
}

// A path in the memory of the process; it may end at the last byte of what can be read.
std::string PathAt(const std::string& directory, uint64_t address) {
  const UniqueFd memory(::open((directory + "/mem").c_str(), O_RDONLY | O_CLOEXEC));
  char buffer[kPathBytesMax];
  const ssize_t size =
      memory ? ::pread(memory.get(), buffer, sizeof(buffer), static_cast<off_t>(address)) : -1;
  if (size <= 0) return "";
  const absl::string_view text(buffer, static_cast<size_t>(size));
  const size_t end = text.find('\0');
  return end == absl::string_view::npos ? std::string() : std::string(text.substr(0, end));
}

std::string FileOf(const std::string& directory, const PresentCall& present) {
  const auto descriptor = [&] {
    return LinkOf(absl::StrCat(directory, "/fd/", static_cast<int>(present.arguments[0])));
  };
  if (present.call->by == By::kDescriptor) return descriptor();
  const bool has_directory = present.call->by == By::kDirectory;
  const std::string path = PathAt(directory, present.arguments[has_directory ? 1 : 0]);
  if (absl::StartsWith(path, "/")) return path;
  const bool is_here = !has_directory || static_cast<int>(present.arguments[0]) == AT_FDCWD;
  const std::string base = is_here ? LinkOf(directory + "/cwd") : descriptor();
  if (base.empty()) return path;
  return path.empty() ? base : absl::StrCat(base == "/" ? "" : base, "/", path);
}

}  // namespace

std::string FileCallOf(pid_t pid, const std::string& proc) {
  const std::string directory = absl::StrCat(proc, "/", pid);
  const std::optional<PresentCall> present = ReadCall(directory);
  if (!present) return "";
  const std::string file = FileOf(directory, *present);
  if (file.empty()) return present->call->name;
  std::string text = absl::StrCat(present->call->name, " of ", file);
  const std::string mounts = TextOf(directory + "/mountinfo");
  if (const std::optional<Mount> mount = MountOf(mounts, file)) {
    absl::StrAppend(&text, " on ", mount->point, " (", mount->type, ")");
  }
  return text;
}

std::string FileWaitOf(pid_t pid) {
  const auto wait_of = [](pid_t each) -> std::optional<ProcessLook> {
    std::optional<ProcessLook> look = LookAtProcess(each, MonoNow());
    if (look && HoldOf(*look, std::nullopt) != hangs::Hold::kDisk) look.reset();
    return look;
  };
  if (wait_of(pid)) return FileCallOf(pid);
  std::vector<std::pair<pid_t, ProcessLook>> below;
  for (const ProcessInfo& process : ListDescendants(pid)) {
    if (const auto look = wait_of(process.pid)) below.emplace_back(process.pid, *look);
  }
  if (below.empty()) return "";
  absl::SleepFor(kSameCallFor);
  for (const auto& [child, before] : below) {
    const std::optional<ProcessLook> look = wait_of(child);
    const bool is_same =
        look && look->wait_channel == before.wait_channel && look->cpu_ticks == before.cpu_ticks;
    const std::string call = is_same ? FileCallOf(child) : "";
    if (!call.empty()) return absl::StrCat(call, " by its process ", child);
  }
  return "";
}

}  // namespace muster::agent
