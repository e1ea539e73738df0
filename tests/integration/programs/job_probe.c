// A worker in C (tests/integration/programs/job_probe.py is the same in Python), whose ranks step together
// by files in $OUT. It says when it leaves, after which step and why.
//   job_probe stop      steps until the job stops
//   job_probe rounds    goes on in the rounds of its job until $OUT/done is there, and notes its places as surviving_rank.cc does
//   job_probe commit    commits steps until $OUT/done is there; rank 0 notes the answers as commit_probe.cc does
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "muster/runtime_c.h"

static char text[4096];

static void pause_for(long milliseconds) {
  const struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
  nanosleep(&time, NULL);
}

static int exists(const char* name) {
  char path[4096];
  snprintf(path, sizeof(path), "%s/%s", getenv("OUT"), name);
  FILE* const file = fopen(path, "r");
  if (file != NULL) fclose(file);
  return file != NULL;
}

static void note(const char* name, const char* line) {
  char path[4096];
  snprintf(path, sizeof(path), "%s/%s", getenv("OUT"), name);
  FILE* const file = fopen(path, "a");
  if (file == NULL) exit(3);
  fputs(line, file);
  fclose(file);
}

// One step, which no rank ends before all have begun it.
static void step_together(int rank, int size, long step) {
  char name[64];
  snprintf(name, sizeof(name), "step.%ld.%d", step, rank);
  note(name, "");
  for (int other = 0; other < size; ++other) {
    snprintf(name, sizeof(name), "step.%ld.%d", step, other);
    while (!exists(name)) pause_for(1);
  }
}

static int stop(muster_runtime* runtime) {
  for (long step = 0;; ++step) {
    step_together(muster_rank(runtime), muster_size(runtime), step);
    if (muster_should_stop(runtime, step, text, sizeof(text))) {
      printf("left after step %ld: %s\n", step, text);
      return muster_finish(runtime, step + 1) == 0 ? 0 : 4;
    }
  }
}

static int commit(muster_runtime* runtime) {
  for (long step = 1; !exists("done"); ++step) {
    if (muster_rank(runtime) == 0) {
      const enum muster_commit answer = muster_commit_checkpoint(runtime, step, text, sizeof(text));
      char line[256];
      snprintf(line, sizeof(line), "%s %s %ld\n", getenv("NODE"), getenv("MUSTER_ROUND"), step);
      note(answer == MUSTER_COMMIT_YES       ? "commits"
           : answer == MUSTER_COMMIT_NOT_NOW ? "refused"
                                             : "never",
           line);
    }
    pause_for(50);
  }
  return muster_finish(runtime, 0) == 0 ? 0 : 4;
}

static void set(void* flag) { atomic_store((atomic_int*)flag, 1); }

static int rounds(muster_runtime* runtime) {
  while (1) {
    atomic_int is_over = 0;
    muster_survive_rounds(runtime, set, &is_over);
    char place[64], line[64];
    snprintf(place, sizeof(place), "round%s.rank%d",
             muster_variable(runtime, "TORCHELASTIC_RESTART_COUNT"), muster_rank(runtime));
    snprintf(line, sizeof(line), "%ld %d", (long)getpid(), muster_size(runtime));
    note(place, line);
    note(strcat(place, ".there"), "");
    while (!atomic_load(&is_over) && !exists("done")) pause_for(5);
    if (!atomic_load(&is_over)) return muster_finish(runtime, 0) == 0 ? 0 : 4;
    if (muster_next_round(runtime, 30, text, sizeof(text)) != MUSTER_ROUND_TAKEN) {
      printf("pid %ld ends: %s\n", (long)getpid(), text);
      return 5;
    }
  }
}

int main(int argc, char** argv) {
  muster_runtime* const runtime = muster_open(text, sizeof(text));
  if (runtime == NULL) {
    fprintf(stderr, "%s\n", text);
    return 1;
  }
  const char* const what = argc > 1 ? argv[1] : "stop";
  const int code = strcmp(what, "commit") == 0   ? commit(runtime)
                   : strcmp(what, "rounds") == 0 ? rounds(runtime)
                                                 : stop(runtime);
  muster_close(runtime);
  return code;
}
