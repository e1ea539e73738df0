// The ranks' agreement on the step after which they stop.
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
