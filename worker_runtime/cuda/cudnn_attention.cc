// Attention by cuDNN: a plan for each shape and pass, kept from the first call on.
#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "proto/base/mutex.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/cuda/attention_library.h"
#include "worker_runtime/cuda/cudnn_attention_graph.h"
#include "worker_runtime/cuda/cudnn_engines.h"
#include "worker_runtime/kernels/library_attention.h"

namespace muster {
namespace {

using cudnn::Binding;
using cudnn::Pass;

// Where Q, K and V begin in rows that hold them side by side.
struct Parts {
  Parts(const void* packed, const kernels::AttentionShape& shape) : q(const_cast<void*>(packed)) {
    constexpr int64_t kElementBytes = 2;
    const auto at = [&](int64_t heads) {
      return static_cast<char*>(q) + heads * shape.head_width * kElementBytes;
    };
    k = at(shape.heads);
    v = at(shape.heads + shape.key_heads());
  }
  void *q, *k, *v;
};

class CudnnAttention final : public AttentionLibrary {
 public:
  CudnnAttention(CudaApi& cuda, std::shared_ptr<const cudnn::Library> library)
      : cuda_(cuda), library_(std::move(library)) {}
  ~CudnnAttention() override {
    plans_.clear();
    if (handle_ != nullptr) library_->destroy(handle_);
  }

  absl::Status Begin() {
    MUSTER_RETURN_IF_ERROR(cuda_.MakeCurrent());
    return library_->ToStatus(library_->create(&handle_), "cudnnCreate");
  }

  std::string name() const override { return library_->name(); }

  absl::Status Prepare(const LibraryAttention& attention) override {
    base::MutexLock lock(mu_);
    const auto found = plans_.find(attention);
    if (found != plans_.end()) return found->second.status();
    absl::StatusOr<Plans> made = MakePlans(attention);
    if (!made.ok()) {
      const kernels::AttentionShape& s = attention.shape;
      made = absl::Status(
          made.status().code(),
          absl::StrCat(made.status().message(), " (attention of ", s.heads, " heads of ",
                       s.head_width, ", keys of ", s.key_heads(), ", over ", s.batch,
                       " sequences of ", s.sequence, " in ", ToString(attention.type),
                       attention.same_bits ? ", with the same bits in every run)" : ")"));
    }
    return plans_.emplace(attention, std::move(made)).first->second.status();
  }

  kernels::AttentionWorkspace WorkspaceOf(const LibraryAttention& attention) override {
    kernels::AttentionWorkspace bytes = PlannedWorkspace(attention);
    base::MutexLock lock(mu_);
    const auto found = plans_.find(attention);
    if (found == plans_.end() || !found->second.ok()) return bytes;
    const auto own = kernels::LibraryBackward(attention.shape, attention.same_bits);
    const auto more = [](const Planned& planned, int64_t of_library) {
      return std::max<int64_t>(0, planned.plan.workspace_bytes - of_library);
    };
    bytes.forward += more(found->second->forward, bytes.forward);
    bytes.backward += more(found->second->backward, own.workspace);
    return bytes;
  }

  absl::Status Forward(CudaStream stream, const LibraryAttention& attention,
                       const AttentionForwardArrays& arrays) override {
    const Parts qkv(arrays.qkv, attention.shape);
    float scale = attention.shape.ScoreScale<float>(), masked = kMaskedScore;
    const std::vector<Binding> bindings = {{cudnn::kQ, qkv.q},
                                           {cudnn::kK, qkv.k},
                                           {cudnn::kV, qkv.v},
                                           {cudnn::kOut, arrays.out},
                                           {cudnn::kLogSums, arrays.log_sums},
                                           {cudnn::kScale, &scale},
                                           {cudnn::kMasked, &masked}};
    return Run(stream, Pass::kForward, attention, bindings, arrays.workspace);
  }

