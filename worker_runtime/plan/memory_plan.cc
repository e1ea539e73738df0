#include "worker_runtime/plan/memory_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/plan/flat_layout.h"
#include "worker_runtime/plan/gpt_activations.h"
#include "worker_runtime/plan/gpt_parameters.h"
#include "worker_runtime/plan/ordered_sums.h"

namespace muster::plan {
namespace {

constexpr double kMostBytes = static_cast<double>(int64_t{1} << 60);

absl::Status CheckIsReplicated(const Plan& plan) {
  const StatePlan replicated;
  if (plan.parameters == replicated && plan.gradients == replicated &&
      plan.optimizer == replicated) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(
      "sharded or offloaded states are not in this version yet; what there is: plan ddp");
}

int64_t MostPartialSums(const Plan& plan, int64_t world_size) {
  int64_t most = 0;
  if (plan.mode != SumMode::kOrdered) return most;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    most = std::max(most, OrderedPartialSums(rank, world_size, plan.accumulation));
  }
  return most;
}

}  // namespace

absl::StatusOr<MemoryPlan> PlanMemory(const Plan& plan, const GptConfig& model,
                                      const Workload& workload) {
  MUSTER_RETURN_IF_ERROR(CheckIsReplicated(plan));
  const MicroBatch micro_batch = {
      .batch = workload.batch_size, .sequence = model.context, .dtype = workload.dtype};
  if (const double bytes = EstimateGptActivationBytes(model, micro_batch); bytes > kMostBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a micro-batch of ", workload.batch_size, " sequences of ", model.context,
        " tokens would take ", bytes, " bytes of activations; at most 2^60 can be planned"));
  }
  const int64_t flat = PlanFlatLayout(GptParameters(model)).num_elements *
                       static_cast<int64_t>(SizeOf(workload.dtype));
  return MemoryPlan{.parameters = flat,
                    .gradients = flat,
                    .partial_sums = flat * MostPartialSums(plan, workload.world_size),
                    .optimizer = 2 * flat,
                    .activations = GptActivationBytes(model, micro_batch)};
}

}  // namespace muster::plan
