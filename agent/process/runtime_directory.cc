#include "agent/process/runtime_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "proto/base/status_macros.h"
#include "proto/io/unique_fd.h"

namespace muster::agent {
namespace {

constexpr size_t kRunIdBytesMax = 200;
constexpr int kRemovalDepthMax = 32;

std::string Words(int error_number) { return std::strerror(error_number); }

std::string OrTmp(const std::string& directory) { return directory.empty() ? "/tmp" : directory; }

absl::StatusCode CodeForErrno(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
    case EMLINK:
      return absl::StatusCode::kResourceExhausted;
    default:
      return absl::StatusCode::kInvalidArgument;
  }
}

absl::Status FailedAt(absl::string_view flag, absl::string_view path, int error_number) {
  return absl::Status(CodeForErrno(error_number),
                      absl::StrCat(flag, ": cannot create ", path, ": ", Words(error_number)));
}

// `prefix` and six random characters.
absl::StatusOr<std::string> MakeUniqueDirectory(absl::string_view flag, const std::string& prefix) {
  std::string path = absl::StrCat(prefix, "XXXXXX");
  if (::mkdtemp(path.data()) == nullptr) return FailedAt(flag, path, errno);
  return path;
}

// One place for the runtime directory; `prefix` is completed by six random characters.
absl::StatusOr<std::string> TryPlace(const std::string& prefix,
                                     const RuntimeDirectoryOptions& options) {
  const size_t length = prefix.size() + 6 + 1 + options.longest_name.size();
  if (length > kSocketPathBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(prefix, "*: a socket's path would have ", length,
                                                   " bytes, more than ", kSocketPathBytesMax));
  }
  MUSTER_ASSIGN_OR_RETURN(std::string path, MakeUniqueDirectory("runtime directory", prefix));
  // mkdtemp's 0700 is narrowed by the umask.
  if (::chmod(path.c_str(), 0700) != 0) return FailedAt("runtime directory", path, errno);
  MUSTER_RETURN_IF_ERROR(CheckPrivateDirectory(path));
  return path;
}

absl::StatusOr<std::string> TryXdgRuntimeDir(const RuntimeDirectoryOptions& options) {
  if (!absl::StartsWith(options.xdg_runtime_dir, "/")) {
    return absl::FailedPreconditionError(
        absl::StrCat("XDG_RUNTIME_DIR=", options.xdg_runtime_dir, " is not an absolute path"));
  }
  MUSTER_RETURN_IF_ERROR(CheckPrivateDirectory(options.xdg_runtime_dir));
  const std::string shared =
      absl::StrCat(absl::StripSuffix(options.xdg_runtime_dir, "/"), "/muster");
  if (::mkdir(shared.c_str(), 0700) != 0 && errno != EEXIST)
    return FailedAt("runtime directory", shared, errno);
  MUSTER_RETURN_IF_ERROR(CheckPrivateDirectory(shared));
  return TryPlace(absl::StrCat(shared, "/"), options);
}

std::string ReplaceUnusual(const std::string& run_id) {
  std::string name = run_id.substr(0, kRunIdBytesMax);
  for (char& c : name) {
    const bool usual =
        absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
    if (!usual) c = '_';
  }
  return name;
}

// mkdir -p. The message names the part of the path that stands in the way.
absl::Status MakeParents(const std::string& directory) {
  for (size_t end = 1; end <= directory.size(); ++end) {
    if (end < directory.size() && directory[end] != '/') continue;
    const std::string part = directory.substr(0, end);
    if (::mkdir(part.c_str(), 0777) == 0) continue;
    const int mkdir_error = errno;
    struct stat info;
    if (::stat(part.c_str(), &info) != 0) return FailedAt("--log_dir", part, mkdir_error);
    if (S_ISDIR(info.st_mode)) continue;
    return absl::InvalidArgumentError(
        part == directory
            ? absl::StrCat("--log_dir ", directory, " is a file, not a directory")
            : absl::StrCat("--log_dir ", directory, ": ", part, " is a file, not a directory"));
  }
  return absl::OkStatus();
}

class OwnedTree {
 public:
  explicit OwnedTree(dev_t device) : device_(device) {}

