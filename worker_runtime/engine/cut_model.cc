#include "worker_runtime/engine/cut_model.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/engine/boundary.h"
#include "worker_runtime/engine/meta_run.h"
#include "worker_runtime/plan/stage_cut.h"

namespace muster::engine {
namespace {

int NumUnits(const ParameterStore& store) {
  return std::max(1, static_cast<int>(store.unit_names().size()));
}

std::string UnitName(const ParameterStore& store, int unit) {
  return store.unit_names().empty() ? "0" : store.unit_names()[unit];
}

absl::Status Refuse(std::string why) {
  return absl::InvalidArgumentError(absl::StrCat("the model cannot be cut into stages: ", why));
}

// Checks the borrowed parameters: who lends, and who borrows.
absl::Status CheckBorrowed(const ParameterStore& store, const PipelineCut& cut) {
  std::map<int, int> borrower_of;  // by the stage that lends
  for (int s = 0; s < cut.stages(); ++s) {
    std::set<int> lenders;
    for (const Parameter* parameter : cut.borrowed[s]) {
      if (parameter->frozen()) continue;  // each borrower has its copy for good
      const auto next =
          std::upper_bound(cut.first_units.begin(), cut.first_units.end(), parameter->unit());
      const int lender = static_cast<int>(next - cut.first_units.begin()) - 1;
      if (lender > s) {
        return Refuse(absl::StrCat("unit ", UnitName(store, cut.first_units[s]),
                                   " or one behind it uses ", parameter->name(),
                                   ", which a later stage declares"));
      }
      lenders.insert(lender);
      const auto [place, is_new] = borrower_of.emplace(lender, s);
      if (!is_new && place->second != s) {
        return Refuse(absl::StrCat(parameter->name(), " is used by two later stages, ",
                                   place->second, " and ", s, "; this version lends to one"));
      }
    }
    if (lenders.size() > 1) {
      return Refuse(absl::StrCat("stage ", s, " uses parameters of ", lenders.size(),
                                 " earlier stages; this version borrows from one"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckStages(const ParameterStore& store, const PipelineCut& cut) {
  for (int s = 0; s < cut.stages(); ++s) {
    const UnitRange range = UnitsOf(store, cut, s);
    const bool learns = std::any_of(
        store.parameters().begin(), store.parameters().end(), [&](const auto& parameter) {
          return !parameter->frozen() && range.first <= parameter->unit() &&
                 parameter->unit() < range.end;
        });
    if (!learns) {
      return Refuse(absl::StrCat("stage ", s, ", from unit ", UnitName(store, range.first),
                                 " on, would have nothing to train"));
    }
  }
  return CheckBorrowed(store, cut);
}

}  // namespace

ModelInput SampleInput(int64_t batch, int64_t sequence) {
  const absl::Span<const int32_t> ids = SizesOf(batch * sequence);
  return {.tokens = {.tokens = ids, .batch = batch, .sequence = sequence}, .targets = ids};
}

UnitRange UnitsOf(const ParameterStore& store, const PipelineCut& cut, int stage) {
  const bool is_last = stage + 1 == cut.stages();
  return {cut.first_units[stage], is_last ? NumUnits(store) : cut.first_units[stage + 1]};
}

absl::StatusOr<std::vector<UnitUse>> UsesOfUnits(ParameterStore& store, const Plan& plan,
                                                 const UnitModel& model, const ModelInput& sample) {
  std::vector<UnitUse> units(NumUnits(store));
  MUSTER_RETURN_IF_ERROR(CheckIsFree(store));
  const MetaBinding binding(store, plan, Device::Meta());
  for (int u = 0; u < static_cast<int>(units.size()); ++u) {
    const bool is_last = u + 1 == static_cast<int>(units.size());
    std::set<int> used;
    store.OnUse([&](Parameter& parameter) {
      if (parameter.unit() != u) used.insert(parameter.index());
    });
    TensorPool pool(Device::Meta());
    Tape tape(pool);
    tape.set_recompute(plan.recompute);
    const std::vector<Shape> shapes = u == 0 ? std::vector<Shape>() : units[u - 1].passed_on;
    const std::vector<Activation> received = Watch(tape, Allocate(pool, store.dtype(), shapes));
    MUSTER_ASSIGN_OR_RETURN(const StageOutput output, model(tape, {u, u + 1}, sample, received));
    MUSTER_RETURN_IF_ERROR(tape.status());
    units[u].products = tape.queue().num_flops();
    if (!is_last) units[u].passed_on = ShapesOf(output.passed_on);
    const std::vector<Shape>& passed_on = units[u].passed_on;
    const bool has_all = std::all_of(passed_on.begin(), passed_on.end(),
                                     [](const Shape& shape) { return shape.rank() > 0; });
    if (!is_last && (passed_on.empty() || !has_all)) {
      return Refuse(absl::StrCat("unit ", UnitName(store, u), " passes ",
                                 has_all ? "nothing on" : "on an activation without a value"));
    }
    for (const int p : used) units[u].of_others.push_back(store.parameters()[p].get());
  }
  return units;
}

absl::StatusOr<PipelineCut> CutModel(ParameterStore& store, const Plan& plan, int stages,
                                     const UnitModel& model, const ModelInput& sample) {
  if (stages == 1) return PipelineCut();
  if (stages > NumUnits(store)) {
    return Refuse(absl::StrCat("it has ", NumUnits(store), " units, and there are to be ", stages,
                               " stages"));
  }
  MUSTER_ASSIGN_OR_RETURN(const std::vector<UnitUse> units,
                          UsesOfUnits(store, plan, model, sample));
  std::vector<double> products;
  for (const UnitUse& unit : units) products.push_back(unit.products);
  MUSTER_ASSIGN_OR_RETURN(
      const std::vector<double> costs,
      plan::CostsOfUnits(plan.unit_costs, store.unit_names(), std::move(products)));
  PipelineCut cut = {.first_units = plan::CutIntoStages(costs, stages)};
  cut.borrowed.resize(stages);
  for (int s = 0; s < stages; ++s) {
    const UnitRange range = UnitsOf(store, cut, s);
    if (s > 0) cut.received.push_back(units[range.first - 1].passed_on);
    std::set<int> borrowed;
    for (int u = range.first; u < range.end; ++u) {
      for (const Parameter* parameter : units[u].of_others) {
        const bool own = range.first <= parameter->unit() && parameter->unit() < range.end;
        if (!own) borrowed.insert(parameter->index());
      }
    }
    for (const int p : borrowed) cut.borrowed[s].push_back(store.parameters()[p].get());
  }
  MUSTER_RETURN_IF_ERROR(CheckStages(store, cut));
  return cut;
}

absl::StatusOr<std::vector<plan::UseTrace>> RecordStages(ParameterStore& store, const Plan& plan,
                                                         const PipelineCut& cut,
                                                         const UnitModel& model,
                                                         const ModelInput& sample,
                                                         const Device& meta) {
  std::vector<plan::UseTrace> traces;
  for (int s = 0; s < cut.stages(); ++s) {
    const auto run = [&](Tape& tape, absl::Span<const Activation> received) {
      return model(tape, UnitsOf(store, cut, s), sample, received);
    };
    MUSTER_ASSIGN_OR_RETURN(plan::UseTrace trace, RecordStageUse(store, plan, cut, s, run, meta));
    traces.push_back(std::move(trace));
  }
  return traces;
}

std::vector<plan::StageInfo> StagesOf(const ParameterStore& store, const plan::BlockLayout& layout,
                                      const PipelineCut& cut,
                                      absl::Span<const plan::UseTrace> traces) {
  std::vector<plan::StageInfo> stages;
  for (int s = 0; s < cut.stages(); ++s) {
    const UnitRange units = UnitsOf(store, cut, s);
    plan::StageInfo stage = plan::StageOfUnits(layout, units.first, units.end, traces[s]);
    for (const Parameter* parameter : cut.borrowed[s]) stage.borrowed.push_back(parameter->index());
    stage.received_bytes = BytesOfBoundary(store.dtype(), cut.received[s]);
    stages.push_back(std::move(stage));
  }
  return stages;
}

}  // namespace muster::engine
