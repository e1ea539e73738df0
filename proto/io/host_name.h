// This machine's own name.
//
// Threads: thread-safe.
#pragma once

#include <unistd.h>

#include <climits>
#include <string>

namespace muster {

// "localhost" where it has none.
inline std::string HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  const bool is_known = gethostname(name, sizeof(name) - 1) == 0 && name[0] != '\0';
  return is_known ? name : "localhost";
}

}  // namespace muster
