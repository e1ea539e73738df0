// Runs the units of a model one by one, to know what they cost.
#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "muster/pipeline.h"
#include "proto/base/mono_time.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/engine/boundary.h"
#include "worker_runtime/engine/cut_model.h"
#include "worker_runtime/engine/meta_run.h"
#include "worker_runtime/nn/operations.h"
#include "worker_runtime/plan/stage_cut.h"
#include "worker_runtime/plan/state_types.h"

namespace muster {
namespace {

// The first takes memory, and lets libraries choose their kernels.
constexpr int kRuns = 4;

// A micro-batch of ids 0.
class ZeroBatch {
 public:
  ZeroBatch(int64_t batch, int64_t sequence)
      : ids_(batch * sequence, 0),
        input_{.tokens = {.tokens = ids_, .batch = batch, .sequence = sequence}, .targets = ids_} {}
  const ModelInput& input() const { return input_; }

 private:
  const std::vector<int32_t> ids_;
  const ModelInput input_;
};

// One unit of a model, with memory of its device for its parameters and those that it uses of
// others. All numbers are 0.
class UnitAlone {
 public:
  UnitAlone(ParameterStore& store, const Plan& plan, int unit, const engine::UnitUse& use,
            absl::Span<const Shape> received)
      : store_(store),
        plan_(plan),
        unit_(unit),
        pool_(store.device() != nullptr ? *store.device() : Device::Cpu()),
        queue_(pool_.device(), &pool_) {
    const DType gradient = plan::TypesOf(plan, engine::InfoOf(store)).gradients;
    parameters_ = use.of_others;
    for (const auto& parameter : store.parameters()) {
      if (parameter->unit() == unit) parameters_.push_back(parameter.get());
    }
    for (Parameter* parameter : parameters_) {
      parameter->BindValue(Zeros(parameter->dtype(), parameter->shape()));
      if (!parameter->frozen()) parameter->BindGradient(Zeros(gradient, parameter->shape()));
    }
    store_.OnAddUp([](const Tensor&) {});  // zeros of one rank are the sum
    for (const Shape& shape : received) received_.push_back(Zeros(store.dtype(), shape));
    for (const Shape& shape : use.passed_on) passed_back_.push_back(Zeros(store.dtype(), shape));
  }
  ~UnitAlone() {
    store_.OnAddUp(nullptr);
    for (Parameter* parameter : parameters_) parameter->Unbind();
  }
  UnitAlone(const UnitAlone&) = delete;
  UnitAlone& operator=(const UnitAlone&) = delete;

  // How long a forward and a backward pass take.
  absl::StatusOr<absl::Duration> Run(const UnitModel& model, const ModelInput& input) {
    Tape tape(pool_);
    tape.set_recompute(plan_.recompute);
    MUSTER_RETURN_IF_ERROR(AwaitDevice(tape));
    const MonoTime begin = MonoNow();
    MUSTER_ASSIGN_OR_RETURN(const StageOutput output,
                            model(tape, {unit_, unit_ + 1}, input, engine::Watch(tape, received_)));
    MUSTER_RETURN_IF_ERROR(tape.status());
    if (passed_back_.empty()) {
      tape.Backward(output.loss.output);
    } else if (engine::NeedGradients(output.passed_on)) {  // else all before it is frozen
      std::vector<Tape::Seed> seeds = engine::SeedsOf(output.passed_on, passed_back_);
      tape.Backward(absl::MakeSpan(seeds));
    }
    MUSTER_RETURN_IF_ERROR(tape.status());
    MUSTER_RETURN_IF_ERROR(AwaitDevice(tape));
    return MonoNow() - begin;
  }

 private:
  Tensor Zeros(DType dtype, const Shape& shape) {
    Tensor zeros = pool_.Allocate(dtype, shape);
    pool_.device().operations(dtype).fill(queue_, 0, zeros);
    return zeros;
  }

  absl::Status AwaitDevice(Tape& tape) {
    if (parameters_.empty() && received_.empty()) return absl::OkStatus();
    const Tensor& any = parameters_.empty() ? received_[0] : parameters_[0]->value();
    char byte = 0;
    return pool_.device().Download(tape.queue(), any.raw_data(), &byte, 1);
  }

  ParameterStore& store_;
  const Plan& plan_;
  const int unit_;
  TensorPool pool_;
  Queue queue_;
  std::vector<Parameter*> parameters_;
  std::vector<Tensor> received_;     // empty: the first unit's
  std::vector<Tensor> passed_back_;  // empty: the last unit's
};

// Units of one kind cost alike.
std::string KindOf(const ParameterStore& store, int unit, const engine::UnitUse& use) {
  std::string kind = absl::StrCat(use.products, " ", engine::TextOfShapes(use.passed_on));
  for (const auto& parameter : store.parameters()) {
    if (parameter->unit() != unit) continue;
    absl::StrAppend(&kind, " ", parameter->shape().ToString(),
                    parameter->frozen() ? " frozen" : "");
  }
  for (const Parameter* parameter : use.of_others) absl::StrAppend(&kind, " ", parameter->name());
  return kind;
}

// Three digits, which is more than a measurement is worth.
double Readable(double milliseconds) {
  double readable = 0;
  MUSTER_CHECK(absl::SimpleAtod(absl::StrFormat("%.3g", milliseconds), &readable));
  return readable;
}

}  // namespace

absl::StatusOr<std::vector<UnitCost>> MeasureUnitCosts(ParameterStore& store, const Plan& plan,
                                                       const UnitModel& model, int64_t batch,
                                                       int64_t sequence) {
  MUSTER_RETURN_IF_ERROR(engine::CheckIsFree(store));
  MUSTER_RETURN_IF_ERROR(engine::FreezeGroups(store, plan).status());
  MUSTER_ASSIGN_OR_RETURN(
      const std::vector<engine::UnitUse> uses,
      engine::UsesOfUnits(store, plan, model, engine::SampleInput(batch, sequence)));
  const ZeroBatch zeros(batch, sequence);
  std::map<std::string, double> cost_of_kind;
  std::vector<double> costs;
  for (int u = 0; u < static_cast<int>(uses.size()); ++u) {
    const auto [known, is_new] =
        cost_of_kind.emplace(KindOf(store, u, uses[u]), std::numeric_limits<double>::infinity());
    if (is_new) {
      const auto received = u == 0 ? absl::Span<const Shape>() : uses[u - 1].passed_on;
      UnitAlone unit(store, plan, u, uses[u], received);
      for (int run = 0; run < kRuns; ++run) {
        MUSTER_ASSIGN_OR_RETURN(const absl::Duration took, unit.Run(model, zeros.input()));
        known->second = std::min(known->second, absl::ToDoubleMilliseconds(took));
      }
    }
    costs.push_back(Readable(known->second));
  }
  return plan::ListCosts(store.unit_names(), costs);
}

}  // namespace muster
