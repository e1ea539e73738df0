// Lets programs that are linked on a newer system start on glibc 2.34: what GCC's libstdc++.a takes
// from a later one is defined here, and wins over the shared library's at link time.
#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

// std::random_device asks for it: glibc has it since 2.36.
//
// getrandom(2) hands out up to 256 bytes in one piece once the kernel has entropy. Where it is
// forbidden there is no random number that is worth its name.
extern "C" __attribute__((visibility("default"))) uint32_t arc4random() {
  uint32_t number = 0;
  if (getrandom(&number, sizeof(number), 0) != static_cast<ssize_t>(sizeof(number))) std::abort();
  return number;
}
