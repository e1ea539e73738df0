#include "worker_runtime/engine/meta_run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/engine/boundary.h"
#include "worker_runtime/nn/meta_gpu.h"
#include "worker_runtime/nn/operations.h"
#include "worker_runtime/plan/stage_order.h"
#include "worker_runtime/plan/state_types.h"

namespace muster::engine {
namespace {

// The passes of one stage without numbers, and which units and parameters they use.
class StageRecording {
 public:
  // `store` is free.
  StageRecording(ParameterStore& store, const Plan& plan, const PipelineCut& cut, int stage,
                 const Device& meta)
      : store_(store),
        plan_(plan),
        cut_(cut),
        stage_(stage),
        binding_(store, plan, meta),
        boundary_(meta),
        pool_(meta),
        tape_(pool_) {
    tape_.set_recompute(plan.recompute);
    for (const auto& parameter : store.parameters()) {
      if (parameter->frozen()) trace_.gradients.push_back(parameter->index());  // never waited for
    }
    store.OnUse([this](Parameter& parameter) { NoteUse(parameter); });
    store.OnAddUp([this](const Tensor& part) { NoteSum(part); });
    tape_.OnGradientReady(
        [this](Parameter& parameter) { trace_.gradients.push_back(parameter.index()); });
  }
  StageRecording(const StageRecording&) = delete;
  StageRecording& operator=(const StageRecording&) = delete;

  absl::StatusOr<plan::UseTrace> Run(StageRun run) {
    const std::vector<Activation> received =
        Watch(tape_, Allocate(boundary_, store_.dtype(), cut_.received[stage_]));
    MUSTER_ASSIGN_OR_RETURN(const StageOutput output, run(tape_, received));
    MUSTER_RETURN_IF_ERROR(tape_.status());
    trace_.kept_bytes = static_cast<int64_t>(pool_.usage().bytes_in_use);
    const bool splits = plan::SplitsBackward(plan_);
    MUSTER_RETURN_IF_ERROR(RunBackward(output, splits));
    TakeGradients(tape_, received);  // what is handed back is counted where it is sent
    if (splits) {
      trace_.weights_bytes = static_cast<int64_t>(pool_.usage().bytes_in_use);
      uses_ = &trace_.weights;
      tape_.BackwardWeights();
    }
    MUSTER_RETURN_IF_ERROR(tape_.status());
    // Micro-batches after the first find the blocks of the one before.
    const auto reserved = static_cast<int64_t>(pool_.usage().bytes_reserved);
    trace_.peak_bytes = std::max(reserved, trace_.kept_bytes);
    return std::move(trace_);
  }

 private:
  void NoteUse(const Parameter& parameter) {
    if (uses_->empty() || uses_->back() != parameter.unit()) uses_->push_back(parameter.unit());
    if (uses_ != &trace_.backward || parameter.frozen()) return;
    std::vector<plan::BackwardUse>& all = trace_.backward_uses;
    if (!all.empty() && all.back().parameter == parameter.index()) return;
    all.push_back(
        {.parameter = parameter.index(), .finished = static_cast<int>(trace_.gradients.size())});
  }

  void NoteSum(const Tensor& part) {
    const bool is_forward = uses_ == &trace_.forward;
    (is_forward ? trace_.forward_sums : trace_.backward_sums)
        .push_back({.uses = static_cast<int>(uses_->size()),
                    .parameters = static_cast<int>(trace_.backward_uses.size()),
                    .finished = static_cast<int>(trace_.gradients.size()),
                    .bytes = static_cast<int64_t>(part.num_bytes())});
  }

  absl::Status RunBackward(const StageOutput& output, bool splits) {
    uses_ = &trace_.backward;
    if (stage_ + 1 == cut_.stages()) {
      trace_.num_tokens = output.loss.num_tokens;
      // Where there is a loss scale, the first gradient is no longer known to be 1.
      const double scale = plan_.loss_scaling.kind != LossScaling::Kind::kNone ? 2 : 1;
      const Activation& loss = output.loss.output;
      splits ? tape_.BackwardInputs(loss, scale) : tape_.Backward(loss, scale);
      return absl::OkStatus();
    }
    const std::vector<Shape>& shapes = cut_.received[stage_ + 1];
    MUSTER_RETURN_IF_ERROR(CheckPassedOn(output.passed_on, shapes, store_.dtype(), stage_));
    std::vector<Tape::Seed> seeds =
        SeedsOf(output.passed_on, Allocate(boundary_, store_.dtype(), shapes));
    splits ? tape_.BackwardInputs(absl::MakeSpan(seeds)) : tape_.Backward(absl::MakeSpan(seeds));
    return absl::OkStatus();
  }

