#include "worker_runtime/checkpoint/durable_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "proto/io/random_bytes.h"
#include "proto/io/unique_fd.h"

namespace muster::checkpoint {
namespace {

// Linux writes and reads at most 2^31 - 4096 bytes in one call.
constexpr size_t kWriteBytesMax = size_t{1} << 30;
constexpr int64_t kReadBytesMax = int64_t{1} << 30;

absl::Status NoSpace(const std::string& path, int64_t bytes, absl::string_view reason) {
  struct statvfs space = {};
  std::string free_space;
  if (statvfs(ParentOf(path).c_str(), &space) == 0) {
    free_space = absl::StrCat(", and its file system has ",
                              static_cast<uint64_t>(space.f_bavail) * space.f_frsize, " free");
  }
  return absl::ResourceExhaustedError(absl::StrCat("cannot write ", path, ": ", reason,
                                                   "; it needs ", bytes, " bytes", free_space,
                                                   ". Free some space or save elsewhere"));
}

absl::Status WriteError(int error, const std::string& path, int64_t bytes) {
  if (error == ENOSPC || error == EDQUOT) return NoSpace(path, bytes, std::strerror(error));
  return FileError(error, absl::StrCat("cannot write ", path, " (", bytes, " bytes)"));
}

// A file over the limit would end the process by SIGXFSZ, so this asks before.
absl::Status CheckSizeLimit(const std::string& path, int64_t bytes) {
  struct rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      static_cast<uint64_t>(bytes) <= limit.rlim_cur) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "cannot write ", path, ": it needs ", bytes, " bytes, and files of this process may have ",
      limit.rlim_cur, " at most (RLIMIT_FSIZE). Raise the limit with `ulimit -f unlimited`"));
}

absl::Status CheckReplaceable(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("cannot write ", path, ": it exists and is not a regular file"));
}

// 0 or an errno.
int WriteAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), std::min(bytes.size(), kWriteBytesMax));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    if (written == 0) return EIO;  // a write that makes no progress must not loop
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

// 0 or an errno. Asks for all the space at once, so that a full disk is known before gigabytes
// have been written; file systems without that answer EOPNOTSUPP.
int Reserve(int fd, int64_t bytes) {
  if (bytes == 0) return 0;
  int error = 0;
  do {
    error = fallocate(fd, 0, 0, bytes) == 0 ? 0 : errno;
  } while (error == EINTR);
  return error == ENOSPC || error == EDQUOT || error == EFBIG ? error : 0;
}

// 0 or an errno. A file system that cannot sync a directory says EINVAL; it has no more to offer.
int Sync(int fd) {
  while (fsync(fd) != 0) {
    if (errno == EINVAL) return 0;
    if (errno != EINTR) return errno;
  }
  return 0;
}

// 0 or an errno, or the error of `next` in `next_error`.
int WriteAndSync(UniqueFd file, int64_t bytes, const NextPart& next, const Progress& progress,
                 absl::Status& next_error) {
  int error = Reserve(file.get(), bytes);
  for (int64_t written = 0; error == 0 && written < bytes;) {
    const absl::StatusOr<absl::string_view> part = next();
    next_error = part.status();
    if (!part.ok()) return 0;
    error = WriteAll(file.get(), *part);
    // The disk works while the next part is made; what goes wrong there, the sync at the end tells.
    (void)sync_file_range(file.get(), written, static_cast<off64_t>(part->size()),
                          SYNC_FILE_RANGE_WRITE);
    written += static_cast<int64_t>(part->size());
    if (progress != nullptr) progress();
  }
  if (error == 0) error = Sync(file.get());
  const int close_error = file.Close();
  return error != 0 ? error : close_error;
}

}  // namespace

absl::Status FileError(int error, absl::string_view what) {
  const std::string message = absl::StrCat(what, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(message);
    case ENAMETOOLONG:
    case ELOOP:
    case EINVAL:
    case EISDIR:
      return absl::InvalidArgumentError(message);
    default:
      return absl::UnavailableError(message);
  }
}

absl::Status WriteDurably(const std::string& path, absl::string_view text) {
  return WriteDurably(path, static_cast<int64_t>(text.size()), [text] { return text; });
}

absl::Status WriteDurably(const std::string& path, int64_t bytes, const NextPart& next,
                          const Progress& progress) {
  MUSTER_RETURN_IF_ERROR(CheckReplaceable(path));
  MUSTER_RETURN_IF_ERROR(CheckSizeLimit(path, bytes));

  const std::string parent = ParentOf(path);
  const std::string name = path.substr(path.rfind('/') + 1);
  const std::string hidden = absl::StrCat(parent, "/.", name, ".", RandomSuffix());
  UniqueFd file(open(hidden.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (file.get() < 0) return WriteError(errno, path, bytes);
  absl::Status next_error;
  int error = WriteAndSync(std::move(file), bytes, next, progress, next_error);
  if (!next_error.ok()) {
    unlink(hidden.c_str());
    return next_error;
  }
  if (error == 0 && rename(hidden.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) {
    // What the disk has left is part of the message, so it is built before this frees some.
    const absl::Status status = WriteError(error, path, bytes);
    unlink(hidden.c_str());
    return status;
  }
  return SyncDirectory(parent);
}

absl::Status ReadAt(int fd, int64_t offset, char* out, int64_t bytes, const std::string& path) {
  while (bytes > 0) {
    const ssize_t got = pread(fd, out, static_cast<size_t>(std::min(bytes, kReadBytesMax)), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(errno, absl::StrCat("cannot read ", path));
    if (got == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is damaged: it was cut off at byte ", offset));
    }
    out += got;
    offset += got;
    bytes -= got;
  }
  return absl::OkStatus();
}

absl::Status CreateDirectories(const std::string& path) {
  if (mkdir(path.c_str(), 0777) == 0) return SyncDirectory(ParentOf(path));
  if (errno == ENOENT && ParentOf(path) != path && !path.empty()) {
    MUSTER_RETURN_IF_ERROR(CreateDirectories(ParentOf(path)));
    if (mkdir(path.c_str(), 0777) == 0) return SyncDirectory(ParentOf(path));
  }
  const int error = errno;
  struct stat info = {};
  const bool exists = stat(path.c_str(), &info) == 0;
  if (exists && S_ISDIR(info.st_mode)) return absl::OkStatus();
  if (exists || error == ENOTDIR) {
    return absl::InvalidArgumentError(absl::StrCat("cannot make the directory ", path, ": ",
                                                   exists ? "it" : "a part of its path",
                                                   " is a file"));
  }
  return FileError(error, absl::StrCat("cannot make the directory ", path));
}

absl::Status SyncDirectory(const std::string& path) {
  UniqueFd directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const int error = directory.get() < 0 ? errno : Sync(directory.get());
  return error == 0 ? absl::OkStatus()
                    : FileError(error, absl::StrCat("cannot sync the directory ", path));
}

std::string ParentOf(absl::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  if (slash == absl::string_view::npos) return ".";
  return std::string(path.substr(0, std::max<size_t>(slash, 1)));
}

std::string RandomSuffix() { return absl::BytesToHexString(RandomBytes(8)); }

}  // namespace muster::checkpoint
