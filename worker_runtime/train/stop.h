// How muster-train is asked to stop, and how the ranks agree on the step after which they do.
//
// The first SIGTERM or SIGINT is noted, and the training loop asks for it between steps; the second
// one ends the process as if nobody had asked for it: so a person never waits for a step that does
// not end, and the launcher's stop ladder has its rung.
//
// A signal reaches the ranks at different steps, or one of them alone; but saving and the next step
// need all of them. So each step begins with one small all-reduce of the signals received, which
// is done by the time the step is.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "muster/communicator.h"
#include "muster/work.h"

namespace muster::train {

// A process has at most one at a time.
//
// Threads: thread-compatible.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal() { Release(); }
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // The first signal that came, or 0; until the next StopSignal.
  int received() const;
  // Lets both signals end the process again.
  void Release();
};

// Ends the process by `signal`, so that the parent sees what it sent.
[[noreturn]] void EndBySignal(int signal);

// Threads: thread-compatible.
class StopVote {
 public:
  // `world` outlives it.
  explicit StopVote(Communicator& world) : world_(world) {}
  // Waits for a vote that was begun and not ended, which is when the step between failed.
  ~StopVote() { work_.Wait().IgnoreError(); }
  StopVote(const StopVote&) = delete;
  StopVote& operator=(const StopVote&) = delete;

  // Every rank calls both once per step. Cost: one all-reduce of 4 bytes.
  void Begin(int own_signal);
  // A signal that some rank had received when it began; 0: none, go on. The same on all ranks.
  //
  // Errors: the communicator's.
  absl::StatusOr<int> End();

 private:
  Communicator& world_;
  std::vector<int32_t> signal_ = {0};  // belongs to work_ while that is in flight
  Work work_;
};

}  // namespace muster::train
