// How a step is put on a device, on which all ranks agree before each: what one captures, all
// capture, and what one launches, all launch. NCCL asks for it ("Using NCCL with CUDA Graphs", user
// guide of 2.30: whether an operation is captured is a collective property of it, and so is a
// launch); a rank that called one by one what others launch could hang the job. Whether a rank can
// is known to it alone, and not before the step: batches of another size come with the step, memory
// that moved since makes a capture worthless. So they ask before each step, by an all-reduce of one
// number that the host waits for, and once more after a capture; once a rank can capture no more,
// nobody is asked.
#pragma once

#include <cstdint>
#include <optional>

#include "muster/tensor.h"

namespace muster::engine {

// Worst first: of all ranks' the worst is taken.
enum class StepForm : int32_t {
  kNever,    // put there call by call, as every other from now on
  kPut,      // put there call by call
  kCapture,  // put there into a capture, which is launched then
  kLaunch,   // the last capture is launched once more
};

// What makes one step like another.
struct StepShape {
  int64_t batch = 0;     // rows of each micro-batch
  int64_t sequence = 0;  // tokens of each row
  TensorPool::Usage
      pool;  // before it: what was taken or given back since may be the captured work's

  friend bool operator==(const StepShape& a, const StepShape& b) {
    return a.batch == b.batch && a.sequence == b.sequence &&
           a.pool.system_allocations == b.pool.system_allocations &&
           a.pool.bytes_reserved == b.pool.bytes_reserved;
  }
};

// Three steps of one shape lead to a launch: the first takes memory, the second none, the third is
// captured.
//
// Threads: thread-compatible; pure.
class StepForms {
 public:
  // What this rank can do with a step of that shape.
  StepForm Propose(const StepShape& shape) const {
    if (declines_) return StepForm::kNever;
    if (like_ != shape) return StepForm::kPut;
    return is_captured_ ? StepForm::kLaunch : StepForm::kCapture;
  }
  // What all ranks do: a capture that this step does not launch is of no use to later ones, as all
  // forget theirs.
  void Agreed(StepForm form) {
    never_ = never_ || form == StepForm::kNever;
    if (form == StepForm::kLaunch) return;
    is_captured_ = false;
    if (form != StepForm::kCapture) like_.reset();
  }
  // A step was put there call by call, and left `after` of what was `before`.
  void WasPut(const StepShape& before, const StepShape& after) {
    if (before == after) like_ = after;
  }
  // Whether all ranks have captured the step that they had agreed to capture.
  void WasCaptured(bool by_all) {
    is_captured_ = by_all;
    if (!by_all) Agreed(StepForm::kNever);
  }
  // The capture is gone, as after a failure.
  void Forget() {
    is_captured_ = false;
    like_.reset();
  }
  // This rank captures none.
  void Decline() { declines_ = true; }

  // The ranks agree on it no more.
  bool are_settled() const { return never_; }

 private:
  bool declines_ = false;
  bool never_ = false;  // the same on all ranks
  bool is_captured_ = false;
  std::optional<StepShape> like_;  // such a step has run, and took no memory
};

}  // namespace muster::engine