  absl::Status Backward(CudaStream stream, const LibraryAttention& attention,
                        const AttentionBackwardArrays& arrays) override {
    const kernels::AttentionShape& shape = attention.shape;
    const auto memory = kernels::LibraryBackward(shape, attention.same_bits);
    char* const begin = static_cast<char*>(arrays.workspace);
    const Parts qkv(arrays.qkv, shape), dqkv(arrays.dqkv, shape);
    float scale = shape.ScoreScale<float>(), masked = kMaskedScore, one = 1;
    std::vector<Binding> bindings = {{cudnn::kQ, qkv.q},
                                     {cudnn::kK, qkv.k},
                                     {cudnn::kV, qkv.v},
                                     {cudnn::kOut, const_cast<void*>(arrays.out)},
                                     {cudnn::kDOut, const_cast<void*>(arrays.dout)},
                                     {cudnn::kLogSums, const_cast<float*>(arrays.log_sums)},
                                     {cudnn::kDQ, dqkv.q},
                                     {cudnn::kDK, dqkv.k},
                                     {cudnn::kDV, dqkv.v},
                                     {cudnn::kRowSums, begin},
                                     {cudnn::kScale, &scale},
                                     {cudnn::kMasked, &masked},
                                     {cudnn::kOne, &one}};
    if (!attention.same_bits) bindings.push_back({cudnn::kQuerySums, begin + memory.row_sums});
    return Run(stream, Pass::kBackward, attention, bindings,
               begin + memory.row_sums + memory.query_sums);
  }

 private:
  static constexpr float kMaskedScore = -std::numeric_limits<float>::infinity();

  struct Planned {
    cudnn::OperationGraph graph;
    cudnn::ExecutionPlan plan;
  };
  struct Plans {
    Planned forward, backward;
  };

  absl::StatusOr<Planned> MakePlan(Pass pass, const LibraryAttention& attention) {
    cudnn::EngineNeeds needs = cudnn::NeedsOf(pass, attention);
    absl::StatusOr<Planned> planned = MakePlanWithin(needs, pass, attention);
    if (!absl::IsUnimplemented(planned.status())) return planned;
    needs.workspace_bytes_max = std::numeric_limits<int64_t>::max();
    return MakePlanWithin(needs, pass, attention);
  }

  absl::StatusOr<Planned> MakePlanWithin(cudnn::EngineNeeds needs, Pass pass,
                                         const LibraryAttention& attention) {
    Planned planned;
    MUSTER_ASSIGN_OR_RETURN(planned.graph,
                            cudnn::AttentionGraph(*library_, pass, attention, handle_));
    MUSTER_ASSIGN_OR_RETURN(
        const std::vector<cudnn::Engine> engines,
        cudnn::FindEngines(*library_, planned.graph, {.handle = handle_}, needs));
    MUSTER_ASSIGN_OR_RETURN(
        planned.plan, cudnn::MakePlan(*library_, engines, handle_, needs.workspace_bytes_max));
    return planned;
  }

  absl::StatusOr<Plans> MakePlans(const LibraryAttention& attention) {
    MUSTER_RETURN_IF_ERROR(cuda_.MakeCurrent());
    Plans plans;
    MUSTER_ASSIGN_OR_RETURN(plans.forward, MakePlan(Pass::kForward, attention));
    MUSTER_ASSIGN_OR_RETURN(plans.backward, MakePlan(Pass::kBackward, attention));
    return plans;
  }

  absl::Status Run(CudaStream stream, Pass pass, const LibraryAttention& attention,
                   const std::vector<Binding>& bindings, void* workspace) {
    base::MutexLock lock(mu_);
    const auto found = plans_.find(attention);
    if (found == plans_.end() || !found->second.ok()) {
      return absl::InternalError("cuDNN: attention of a shape that was not prepared");
    }
    const Planned& planned =
        pass == Pass::kForward ? found->second->forward : found->second->backward;
    MUSTER_RETURN_IF_ERROR(library_->ToStatus(
        library_->set_stream(handle_, static_cast<cudaStream_t>(stream)), "cudnnSetStream"));
    MUSTER_ASSIGN_OR_RETURN(const cudnn::Descriptor arguments,
                            cudnn::Arguments(*library_, bindings, workspace));
    return cudnn::Execute(*library_, handle_, planned.plan, arguments);
  }

  CudaApi& cuda_;
  const std::shared_ptr<const cudnn::Library> library_;
  cudnnHandle_t handle_ = nullptr;  // constant after Begin
  base::Mutex mu_;
  // The plans of shapes, or why a shape cannot be.
  std::map<LibraryAttention, absl::StatusOr<Plans>> plans_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<AttentionLibrary>> MakeCudnnAttention(CudaApi& cuda) {
  MUSTER_ASSIGN_OR_RETURN(std::shared_ptr<const cudnn::Library> library, cudnn::OpenLibrary());
  auto attention = std::make_unique<CudnnAttention>(cuda, std::move(library));
  MUSTER_RETURN_IF_ERROR(attention->Begin());
  return attention;
}

absl::StatusOr<std::string> NameCudnn() {
  MUSTER_ASSIGN_OR_RETURN(const std::shared_ptr<const cudnn::Library> library,
                          cudnn::OpenLibrary());
  return library->name();
}

}  // namespace muster
