// How CompileProgram makes the program of one rank: a pass over the model after the other, then
// what becomes of the gradients.
//
// Threads: thread-compatible; used once.
#pragma once

#include <vector>

#include "worker_runtime/plan/gradient_reductions.h"
#include "worker_runtime/plan/planned_passes.h"
#include "worker_runtime/plan/program_draft.h"
#include "worker_runtime/plan/stage_handovers.h"
#include "worker_runtime/plan/unit_gathers.h"

namespace muster::plan {

class ProgramCompiler {
 public:
  // See ProgramDraft.
  ProgramCompiler(const ProgramInput& input, int rank, bool reduces_each)
      : draft_(input, rank, reduces_each) {}

  Program Run();

 private:
  void AddPasses();
  std::vector<Entry>& EntriesOf(int pass);
  // The pass comes to a sum of what tensor ranks have made parts of.
  void AddSum(const PlannedPass& pass, const PlannedSum& sum, int action);
  // What happens while a pass runs, and as it ends.
  void AddUses(const PlannedPass& pass, int action);
  void AddForward(const PlannedPass& pass);
  // Called before the last backward pass, which hides the sum of losses.
  void AddLoss(int last_forward);
  void AddBackward(const PlannedPass& pass);
  // What the memory of a pass's tape is, while it runs and once it is over.
  void CountMemory(const PlannedPass& pass, Action& backward) const;
  void AddShareLoss();
  // The rank of the world whose sum it is.
  int GiverOfLoss() const;

  // Whether no rank has the whole gradient. Of replicas that have the same part one gives its
  // squares.
  bool AddsSquares() const;
  // The CLIP behind it.
  int AddNorm();
  void AddUpdates(int clip);

  ProgramDraft draft_;
  const PlannedPasses planned_ = PlanPasses(draft_);
  UnitGathers gathers_{draft_, planned_.uses};
  GradientReductions reductions_{draft_, planned_.uses};
  StageHandovers handovers_{draft_};
  int last_forward_ = kNone;
  int loss_ = kNone;
};

}  // namespace muster::plan
