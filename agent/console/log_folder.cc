#include "agent/console/log_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/base/status_macros.h"

namespace muster::agent {
namespace {

constexpr int kOpenDirectory = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

// Works as mkdir -p does; accepts what is there, links too.
absl::Status MakeSharedDirectory(const std::string& path) {
  if (path.empty() || ::mkdir(path.c_str(), 0777) == 0) return absl::OkStatus();
  const int error = errno;
  const size_t slash = path.rfind('/');
  if (error == ENOENT && slash != std::string::npos && slash > 0) {
    MUSTER_RETURN_IF_ERROR(MakeSharedDirectory(path.substr(0, slash)));
    return MakeSharedDirectory(path);
  }
  struct stat info;
  if (error == EEXIST && ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    return absl::OkStatus();
  }
  return LogPathError("make the log directory", path, error == EEXIST ? ENOTDIR : error);
}

std::string ParentOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

// Another's, or a link to somewhere.
absl::Status NotOurs(const std::string& path, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "cannot use the log directory ", path, ": ", why,
      "; somebody has cleaned it away and put another in its place; choose a place that "
      "only you may write to with --log_dir"));
}

}  // namespace

absl::Status LogPathError(absl::string_view what, const std::string& path, int error) {
  const bool used_up =
      error == ENOSPC || error == EDQUOT || error == EMFILE || error == ENFILE || error == ENOMEM;
  return absl::Status(
      used_up ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInvalidArgument,
      absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error),
                   error == EMFILE || error == ENFILE
                       ? "; raise the limit on open files (ulimit -n)"
                       : "; choose another place with --log_dir"));
}

LogFolder::LogFolder(std::string path, std::string topmost)
    : path_(std::move(path)), topmost_(topmost.empty() ? path_ : std::move(topmost)) {
  struct stat info;
  owner_ = ::lstat(topmost_.c_str(), &info) == 0 ? info.st_uid : ::geteuid();
}

absl::StatusOr<UniqueFd> LogFolder::OpenTopmost() const {
  UniqueFd fd(::open(topmost_.c_str(), kOpenDirectory));
  if (!fd && errno == ENOENT) {
    MUSTER_RETURN_IF_ERROR(MakeSharedDirectory(ParentOf(topmost_)));
    if (::mkdir(topmost_.c_str(), 0700) != 0 && errno != EEXIST) {
      return LogPathError("make the log directory", topmost_, errno);
    }
    fd.reset(::open(topmost_.c_str(), kOpenDirectory));
  }
  const int error = errno;
  struct stat info;
  if (!fd && (error == ELOOP || error == ENOTDIR)) {
    const bool is_link = ::lstat(topmost_.c_str(), &info) == 0 && S_ISLNK(info.st_mode);
    if (is_link) return NotOurs(topmost_, "it is a link");
    return LogPathError("make the log directory", topmost_, ENOTDIR);
  }
  if (!fd) return LogPathError("open the log directory", topmost_, error);
  if (::fstat(fd.get(), &info) != 0) return LogPathError("examine", topmost_, errno);
  if (info.st_uid != owner_ && info.st_uid != ::geteuid()) {
    return NotOurs(topmost_, absl::StrCat("it belongs to uid ", info.st_uid, ", not to ", owner_));
  }
  return fd;
}

absl::StatusOr<UniqueFd> LogFolder::OpenDirectory(const std::string& path) const {
  MUSTER_ASSIGN_OR_RETURN(UniqueFd fd, OpenTopmost());
  return OpenBelow(std::move(fd), path, Missing::kMade);
}

absl::StatusOr<UniqueFd> LogFolder::OpenBelow(UniqueFd fd, const std::string& path,
                                              Missing missing) const {
  if (path == topmost_) return fd;
  if (!absl::StartsWith(path, topmost_ + "/")) {
    return LogPathError("open the log directory", path, EXDEV);
  }
  const absl::string_view below = absl::string_view(path).substr(topmost_.size() + 1);
  for (const absl::string_view part : absl::StrSplit(below, '/', absl::SkipEmpty())) {
    const std::string name(part);
    if (missing == Missing::kMade && ::mkdirat(fd.get(), name.c_str(), 0777) != 0 &&
        errno != EEXIST) {
      return LogPathError("make the log directory", path, errno);
    }
    UniqueFd next(::openat(fd.get(), name.c_str(), kOpenDirectory));
    if (!next) return LogPathError("make the log directory", path, errno);
    fd = std::move(next);
  }
  return fd;
}

absl::StatusOr<UniqueFd> LogFolder::OpenFile(const std::string& path, int flags) const {
  MUSTER_ASSIGN_OR_RETURN(const UniqueFd directory, OpenDirectory(ParentOf(path)));
  const std::string name = path.substr(path.rfind('/') + 1);
  UniqueFd fd(
      ::openat(directory.get(), name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY, 0666));
  if (!fd) return LogPathError("open the log file", path, errno);
  return fd;
}

std::string LogFolder::WhyFull(const std::string& directory) const {
  UniqueFd topmost(::open(topmost_.c_str(), kOpenDirectory));
  if (!topmost) return "";
  const absl::StatusOr<UniqueFd> fd = OpenBelow(std::move(topmost), directory, Missing::kRefused);
  if (!fd.ok()) return "";
  // A quota counts for us alone, so a page is written into a file that has no name.
  constexpr char kPage[4096] = {};
  const UniqueFd file(::openat(fd->get(), ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
  const ssize_t put = file ? ::write(file.get(), kPage, sizeof(kPage)) : -1;
  if (put == sizeof(kPage)) return "";
  const int error = put < 0 ? errno : ENOSPC;
  if (error == ENOSPC || error == EDQUOT) return std::strerror(error);
  struct statvfs room;
  const bool is_full = !file && ::fstatvfs(fd->get(), &room) == 0 && room.f_bavail == 0;
  return is_full ? std::strerror(ENOSPC) : "";
}

void LogFolder::Rename(const std::string& path, const std::string& name) const {
  UniqueFd topmost(::open(topmost_.c_str(), kOpenDirectory));
  if (!topmost) return;
  const absl::StatusOr<UniqueFd> directory =
      OpenBelow(std::move(topmost), ParentOf(path), Missing::kRefused);
  if (!directory.ok()) return;
  const std::string present = path.substr(path.rfind('/') + 1);
  std::ignore = ::renameat(directory->get(), present.c_str(), directory->get(), name.c_str());
}

}  // namespace muster::agent
