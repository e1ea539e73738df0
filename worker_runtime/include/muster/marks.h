// Tells the agent of `muster run` what a training program in C or C++ does, and of which step. This
// file alone: no library, and no connection to the agent. Copy it, or install muster.
//
//   #include "muster/marks.h"
//   muster_mark(step, MUSTER_FORWARD);
//
// The agent reads it without the program's help, also once it hangs: it says which rank has stopped
// where, and ends a job in which nobody has moved for --hang_timeout. Where a program marks, it
// marks every step. Of the time in MUSTER_REDUCE it is assumed that the rank waits for the others:
// a rank that takes longer than they do for the rest of a step is named as slow. Programs on the
// runtime have Runtime::SetProgress (muster/runtime.h) instead; Python has
// deploy/python/muster_marks.py.
//
// Threads: one thread of a process marks. Children do nothing.
// Cost:    a clock read and four stores; nothing without `muster run`. POSIX.1-2008, GCC or Clang.
#ifndef MUSTER_MARKS_H_
#define MUSTER_MARKS_H_

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifdef __cplusplus
extern "C" {
#endif

// Save, load, evaluate and end may take longer than the others. End: behind the last step, what is
// left to do. Idle, of the step that comes next: waiting for work by intention; ranks that are all
// idle, or at their end, are never taken for hung.
enum muster_phase {
  MUSTER_FORWARD = 1,
  MUSTER_BACKWARD = 2,
  MUSTER_REDUCE = 3,
  MUSTER_UPDATE = 4,
  MUSTER_SAVE = 5,
  MUSTER_LOAD = 6,
  MUSTER_IDLE = 7,
  MUSTER_EVALUATE = 8,
  MUSTER_END = 9
};

// The beginning of proto/base/progress_board.h, and where one more of its words lies.
struct muster_board_head {
  uint64_t magic;
  uint32_t version;
  uint32_t header_bytes;
  uint64_t board_bytes;
  int32_t pid;
  uint32_t reserved;
  uint64_t progress;
  int64_t marked_ns;
  int64_t num_steps;
};
#define MUSTER_BOARD_WAITED_AT 4168

// NULL: not under `muster run`, or a child of its worker, or muster is of another version.
static inline struct muster_board_head* muster_open_board(void) {
  const char* const path = getenv("MUSTER_BOARD");
  const int fd = path == NULL ? -1 : open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return NULL;
  struct stat info;
  void* memory = MAP_FAILED;
  if (fstat(fd, &info) == 0 && info.st_size > MUSTER_BOARD_WAITED_AT + (off_t)sizeof(int64_t)) {
    memory = mmap(NULL, (size_t)info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  close(fd);
  if (memory == MAP_FAILED) return NULL;
  struct muster_board_head* const board = (struct muster_board_head*)memory;
  int32_t nobody = 0;
  const int is_ours = board->magic == UINT64_C(0x6472616f4273754d) && board->version == 2 &&
                      (__atomic_compare_exchange_n(&board->pid, &nobody, (int32_t)getpid(), 0,
                                                   __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) ||
                       nobody == (int32_t)getpid());
  if (is_ours) return board;
  munmap(memory, (size_t)info.st_size);
  return NULL;
}

// Says that this rank is in `phase` of step `step` (from 0) from now on.
static inline void muster_mark(int64_t step, enum muster_phase phase) {
  static struct muster_board_head* board;
  static int is_open;
  if (!is_open) board = muster_open_board();
  is_open = 1;
  if (board == NULL || __atomic_load_n(&board->pid, __ATOMIC_ACQUIRE) != (int32_t)getpid()) return;
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  const int64_t now = (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
  const uint64_t before = __atomic_load_n(&board->progress, __ATOMIC_RELAXED);
  if ((before & 0xff) == MUSTER_REDUCE) {
    int64_t* const waited_ns = (int64_t*)((char*)board + MUSTER_BOARD_WAITED_AT);
    __atomic_fetch_add(waited_ns, now - __atomic_load_n(&board->marked_ns, __ATOMIC_RELAXED),
                       __ATOMIC_RELAXED);
  }
  __atomic_store_n(&board->marked_ns, now, __ATOMIC_RELAXED);
  if ((uint64_t)(step + 1) != before >> 8) {
    __atomic_fetch_add(&board->num_steps, 1, __ATOMIC_RELAXED);
  }
  __atomic_store_n(&board->progress, (uint64_t)(step + 1) << 8 | (uint64_t)phase, __ATOMIC_RELEASE);
}

#ifdef __cplusplus
}
#endif

#endif  // MUSTER_MARKS_H_
