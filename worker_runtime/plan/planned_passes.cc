#include "worker_runtime/plan/planned_passes.h"

#include <utility>

#include "proto/base/status_macros.h"

namespace muster::plan {
namespace {

// The units that it comes to, in this order.
const std::vector<int>& UsesOf(const UseTrace& trace, const PlannedPass& pass) {
  if (pass.is_forward()) return trace.forward;
  return pass.kind() == PassKind::kWeightGradient ? trace.weights : trace.backward;
}

void AddUse(const ProgramDraft& draft, const PlannedPass& pass, int unit,
            std::vector<UnitUse>& uses) {
  const bool is_own = draft.info().blocks.Overlaps(draft.layout.units[unit]) ||
                      draft.info().frozen_blocks.Overlaps(draft.layout.frozen_units[unit]);
  if (!is_own) return;  // of another stage
  if (uses.size() > pass.first_use && uses.back().unit == unit) return;
  uses.push_back(
      {.unit = unit, .micro_batch = pass.micro_batch(), .is_backward = !pass.is_forward()});
}

// A forward pass has nothing to wait for.
void AddUsesOfBuckets(const ProgramDraft& draft, const PlannedPass& pass,
                      std::vector<UnitUse>& uses) {
  if (pass.is_forward()) return;
  for (const BackwardUse& use : draft.info().trace.backward_uses) {
    const int bucket = UseOf(draft.program, use.parameter, kNone);
    if (uses.size() > pass.first_use && uses.back().unit == bucket) continue;
    uses.push_back({.unit = bucket, .micro_batch = pass.micro_batch(), .is_backward = true});
  }
}

std::vector<int> LentUnits(const ProgramDraft& draft) {
  std::vector<int> units;
  for (const StageInfo& other : draft.input.stages) {
    for (const int p : other.borrowed) {
      const ParameterInfo& parameter = draft.input.parameters[p];
      if (!parameter.frozen && draft.StageOf(p) == draft.stage) units.push_back(parameter.unit);
    }
  }
  return units;
}

}  // namespace

std::vector<TiedStages> TiedOf(const ProgramDraft& draft) {
  std::vector<TiedStages> tied;
  for (int borrower = 0; borrower < static_cast<int>(draft.input.stages.size()); ++borrower) {
    for (const int p : draft.input.stages[borrower].borrowed) {
      if (draft.input.parameters[p].frozen) continue;
      const TiedStages one = {
          .borrower = borrower, .lender = draft.StageOf(p), .first_micro_batch = draft.FirstTied()};
      const bool is_first = tied.empty() || tied.back().borrower != borrower;
      MUSTER_CHECK(is_first || tied.back().lender == one.lender);
      if (is_first) tied.push_back(one);
    }
  }
  return tied;
}

PlannedPasses PlanPasses(ProgramDraft& draft) {
  PlannedPasses planned;
  for (PassOfRank& order : PassesOf(*draft.input.schedule, TiedOf(draft), draft.place)) {
    planned.passes.push_back({.order = std::move(order)});
  }
  if (!draft.has_entries()) return planned;
  for (PlannedPass& pass : planned.passes) {
    draft.stage = pass.order.pass.stage;
    pass.first_use = planned.uses.size();
    // What the stage behind found for a borrowed parameter is written before anything else.
    if (pass.writes_gradients() && pass.micro_batch() >= draft.FirstTied()) {
      for (const int unit : LentUnits(draft)) AddUse(draft, pass, unit, planned.uses);
    }
    if (draft.EntersBuckets()) {
      AddUsesOfBuckets(draft, pass, planned.uses);
    } else {
      for (const int unit : UsesOf(draft.info().trace, pass)) {
        AddUse(draft, pass, unit, planned.uses);
      }
    }
    pass.end_use = planned.uses.size();
  }
  return planned;
}

}  // namespace muster::plan
