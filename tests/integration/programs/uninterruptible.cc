// A worker that the kernel keeps in uninterruptible sleep (state D): who calls vfork waits so until
// its child is gone, here for ever.
#include <unistd.h>

int main() {
  if (vfork() == 0) {
    for (;;) pause();
  }
  return 0;
}
