// The passes of a rank in their order, and the units or buckets that each comes to.
//
// Threads: pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker_runtime/plan/program_draft.h"
#include "worker_runtime/plan/schedules/pass_order.h"
#include "worker_runtime/plan/use_schedule.h"

namespace muster::plan {

// A sum of a pass, which comes before use number `before` of PlannedPasses::uses.
struct PlannedSum {
  size_t before = 0;
  int unit = kNone;  // in whose use it is
  int finished = 0;  // TensorSum::finished
  int64_t bytes = 0;
};

struct PlannedPass {
  PassOfRank order;
  size_t first_use = 0;  // of PlannedPasses::uses
  size_t end_use = 0;
  std::vector<PlannedSum> sums;

  PassKind kind() const { return order.pass.kind; }
  int64_t micro_batch() const { return order.pass.micro_batch; }
  bool is_forward() const { return kind() == PassKind::kForward; }
  bool writes_gradients() const { return WritesGradients(kind()); }
};

struct PlannedPasses {
  std::vector<PlannedPass> passes;
  std::vector<UnitUse> uses;  // none where the program does not look at uses
};

// Leaves the draft at the stage of the last pass.
PlannedPasses PlanPasses(ProgramDraft& draft);

// Stages of which one borrows parameters of another that learn.
std::vector<TiedStages> TiedOf(const ProgramDraft& draft);

}  // namespace muster::plan
