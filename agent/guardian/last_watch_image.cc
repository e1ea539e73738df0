#include "agent/guardian/last_watch_image.h"

// MUSTER_LAST_WATCH is the program's path, by the build.
__asm__(
    ".pushsection .rodata\n"
    ".globl muster_last_watch_begin\n"
    ".globl muster_last_watch_end\n"
    "muster_last_watch_begin:\n"
    ".incbin \"" MUSTER_LAST_WATCH
    "\"\n"
    "muster_last_watch_end:\n"
    ".byte 0\n"
    ".popsection\n");
extern "C" const char muster_last_watch_begin[];
extern "C" const char muster_last_watch_end[];

namespace muster::agent {

absl::string_view LastWatchImage() {
  return {muster_last_watch_begin,
          static_cast<size_t>(muster_last_watch_end - muster_last_watch_begin)};
}

}  // namespace muster::agent
