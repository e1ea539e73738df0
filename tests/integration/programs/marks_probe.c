// A worker in C without any library of ours, whose ranks mark five steps; then, in the first attempt, both
// hang: rank 1 behind the other.
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "muster/marks.h"

static int is(const char* variable, const char* value) {
  const char* const text = getenv(variable);
  return text != NULL && strcmp(text, value) == 0;
}

int main(void) {
  for (int64_t step = 0; step < 5; ++step) {
    muster_mark(step, MUSTER_FORWARD);
    muster_mark(step, MUSTER_BACKWARD);
    muster_mark(step, MUSTER_REDUCE);
    muster_mark(step + 1, MUSTER_IDLE);
  }
  if (is("TORCHELASTIC_RESTART_COUNT", "0")) {
    const struct timespec time = {1000, 0};
    muster_mark(5, is("RANK", "0") ? MUSTER_REDUCE : MUSTER_FORWARD);
    nanosleep(&time, NULL);
  }
  return 0;
}
