// The runtime for training programs in C, and in languages that call C: when to stop, whether a
// checkpoint may be published, and the job's next round in the same process. muster/runtime.h,
// which it calls, says in full what each function does. It links a C++ library: let the C++
// compiler link the program.
//
// Texts go into the caller's `text` of `text_bytes`, cut to fit and ended with a 0; NULL: not
// wanted. Threads: safe, but for muster_should_stop, which one thread asks, and muster_next_round
// and muster_close, during which no other function is called.
#ifndef MUSTER_RUNTIME_C_H_
#define MUSTER_RUNTIME_C_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct muster_runtime muster_runtime;

// The runtime of this process: under `muster run` one of the job's workers, connected to its agent;
// without any launcher one rank of one. NULL on an error, which `text` says.
muster_runtime* muster_open(char* text, size_t text_bytes);
void muster_close(muster_runtime* runtime);

int muster_rank(const muster_runtime* runtime);
int muster_size(const muster_runtime* runtime);

// Whether the job stops after `step`, which this rank has just finished: then save, muster_finish,
// and leave with 0. 1: it does, and `text` says why; 0: go on. It waits while ranks say how far
// they are.
int muster_should_stop(muster_runtime* runtime, int64_t step, char* text, size_t text_bytes);

enum muster_commit {
  MUSTER_COMMIT_YES = 0,
  MUSTER_COMMIT_NOT_NOW = 1,  // train on, and ask again at the next checkpoint
  MUSTER_COMMIT_NEVER = 2     // another round has begun; this process is about to be stopped
};
// May the checkpoint of `step` be published? Asked by one rank, once all parts are on disk. `text`
// says why not.
enum muster_commit muster_commit_checkpoint(muster_runtime* runtime, int64_t step, char* text,
                                            size_t text_bytes);

// Tells the agent that this program goes on in the job's next round in the same process: where a
// round ends for the sake of another worker or node, this one is not signalled. `on_round_over` is
// called then with `data`, once, on a thread of the runtime's own, and not after muster_next_round
// has taken a round or muster_close; it ends what waits for other ranks, and calls neither of those
// two, which wait for it. NULL: the program finds out by itself. Without an agent this does
// nothing.
void muster_survive_rounds(muster_runtime* runtime, void (*on_round_over)(void* data), void* data);

enum muster_round {
  MUSTER_ROUND_TAKEN = 0,
  MUSTER_ROUND_NOT_OVER = 1,  // nobody has ended this one: what failed is the program's own
  MUSTER_ROUND_NONE = 2       // no other follows, or none can be taken: end
};
// Waits for this process's place in the job's next round and takes it: `runtime` is that of the new
// place then, with another rank perhaps, and muster_survive_rounds is called again. Whether this
// round is over must be known within `seconds`. Before the call the program lets go of what belongs
// to this round; it has half of --shutdown_timeout for that, after the loss of a node five seconds.
// `text` says why none was taken.
enum muster_round muster_next_round(muster_runtime* runtime, double seconds, char* text,
                                    size_t text_bytes);

// What a worker that was started for this place finds in its environment as `name`, such as
// "MASTER_PORT"; NULL: it is not set. Valid until muster_next_round or muster_close.
const char* muster_variable(const muster_runtime* runtime, const char* name);

// Tells the agent that the program ends by intention after `step` steps. 0; -1: the agent is gone.
int muster_finish(muster_runtime* runtime, int64_t step);

#ifdef __cplusplus
}
#endif

#endif  // MUSTER_RUNTIME_C_H_
