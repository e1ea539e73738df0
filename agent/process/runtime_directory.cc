#include "agent/process/runtime_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
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
constexpr char kSetTmpdir[] = "; set TMPDIR to a directory that can be written";

std::string Words(int error_number) { return std::strerror(error_number); }

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

std::string PrefixIn(absl::string_view place, absl::string_view name) {
  return absl::StrCat(absl::StripSuffix(place, "/"), "/", name);
}

// A full file system may well make a directory, and have no room for a file in it.
absl::Status CheckRoom(absl::string_view flag, const std::string& directory) {
  const std::string path = directory + "/.room";
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) return FailedAt(flag, path, errno);
  const char page[4096] = {};
  const ssize_t written = ::write(file.get(), page, sizeof page);
  const int error_number = written < 0 ? errno : ENOSPC;
  ::unlink(path.c_str());
  if (written == sizeof page) return absl::OkStatus();
  return FailedAt(flag, path, error_number);
}

// Does what MakeUniqueDirectory does, and looks for room for files.
absl::StatusOr<std::string> MakeRoomyDirectory(absl::string_view flag, const std::string& prefix) {
  MUSTER_ASSIGN_OR_RETURN(std::string path, MakeUniqueDirectory(flag, prefix));
  // mkdtemp's 0700 is narrowed by the umask.
  absl::Status usable =
      ::chmod(path.c_str(), 0700) == 0 ? CheckRoom(flag, path) : FailedAt(flag, path, errno);
  if (usable.ok()) return path;
  ::rmdir(path.c_str());
  return usable;
}

// One place for the runtime directory; `prefix` is completed by six random characters.
absl::StatusOr<std::string> TryPlace(const std::string& prefix,
                                     const RuntimeDirectoryOptions& options) {
  const size_t length = prefix.size() + 6 + 1 + options.longest_name.size();
  if (length > kSocketPathBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(prefix, "*: a socket's path would have ", length,
                                                   " bytes, more than ", kSocketPathBytesMax));
  }
  MUSTER_ASSIGN_OR_RETURN(std::string path, MakeRoomyDirectory("runtime directory", prefix));
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

// A directory for logs that nobody gave a place.
absl::StatusOr<MadeDirectory> MakeTemporaryBase(const std::vector<std::string>& places) {
  constexpr char kWhat[] = "directory for logs";
  std::vector<std::string> refusals;
  for (const std::string& place : places) {
    absl::StatusOr<std::string> path = MakeRoomyDirectory(kWhat, PrefixIn(place, "muster_"));
    if (!path.ok()) {
      refusals.emplace_back(path.status().message());
      continue;
    }
    std::string note;
    if (!refusals.empty()) {
      note = absl::StrCat(refusals.front(), "; this job's own files go to ", place,
                          ", workers keep their TMPDIR");
    }
    return MadeDirectory{*std::move(path), std::move(note)};
  }
  return absl::InvalidArgumentError(absl::StrCat(absl::StrJoin(refusals, "; "), kSetTmpdir));
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

std::vector<std::string> TemporaryPlaces(const std::string& tmpdir) {
  std::vector<std::string> places = {"/tmp", "/var/tmp"};
  if (tmpdir.empty()) return places;
  places.erase(std::remove(places.begin(), places.end(), absl::StripSuffix(tmpdir, "/")),
               places.end());
  places.insert(places.begin(), tmpdir);
  return places;
}

std::vector<std::string> RuntimeDirectoryPrefixes(const RuntimeDirectoryOptions& options) {
  std::vector<std::string> prefixes;
  if (absl::StartsWith(options.xdg_runtime_dir, "/")) {
    prefixes.push_back(PrefixIn(options.xdg_runtime_dir, "muster/"));
  }
  for (const std::string& place : options.temporary_places) {
    prefixes.push_back(PrefixIn(place, "muster-"));
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
  for (const std::string& place : options.temporary_places) {
    auto path = TryPlace(PrefixIn(place, "muster-"), options);
    if (path.ok()) return path;
    refusals.emplace_back(path.status().message());
  }
  return absl::InvalidArgumentError(absl::StrCat("no directory for the job's sockets can be made: ",
                                                 absl::StrJoin(refusals, "; "), kSetTmpdir));
}

absl::StatusOr<MadeDirectory> MakeRunDirectory(const RunDirectoryOptions& options) {
  MadeDirectory made{options.log_dir, ""};
  if (options.log_dir.empty()) {
    MUSTER_ASSIGN_OR_RETURN(made, MakeTemporaryBase(options.temporary_places));
  } else {
    MUSTER_RETURN_IF_ERROR(MakeParents(options.log_dir));
  }
  const std::string prefix = PrefixIn(made.path, ReplaceUnusual(options.run_id) + "_");
  MUSTER_ASSIGN_OR_RETURN(made.path, MakeUniqueDirectory("--log_dir", prefix));
  return made;
}

void RemoveOwnedPath(const std::string& path) {
  struct stat info;
  if (::lstat(path.c_str(), &info) != 0) return;
  OwnedTree(info.st_dev).RemoveEntry(AT_FDCWD, path.c_str(), 0);
}

}  // namespace muster::agent
