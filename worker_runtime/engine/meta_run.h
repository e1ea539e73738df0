// What a micro-batch does to parameters and memory, found out without either: a forward and a
// backward pass on the meta device.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "muster/cuda_attention.h"
#include "muster/device.h"
#include "muster/layers.h"
#include "muster/parameter.h"
#include "muster/pipeline.h"
#include "muster/plan.h"
#include "muster/tape.h"
#include "muster/tensor.h"
#include "worker_runtime/plan/parameter_info.h"
#include "worker_runtime/plan/update_plan.h"
#include "worker_runtime/plan/use_trace.h"

namespace muster::engine {

// That of the host, or that of GPUs on which `attention` is asked for.
const Device& MetaDevice(bool on_gpus, CudaAttention attention = CudaAttention::kOwn,
                         SumMode mode = SumMode::kFast);
// The one whose layers go as those of the store's device.
const Device& MetaDeviceOf(const ParameterStore& store);

// Errors: kFailedPrecondition: parameters of the store have memory, which a run or an engine would
// take from its owner: another engine, or the program.
absl::Status CheckIsFree(const ParameterStore& store);

// Runs `loss` on a tape of the meta device, and its backward pass, as `plan` lets an engine.
// Parameters that have no memory get sizes for the time of the run; of tokens only the number
// matters (see SizesOf).
//
// Errors: CheckIsFree's; those of `loss`. What reads a value ends the process: there are none.
absl::StatusOr<plan::UseTrace> RecordUse(ParameterStore& store, const Plan& plan,
                                         absl::FunctionRef<absl::StatusOr<Loss>(Tape& tape)> loss,
                                         const Device& meta = Device::Meta());

// Gives every parameter of a store that is free (CheckIsFree) sizes, as an engine of `plan` has
// them, and takes them back, as it does the store's listeners.
//
// Threads: thread-compatible.
class MetaBinding {
 public:
  // The store outlives this.
  MetaBinding(ParameterStore& store, const Plan& plan, const Device& meta);
  ~MetaBinding();
  MetaBinding(const MetaBinding&) = delete;
  MetaBinding& operator=(const MetaBinding&) = delete;

 private:
  ParameterStore& store_;
  TensorPool pool_;
};

// What a stage does with a micro-batch.
using StageRun = absl::FunctionRef<absl::StatusOr<StageOutput>(
    Tape& tape, absl::Span<const Activation> received)>;

// The same as RecordUse of a stage of a pipeline, with the number of its targets in the last.
//
// Errors: RecordUse's; CheckPassedOn's (boundary.h).
absl::StatusOr<plan::UseTrace> RecordStageUse(ParameterStore& store, const Plan& plan,
                                              const PipelineCut& cut, int stage, StageRun run,
                                              const Device& meta = Device::Meta());

// So many token ids, none of which may be read.
absl::Span<const int32_t> SizesOf(int64_t num_tokens);

// The parameters as a plan sees them.
std::vector<plan::ParameterInfo> InfoOf(const ParameterStore& store);

// How each parameter is updated. Freezes what the plan's groups freeze: before a meta run or an
// engine, since nothing is laid out for it. Errors: plan::PlanUpdates'.
absl::StatusOr<std::vector<plan::ParameterUpdate>> FreezeGroups(ParameterStore& store,
                                                                const Plan& plan);

}  // namespace muster::engine
