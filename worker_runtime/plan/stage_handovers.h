// What travels between the stages of a pipeline, and what the stages of one rank keep for each
// other.
//
// Threads: thread-compatible; used once.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "worker_runtime/plan/planned_passes.h"
#include "worker_runtime/plan/program_draft.h"
#include "worker_runtime/plan/schedules/pass_order.h"

namespace muster::plan {

class StageHandovers {
 public:
  // Adds to `draft`, which outlives this.
  explicit StageHandovers(ProgramDraft& draft);

  // What the pass needs of other ranks, before it.
  void AddReceives(const PlannedPass& pass);
  // Has the pass wait for them.
  void AddNeeds(const PlannedPass& pass, Action& action) const;
  // A backward pass that hands something back: what its stage has sent has left by then, so that
  // its memory is there again.
  void AwaitSent(const PlannedPass& pass, Action& backward);
  // What one stage of this rank has found for a parameter of another one stays until that takes it.
  void KeepTied(const PlannedPass& pass, Action& backward) const;
  // What the pass, which is `action`, has made for other ranks.
  void AddSends(const PlannedPass& pass, int action);
  // New values of what is borrowed: `updates` have made them, and `last_backward` has read the old.
  void AddTiedValues(const std::vector<int>& updates, int last_backward);

 private:
  // One of what is handed on between this rank and the one at `with.place`.
  Action ActionOf(bool is_send, const HandedBy& with, int64_t bytes) const;
  Action TiedValues(bool is_send, const TiedStages& tied, int place) const;
  int64_t BytesHanded(const Handed& what) const;

  ProgramDraft& draft_;
  const std::vector<TiedStages> tied_;
  std::map<Handed, int> received_;  // RECVs
  struct OfStage {
    std::map<int64_t, int> passed_on;  // SENDs of activations, by micro-batch
    std::vector<int> handed_back;      // SENDs that no backward pass has waited for
  };
  std::vector<OfStage> of_stage_;
};

}  // namespace muster::plan
