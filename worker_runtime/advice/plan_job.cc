#include "worker_runtime/advice/plan_job.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/cuda_device.h"
#include "muster/decoder.h"
#include "muster/parameter.h"
#include "proto/base/field_error.h"
#include "proto/base/status_macros.h"
#include "proto/io/sha256.h"
#include "worker_runtime/engine/cut_model.h"
#include "worker_runtime/engine/meta_run.h"
#include "worker_runtime/plan/batch_equation.h"
#include "worker_runtime/plan/block_layout.h"
#include "worker_runtime/plan/mesh.h"
#include "worker_runtime/plan/mesh_page.h"
#include "worker_runtime/plan/plan_text.h"
#include "worker_runtime/plan/stage_cut.h"
#include "worker_runtime/plan/stage_order.h"

namespace muster::advice {
namespace {

constexpr int64_t kUsualRanksOfNode = 8;

// Sizes whose products would not fit 64 bits are mistakes. In double, which cannot overflow.
absl::Status CheckCountable(const plan::PlanOptions& options) {
  const DecoderConfig& model = options.model;
  const double rows = static_cast<double>(options.batch_size) * static_cast<double>(model.context);
  const auto width = static_cast<double>(
      std::max({4 * model.hidden_size, model.qkv_width(), 2 * model.mlp_width()}));
  const double widest = width * 16.0;
  const double bytes =
      8 * rows *
      (static_cast<double>(model.vocabulary) + widest + widest * static_cast<double>(model.layers));
  if (bytes <= static_cast<double>(int64_t{1} << 60)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "a micro-batch of ", options.batch_size, " sequences of ", model.context,
      " tokens would take up to ", bytes, " bytes of activations; at most 2^60 can be planned"));
}

// Our attention kernels on a GPU have no wider heads; what cuDNN has, it says when it is asked.
absl::Status CheckHeads(const plan::PlanOptions& options) {
  const DecoderConfig& model = options.model;
  const bool is_ours =
      SizeOf(options.dtype) >= SizeOf(DType::kF32) ||
      options.cuda_attention == CudaAttention::kOwn ||
      (options.cuda_attention == CudaAttention::kAuto && options.plan.mode == SumMode::kOrdered);
  const int64_t width = model.head_width();
  if (options.device == "cpu" || !is_ours || width <= kCudaWidestHead) return absl::OkStatus();
  if (model.head_size != 0) {
    return FieldError("head_size",
                      absl::StrCat(" must be at most ", kCudaWidestHead, " on a GPU, not ", width,
                                   ": attention kernels there have no wider heads; or train with "
                                   "--device=cpu"));
  }
  int64_t heads = model.heads;
  while (model.hidden_size % heads != 0 || model.hidden_size / heads > kCudaWidestHead) ++heads;
  return FieldError("heads",
                    absl::StrCat(" must be ", heads, " or more on a GPU, not ", model.heads,
                                 ": each of them has ", width, " numbers of the hidden size ",
                                 model.hidden_size, ", and attention kernels there have at most ",
                                 kCudaWidestHead, "; or train with --device=cpu"));
}

absl::Status AddModel(int stages, const Device* device, plan::PlanPageInput& job) {
  const plan::PlanOptions& options = job.options;
  const Device& meta =
      device != nullptr
          ? device->meta()
          : engine::MetaDevice(options.device != "cpu", options.cuda_attention, options.plan.mode);
  MUSTER_RETURN_IF_ERROR(CheckHeads(options));
  ParameterStore store(options.dtype, TensorRanks::Of(0, options.plan.tensor_ranks));
  MUSTER_ASSIGN_OR_RETURN(const auto model,
                          Decoder::Create(options.model, store, options.adapters));
  const ModelInput sample = engine::SampleInput(options.batch_size, options.model.context);
  MUSTER_RETURN_IF_ERROR(engine::FreezeGroups(store, options.plan).status());
  MUSTER_ASSIGN_OR_RETURN(const PipelineCut cut,
                          engine::CutModel(store, options.plan, stages, model->Units(), sample));
  MUSTER_ASSIGN_OR_RETURN(
      const std::vector<plan::UseTrace> traces,
      engine::RecordStages(store, options.plan, cut, model->Units(), sample, meta));
  job.parameters = engine::InfoOf(store);
  job.unit_names = store.unit_names();
  job.stages = engine::StagesOf(store, plan::PlanBlockLayout(job.parameters), cut, traces);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<plan::PlanPageInput> PlanJob(plan::PlanOptions options, const JobShape& shape) {
  if (options.measures_unit_costs) {
    return FieldError("--unit_costs",
                      "=measured: nothing is run here; give the costs that muster-train prints");
  }
  const int64_t of_node = shape.ranks_of_node != 0 ? shape.ranks_of_node
                                                   : std::min(kUsualRanksOfNode, shape.world_size);
  options.plan = CompletePlan(options.plan, of_node);
  MUSTER_ASSIGN_OR_RETURN(const int places,
                          NumStages(options.plan, static_cast<int>(shape.world_size)));
  MUSTER_RETURN_IF_ERROR(plan::CheckStagesPerRank(options.plan));
  options.plan.stages = places;
  MUSTER_ASSIGN_OR_RETURN(const plan::Mesh mesh,
                          plan::MeshOf(options.plan, places, static_cast<int>(shape.world_size)));
  MUSTER_RETURN_IF_ERROR(plan::CheckReplicas(options.plan, mesh, options.replicas));
  MUSTER_RETURN_IF_ERROR(plan::SpreadBatch(options, mesh.replicas()));
  MUSTER_ASSIGN_OR_RETURN(const plan::Schedule schedule, plan::ScheduleOf(options.plan, places));
  const int stages = schedule.num_stages();
  MUSTER_RETURN_IF_ERROR(CheckCountable(options));
  const bool on_gpus = options.device != "cpu";
  plan::PlanPageInput job = {.options = std::move(options),
                             .world_size = shape.world_size,
                             .ranks_of_node = of_node,
                             .gpu_bytes = on_gpus ? kCudaWorkspaceBytes : 0,
                             .pinned_bytes_max = on_gpus ? kCudaPinnedBytesMax : 0};
  MUSTER_RETURN_IF_ERROR(AddModel(stages, shape.device, job));
  MUSTER_RETURN_IF_ERROR(
      plan::CheckSchedule({.plan = job.options.plan,
                           .parameters = job.parameters,
                           .types = plan::TypesOf(job.options.plan, job.parameters),
                           .mesh = mesh,
                           .stages = job.stages},
                          schedule));
  job.reduction = plan::DecideReduction(job);
  if (job.reduction.chosen != GradientReduction::kChosen) {
    job.options.plan.gradient_reduction = job.reduction.chosen;
  }
  job.hash = Sha256().Add(plan::CanonicalText(job.options.plan, job.parameters)).Finish();
  return job;
}

absl::Status CheckOffload(const plan::PlanPageInput& job) {
  return plan::CheckOffload(job.options, &job);
}

}  // namespace muster::advice