  void RemoveEntry(int parent, const char* name, int depth) {
    struct stat info;
    if (::fstatat(parent, name, &info, AT_SYMLINK_NOFOLLOW) != 0) return;
    if (info.st_uid != ::geteuid() || info.st_dev != device_) return;
    if (!S_ISDIR(info.st_mode)) {
      ::unlinkat(parent, name, 0);
      return;
    }
    if (depth < kRemovalDepthMax) RemoveContents(parent, name, depth);
    ::unlinkat(parent, name, AT_REMOVEDIR);
  }

 private:
  // Through descriptors, so that a directory that is swapped for a link meanwhile leads nowhere.
  void RemoveContents(int parent, const char* name, int depth) {
    UniqueFd fd(::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat info;
    if (!fd || ::fstat(fd.get(), &info) != 0 || info.st_uid != ::geteuid() ||
        info.st_dev != device_)
      return;
    std::unique_ptr<DIR, int (*)(DIR*)> dir(::fdopendir(fd.get()), ::closedir);
    if (dir == nullptr) return;
    fd.release();
    std::vector<std::string> names;
    while (const dirent* entry = ::readdir(dir.get())) names.push_back(entry->d_name);
    for (const std::string& entry : names) {
      if (entry != "." && entry != "..") RemoveEntry(::dirfd(dir.get()), entry.c_str(), depth + 1);
    }
  }

  const dev_t device_;
};

}  // namespace

absl::Status CheckPrivateDirectory(const std::string& path) {
  struct stat info;
  if (::lstat(path.c_str(), &info) != 0)
    return absl::FailedPreconditionError(absl::StrCat(path, ": ", Words(errno)));
  if (!S_ISDIR(info.st_mode))
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a directory"));
  if (info.st_uid != ::geteuid()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " belongs to uid ", info.st_uid, ", not to ", ::geteuid()));
  }
  if ((info.st_mode & 077) != 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s is open to others (mode %04o)", path, info.st_mode & 07777));
  }
  return absl::OkStatus();
}

std::vector<std::string> RuntimeDirectoryPrefixes(const RuntimeDirectoryOptions& options) {
  std::vector<std::string> prefixes;
  if (absl::StartsWith(options.xdg_runtime_dir, "/")) {
    prefixes.push_back(absl::StrCat(absl::StripSuffix(options.xdg_runtime_dir, "/"), "/muster/"));
  }
  for (const std::string& place : {OrTmp(options.temporary_dir), options.last_resort}) {
    const std::string prefix = absl::StrCat(absl::StripSuffix(place, "/"), "/muster-");
    if (prefixes.empty() || prefixes.back() != prefix) prefixes.push_back(prefix);
  }
  return prefixes;
}

absl::StatusOr<std::string> MakeRuntimeDirectory(const RuntimeDirectoryOptions& options) {
  std::vector<std::string> refusals;
  if (!options.xdg_runtime_dir.empty()) {
    auto path = TryXdgRuntimeDir(options);
    if (path.ok()) return path;
    refusals.emplace_back(path.status().message());
  }
  for (const std::string& place : {OrTmp(options.temporary_dir), options.last_resort}) {
    auto path = TryPlace(absl::StrCat(absl::StripSuffix(place, "/"), "/muster-"), options);
    if (path.ok()) return path;
    refusals.emplace_back(path.status().message());
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "no directory for the job's sockets can be made: ", absl::StrJoin(refusals, "; "),
      "; set TMPDIR to one that can be written"));
}

absl::StatusOr<std::string> MakeRunDirectory(const RunDirectoryOptions& options) {
  std::string base = options.log_dir;
  if (base.empty()) {
    const std::string prefix =
        absl::StrCat(absl::StripSuffix(OrTmp(options.temporary_dir), "/"), "/muster_");
    MUSTER_ASSIGN_OR_RETURN(base, MakeUniqueDirectory("directory for logs", prefix));
  } else {
    MUSTER_RETURN_IF_ERROR(MakeParents(base));
  }
  const std::string prefix =
      absl::StrCat(absl::StripSuffix(base, "/"), "/", ReplaceUnusual(options.run_id), "_");
  return MakeUniqueDirectory("--log_dir", prefix);
}

void RemoveOwnedPath(const std::string& path) {
  struct stat info;
  if (::lstat(path.c_str(), &info) != 0) return;
  OwnedTree(info.st_dev).RemoveEntry(AT_FDCWD, path.c_str(), 0);
}

}  // namespace muster::agent