  ParameterStore& store_;
  const Plan& plan_;
  const PipelineCut& cut_;
  const int stage_;
  plan::UseTrace trace_;
  std::vector<int>* uses_ = &trace_.forward;
  const MetaBinding binding_;
  TensorPool boundary_;  // what is received and handed back is not the tape's
  TensorPool pool_;
  Tape tape_;
};

}  // namespace

MetaBinding::MetaBinding(ParameterStore& store, const Plan& plan, const Device& meta)
    : store_(store), pool_(meta) {
  const DType gradient = plan::TypesOf(plan, InfoOf(store)).gradients;
  for (const auto& parameter : store.parameters()) {
    parameter->BindValue(pool_.Allocate(parameter->dtype(), parameter->shape()));
    if (parameter->frozen()) continue;
    parameter->BindGradient(pool_.Allocate(gradient, parameter->shape()));
  }
}

MetaBinding::~MetaBinding() {
  store_.OnUse(nullptr);
  store_.OnAddUp(nullptr);
  for (const auto& parameter : store_.parameters()) parameter->Unbind();
}

const Device& MetaDevice(bool on_gpus, CudaAttention attention, SumMode mode) {
  if (!on_gpus) return Device::Meta();
  const bool is_auto = attention == CudaAttention::kAuto;
  if (attention == CudaAttention::kOwn || (is_auto && mode == SumMode::kOrdered)) {
    return MetaOfGpus();
  }
  return MetaOfGpus(mode == SumMode::kOrdered ? GpuAttention::kLibrarySameBits
                                              : GpuAttention::kLibrary);
}

const Device& MetaDeviceOf(const ParameterStore& store) {
  const Device* const device = store.device();
  return device == nullptr ? Device::Meta() : device->meta();
}

absl::Status CheckIsFree(const ParameterStore& store) {
  const auto taken = std::find_if(store.parameters().begin(), store.parameters().end(),
                                  [](const auto& p) { return !p->value().empty(); });
  const bool is_taken = taken != store.parameters().end();
  if (!is_taken && !store.is_listened_to()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "this parameter store is in use: ",
      is_taken ? absl::StrCat((*taken)->name(), " has memory already") : "an engine trains it",
      "; each engine needs its own ParameterStore, with the model declared in it again"));
}

absl::StatusOr<plan::UseTrace> RecordUse(ParameterStore& store, const Plan& plan,
                                         absl::FunctionRef<absl::StatusOr<Loss>(Tape& tape)> loss,
                                         const Device& meta) {
  return RecordStageUse(
      store, plan, {}, 0,
      [&](Tape& tape, absl::Span<const Activation>) -> absl::StatusOr<StageOutput> {
        MUSTER_ASSIGN_OR_RETURN(Loss made, loss(tape));
        return StageOutput{.loss = std::move(made)};
      },
      meta);
}

absl::StatusOr<plan::UseTrace> RecordStageUse(ParameterStore& store, const Plan& plan,
                                              const PipelineCut& cut, int stage, StageRun run,
                                              const Device& meta) {
  MUSTER_RETURN_IF_ERROR(CheckIsFree(store));
  return StageRecording(store, plan, cut, stage, meta).Run(run);
}

absl::Span<const int32_t> SizesOf(int64_t num_tokens) {
  return absl::Span<const int32_t>(nullptr, static_cast<size_t>(num_tokens));
}

std::vector<plan::ParameterInfo> InfoOf(const ParameterStore& store) {
  std::vector<plan::ParameterInfo> parameters;
  for (const auto& parameter : store.parameters()) {
    plan::ParameterInfo info = {.name = parameter->name(),
                                .unit = parameter->unit(),
                                .weight_decay = parameter->spec().weight_decay,
                                .frozen = parameter->frozen(),
                                .cut = parameter->part().is_cut(),
                                .dtype = parameter->dtype()};
    for (int i = 0; i < parameter->shape().rank(); ++i) info.shape.push_back(parameter->shape()[i]);
    parameters.push_back(std::move(info));
  }
  return parameters;
}

absl::StatusOr<std::vector<plan::ParameterUpdate>> FreezeGroups(ParameterStore& store,
                                                                const Plan& plan) {
  MUSTER_ASSIGN_OR_RETURN(std::vector<plan::ParameterUpdate> updates,
                          plan::PlanUpdates(plan, InfoOf(store)));
  for (size_t i = 0; i < updates.size(); ++i) {
    if (updates[i].frozen) store.parameters()[i]->Freeze();
  }
  return updates;
}

}  // namespace muster::engine
