#include "worker_runtime/plan/planned_passes.h"

#include <limits>
#include <utility>

#include "absl/types/span.h"
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

// Adds those of the pass at hand whose `place`, in a list of the trace, is at most `reached`.
class Sums {
 public:
  Sums(const UseTrace& trace, PlannedPass& pass, int TensorSum::*place)
      : trace_(trace), pass_(pass), place_(place), all_(SumsOf(trace, pass.kind())) {}

  void AddUntil(size_t reached, size_t before) {
    for (; next_ < all_.size() && static_cast<size_t>(all_[next_].*place_) <= reached; ++next_) {
      const TensorSum& sum = all_[next_];
      const std::vector<int>& uses = pass_.is_forward() ? trace_.forward : trace_.backward;
      pass_.sums.push_back({.before = before,
                            .unit = sum.uses == 0 ? kNone : uses[sum.uses - 1],
                            .finished = sum.finished,
                            .bytes = sum.bytes});
    }
  }
  void AddRest(size_t before) { AddUntil(std::numeric_limits<size_t>::max(), before); }

 private:
  static absl::Span<const TensorSum> SumsOf(const UseTrace& trace, PassKind kind) {
    if (kind == PassKind::kForward) return trace.forward_sums;
    if (kind == PassKind::kWeightGradient) return {};
    return trace.backward_sums;
  }

  const UseTrace& trace_;
  PlannedPass& pass_;
  int TensorSum::*const place_;
  const absl::Span<const TensorSum> all_;
  size_t next_ = 0;
};

// A forward pass has nothing to wait for but sums.
void AddUsesOfBuckets(const ProgramDraft& draft, PlannedPass& pass, std::vector<UnitUse>& uses) {
  const UseTrace& trace = draft.info().trace;
  Sums sums(trace, pass, &TensorSum::parameters);
  for (size_t i = 0; !pass.is_forward() && i < trace.backward_uses.size(); ++i) {
    sums.AddUntil(i, uses.size());
    const int bucket = UseOf(draft.program, trace.backward_uses[i].parameter, kNone);
    if (uses.size() > pass.first_use && uses.back().unit == bucket) continue;
    uses.push_back({.unit = bucket, .micro_batch = pass.micro_batch(), .is_backward = true});
  }
  sums.AddRest(uses.size());
}

void AddUsesOfUnits(const ProgramDraft& draft, PlannedPass& pass, std::vector<UnitUse>& uses) {
  const std::vector<int>& units = UsesOf(draft.info().trace, pass);
  Sums sums(draft.info().trace, pass, &TensorSum::uses);
  for (size_t i = 0; i < units.size(); ++i) {
    sums.AddUntil(i, uses.size());
    AddUse(draft, pass, units[i], uses);
  }
  sums.AddRest(uses.size());
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
  for (PlannedPass& pass : planned.passes) {
    draft.stage = pass.order.pass.stage;
    if (!draft.has_entries()) {
      Sums(draft.info().trace, pass, &TensorSum::uses).AddRest(0);
      continue;
    }
    pass.first_use = planned.uses.size();
    // What the stage behind found for a borrowed parameter is written before anything else.
    if (pass.writes_gradients() && pass.micro_batch() >= draft.FirstTied()) {
      for (const int unit : LentUnits(draft)) AddUse(draft, pass, unit, planned.uses);
    }
    if (draft.EntersBuckets()) {
      AddUsesOfBuckets(draft, pass, planned.uses);
    } else {
      AddUsesOfUnits(draft, pass, planned.uses);
    }
    pass.end_use = planned.uses.size();
  }
  return planned;
}

}  // namespace muster::plan
