#include "worker_runtime/checkpoint/publish.h"

#include <fcntl.h>
#include <stdio.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/checkpoint/durable_file.h"

namespace muster::checkpoint {
namespace {

// Each attempt fails only when another writer of the same place was faster meanwhile.
constexpr int kAttemptsMax = 100;

// 0 or an errno.
int Rename(const std::string& from, const std::string& to) {
  return rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

int Exchange(const std::string& a, const std::string& b) {
  return renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0 ? 0 : errno;
}

bool IsUnsupported(int error) {
  return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP || error == EPERM;
}

// What is at `place` goes out of the way; `old` becomes its path. 0 or an errno.
int MakeRoom(const std::string& written, const std::string& place, Replacing replacing,
             std::string* old) {
  if (replacing == Replacing::kExchange) {
    const int error = Exchange(written, place);
    if (error == 0) *old = written;
    if (!IsUnsupported(error)) return error;
  }
  const std::filesystem::path path(place);
  const std::string aside =
      absl::StrCat(ParentOf(place), "/.", path.filename().string(), kReplaced, RandomSuffix());
  const int error = Rename(place, aside);
  if (error == 0) *old = aside;
  return error;
}

}  // namespace

absl::Status PublishDirectory(const std::string& written, const std::string& place,
                              Replacing replacing) {
  const std::string what = absl::StrCat("cannot rename ", written, " to ", place);
  std::string old;  // of this call, to be removed
  for (int attempt = 0;; ++attempt) {
    int error = Rename(written, place);
    std::error_code ignored;
    // A link goes like what it points to: to another disk, say.
    if (error == ENOTDIR && std::filesystem::is_symlink(place, ignored)) error = ENOTEMPTY;
    if (error == ENOTDIR) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": there is a file of that name"));
    }
    if (error == EEXIST || error == ENOTEMPTY) {
      error = MakeRoom(written, place, replacing, &old);
      if (error == 0 && old == written) break;
      if (error == 0 || error == ENOENT) error = EAGAIN;
    }
    if (error == 0) break;
    if (error != EAGAIN || attempt == kAttemptsMax) return FileError(error, what);
  }
  // The new one must last before the old one goes.
  MUSTER_RETURN_IF_ERROR(SyncDirectory(ParentOf(place)));
  std::error_code ignored;  // what cannot be removed is in nobody's way
  if (!old.empty()) std::filesystem::remove_all(old, ignored);
  return absl::OkStatus();
}

}  // namespace muster::checkpoint
