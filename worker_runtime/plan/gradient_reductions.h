// The reductions of a program's gradients, and where streamed gradients lie until then.
//
// Threads: thread-compatible; used once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker_runtime/plan/arena_layout.h"
#include "worker_runtime/plan/planned_passes.h"
#include "worker_runtime/plan/program_draft.h"

namespace muster::plan {

class GradientReductions {
 public:
  // Adds to `draft`; both outlive this.
  GradientReductions(ProgramDraft& draft, const std::vector<UnitUse>& uses);

  // A pass that writes gradients was added.
  void OnBackward(int action) { last_backward_ = action; }
  int last_backward() const { return last_backward_; }
  // Streamed gradients of the bucket get their place with the first use of it by a backward pass.
  void Begin(Entry& entry);
  // The bucket that the pass has used for the last time before `use`, if any. `at`: the moment at
  // which its gradients are all there. Called for each use of the pass in turn, unless none of them
  // is to be reduced early; and at its end, with an entry of kNone, for all that are left.
  void ReduceWhatIsComplete(const PlannedPass& pass, size_t use, Point at);
  // Where gradients are whole: those of the stage at hand that are complete when `finished` of its
  // trace's gradients are, which is at `at`. Returns which these are.
  std::vector<int> ReduceFinished(int finished, Point at);
  // The buckets of the stage at hand, whose gradients are whole with its last pass: all that are
  // left.
  void ReduceStage();
  // Comes behind all reductions, which it would hold up.
  void ReplicateReduced();
  // All so far.
  const std::vector<int>& added() const { return added_; }
  // No more will come: the size of the arena.
  void Finish();

 private:
  void FindCompleted();
  void FindLastUses(const PlannedPass& pass);
  void Add(int b, int64_t micro_batch, Point at);
  Action ActionOf(int b, int64_t micro_batch, Point at) const;
  void GiveBackAfter(int b, int reduce);

  ProgramDraft& draft_;
  const std::vector<UnitUse>& uses_;
  ArenaLayout arena_;
  std::vector<int64_t> place_;    // by bucket, while its gradients lie there
  std::vector<bool> is_reduced_;  // by bucket, of the pass at hand
  std::vector<size_t> last_use_;  // by bucket, of the pass that used it last
  std::vector<int> last_reduce_;  // by bucket, of streamed gradients
  std::vector<int> completed_;    // by bucket: the place of its last gradient in the trace
  int completed_stage_ = kNone;   // whose trace that is
  std::vector<int> to_replicate_;
  std::vector<int> added_;
  int leaving_ = kNone;  // the reduction whose memory is not given back yet
  int last_backward_ = kNone;
};

}  // namespace muster::plan
