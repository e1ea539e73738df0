#include "proto/io/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/io/random_bytes.h"
#include "proto/io/unique_fd.h"

namespace muster {
namespace {

absl::Status CannotRead(int error) {
  return absl::NotFoundError(absl::StrCat("cannot be read: ", std::strerror(error)));
}

// Returns 0, or errno.
int WriteAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd, bytes.data(), bytes.size());
    if (put >= 0) {
      bytes.remove_prefix(static_cast<size_t>(put));
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t bytes_max) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (!fd) return CannotRead(errno);
  std::string text;
  std::array<char, 4096> buffer;
  while (text.size() < bytes_max) {
    const ssize_t n =
        ::read(fd.get(), buffer.data(), std::min(buffer.size(), bytes_max - text.size()));
    if (n == 0) break;
    if (n > 0) {
      text.append(buffer.data(), static_cast<size_t>(n));
    } else if (errno != EINTR) {
      return CannotRead(errno);
    }
  }
  return text;
}

std::string TextOf(const std::string& path, size_t bytes_max) {
  return ReadFile(path, bytes_max).value_or("");
}

std::vector<std::string> NamesIn(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

int ReplaceFile(const std::string& path, absl::string_view bytes, mode_t mode) {
  // A name that nobody can have planted a link under.
  const std::string fresh = absl::StrCat(path, ".", absl::BytesToHexString(RandomBytes(8)), ".new");
  UniqueFd file(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file) return errno;
  int error = mode == 0 || ::fchmod(file.get(), mode) == 0 ? WriteAll(file.get(), bytes) : errno;
  if (const int of_close = file.Close(); error == 0) error = of_close;
  if (error == 0 && std::rename(fresh.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) ::unlink(fresh.c_str());
  return error;
}

}  // namespace muster
