#include "proto/io/read_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/io/unique_fd.h"

namespace muster {
namespace {

absl::Status CannotRead(int error) {
  return absl::NotFoundError(absl::StrCat("cannot be read: ", std::strerror(error)));
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (!fd) return CannotRead(errno);
  std::string text;
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t n = ::read(fd.get(), buffer.data(), buffer.size());
    if (n == 0) return text;
    if (n > 0) {
      text.append(buffer.data(), static_cast<size_t>(n));
    } else if (errno != EINTR) {
      return CannotRead(errno);
    }
  }
}

std::string TextOf(const std::string& path) { return ReadFile(path).value_or(""); }

}  // namespace muster
