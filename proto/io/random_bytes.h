// Threads: safe.
#pragma once

#include <sys/random.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/base/fatal_error.h"

namespace muster {

// `num_bytes` from the kernel's generator. Ends the process where it gives none.
inline std::string RandomBytes(size_t num_bytes) {
  std::string bytes(num_bytes, '\0');
  size_t filled = 0;
  while (filled < num_bytes) {
    const ssize_t n = getrandom(bytes.data() + filled, num_bytes - filled, 0);
    if (n <= 0 && errno != EINTR) {
      FatalError(absl::StrCat("the kernel gives no random bytes (getrandom: ", std::strerror(errno),
                              "); a sandbox that forbids this call must allow it"));
    }
    if (n > 0) filled += static_cast<size_t>(n);
  }
  return bytes;
}

}  // namespace muster
