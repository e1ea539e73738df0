// Sizes only: every kernel is counted, none runs.
#include <algorithm>
#include <memory>
#include <utility>

#include "muster/cuda_device.h"
#include "worker_runtime/kernels/cuda_kernels.h"
#include "worker_runtime/kernels/library_attention.h"
#include "worker_runtime/kernels/logit_chunks.h"
#include "worker_runtime/nn/kernel_table.h"
#include "worker_runtime/nn/linear_in_passes.h"
#include "worker_runtime/nn/meta_gpu.h"
#include "worker_runtime/nn/narrow_operations.h"
#include "worker_runtime/nn/operations.h"
#include "worker_runtime/nn/row_view.h"

namespace muster {
namespace {

struct Counted {
  template <auto kMember, Role...>
  struct Kernel;
  template <typename Result, typename... Args, Result (*Operations::*kMember)(Queue&, Args...),
            Role... kRoles>
  struct Kernel<kMember, kRoles...> {
    static Result Run(Queue& queue, Args...) {
      queue.Count();
      return Result();
    }
  };
};

void CountProduct(Queue& queue, Product product, const Tensor&, const Tensor&, const Tensor&) {
  queue.Count();
  queue.CountFlops(2.0 * static_cast<double>(product.m) * static_cast<double>(product.n) *
                   static_cast<double>(product.k));
}

// Counts the two products of attention, as if nothing were masked.
void CountAttention(Queue& queue, kernels::AttentionShape shape, const Tensor&, const Tensor&,
                    const Tensor&, const Tensor&) {
  queue.Count();
  const auto scores = static_cast<double>(shape.query_rows()) * static_cast<double>(shape.sequence);
  queue.CountFlops(4 * scores * static_cast<double>(shape.head_width));
}

kernels::CrossEntropySum CountCrossEntropy(Queue& queue, const Tensor& logits, const int32_t*,
                                           const Tensor&, const Tensor&, const Tensor&) {
  queue.Count();
  return {.num_tokens = RowsOf(logits.shape()).rows};
}

constexpr Operations CountedTable() {
  Operations table = TableOfForm<Counted>();
  table.multiply = &CountProduct;
  table.attention_forward = &CountAttention;
  table.cross_entropy = &CountCrossEntropy;
  return table;
}
constexpr Operations kCounted = CountedTable();

class MetaGpu final : public Device {
 public:
  explicit MetaGpu(GpuAttention attention, WorkspaceOf workspace_of = nullptr)
      : attention_(attention), workspace_of_(std::move(workspace_of)) {}

  absl::string_view name() const override { return "meta cuda"; }
  bool has_elements() const override { return false; }
  const Device& meta() const override { return *this; }
  bool ComputesIn(DType dtype) const override { return CudaComputesIn(dtype); }
  // The ways are those of CudaOperations.
  const Operations& operations(DType dtype) const override;

  // The formula, or what the library says where that is more.
  kernels::AttentionWorkspace BytesOf(const kernels::AttentionShape& shape, DType type) const {
    const bool same_bits = attention_ == GpuAttention::kLibrarySameBits;
    kernels::AttentionWorkspace bytes;
    if (workspace_of_) bytes = workspace_of_(shape, type);
    bytes.forward = std::max(bytes.forward, kernels::LibraryForwardBytes());
    bytes.backward = std::max(bytes.backward, kernels::LibraryBackward(shape, same_bits).bytes());
    return bytes;
  }

 private:
  const GpuAttention attention_;
  const WorkspaceOf workspace_of_;
};

// What a GPU's kernels work in.
struct GpuKernels {
  static constexpr int64_t kFloat = sizeof(float);
  static Tensor Take(Queue& queue, DType dtype, int64_t count) {
    return queue.memory() == nullptr ? Tensor() : queue.memory()->Allocate(dtype, {count});
  }
  static void SumLosses(Queue& queue, int64_t rows) {
    Take(queue, DType::kF64, kernels::cuda::TreeScratch(rows) + 1);
  }
  static void BiasGradient(Queue& queue, const Tensor& dy, const Tensor&, bool) {
    Take(queue, DType::kF32, kernels::cuda::ColumnScratch(RowsOf(dy.shape())));
    queue.Count();
  }
  // The sums of dbias are made on the product's way, or in a pass of its own once that was refused:
  // cuBLASLt decides.
  static void LinearWeight(Queue& queue, const Tensor& dy, const Tensor& x,
                           Operations::GradientSum dweight, Operations::GradientSum dbias) {
    Tensor sums;
    const bool has_both = !dweight.to.empty() && !dbias.to.empty();
    if (has_both && dweight.to.dtype() == dbias.to.dtype()) {
      sums = Take(queue, dbias.to.dtype(), dbias.to.num_elements());
    }
    LinearInPasses::LinearWeight(queue, dy, x, dweight, dbias);
  }
  static void NormBackward(Queue& queue, Operations::Norm in, const Tensor&,
                           Operations::NormGradients to) {
    if (!to.dgamma.empty()) Take(queue, DType::kF32, kernels::cuda::NormScratch(in.shape));
    queue.Count();
  }
  static void AttentionBackward(Queue& queue, kernels::AttentionShape shape,
                                Operations::AttentionGradient, const Tensor&, const Tensor&) {
    Take(queue, DType::kF32, shape.query_rows());
    queue.Count();
  }
  static kernels::AttentionWorkspace LibraryBytes(const Queue& queue,
                                                  const kernels::AttentionShape& shape,
                                                  DType type) {
    return static_cast<const MetaGpu&>(queue.device()).BytesOf(shape, type);
  }
  static void LibraryAttentionForward(Queue& queue, kernels::AttentionShape shape,
                                      const Tensor& qkv, const Tensor& out, const Tensor& saved,
                                      const Tensor& scratch) {
    const int64_t bytes = LibraryBytes(queue, shape, qkv.dtype()).forward;
    Take(queue, DType::kF32, (bytes + kFloat - 1) / kFloat);
    CountAttention(queue, shape, qkv, out, saved, scratch);
  }
  static void LibraryAttentionBackward(Queue& queue, kernels::AttentionShape shape,
                                       Operations::AttentionGradient in, const Tensor&,
                                       const Tensor&) {
    const int64_t bytes = LibraryBytes(queue, shape, in.qkv.dtype()).backward;
    Take(queue, DType::kF32, std::max((bytes + kFloat - 1) / kFloat, shape.query_rows()));
    queue.Count();
  }
  static void TreeSum(Queue& queue, const Tensor& values, const Tensor&) {
    Take(queue, DType::kF64, kernels::cuda::TreeScratch(values.num_elements()));
    queue.Count();
  }
  static kernels::CrossEntropySum CrossEntropy(Queue& queue, const Tensor& logits,
                                               const int32_t* targets, const Tensor& dlogits,
                                               const Tensor& value, const Tensor& sum) {
    // A GPU's loss stays in its memory, which is taken where there are ids on it: here there are
    // none.
    const Tensor total = sum.empty() ? Take(queue, DType::kF64, 1) : Tensor();
    const Tensor losses = Take(queue, DType::kF64, RowsOf(logits.shape()).rows);
    SumLosses(queue, RowsOf(logits.shape()).rows);
    return CountCrossEntropy(queue, logits, targets, dlogits, value, sum);
  }
  static void HeadLoss(Queue& queue, Operations::HeadLoss in, const Tensor&, const Tensor&,
                       const Tensor& value, const Tensor&) {
    const kernels::RowShape rows = RowsOf(in.x.shape());
    const int64_t vocabulary = in.table.shape()[0];
    const int64_t padded = kernels::PaddedVocabulary(vocabulary);
    const int64_t chunk = kernels::RowsAtOnce(rows.rows, padded, kernels::kLogitsAtOnce);
    const Tensor table =
        padded == vocabulary ? Tensor() : Take(queue, in.x.dtype(), padded * in.table.shape()[1]);
    const Tensor logits = Take(queue, in.x.dtype(), chunk * padded);
    const Tensor losses = Take(queue, DType::kF64, rows.rows);
    if (!value.empty()) SumLosses(queue, rows.rows);
    queue.Count();
  }
};

constexpr Operations WithGpuKernels() {
  Operations table = kCounted;
  table.bias_gradient = &GpuKernels::BiasGradient;
  table.linear_weight = &GpuKernels::LinearWeight;
  table.norm_backward = &GpuKernels::NormBackward;
  table.attention_backward = &GpuKernels::AttentionBackward;
  table.tree_sum = &GpuKernels::TreeSum;
  table.cross_entropy = &GpuKernels::CrossEntropy;
  table.head_loss = &GpuKernels::HeadLoss;
  return table;
}
constexpr Operations WithLibraryAttention(Operations table) {
  table.attention_forward = &GpuKernels::LibraryAttentionForward;
  table.attention_backward = &GpuKernels::LibraryAttentionBackward;
  return table;
}

const Operations& MetaGpu::operations(DType dtype) const {
  static constexpr Operations kOwn = WithGpuKernels();
  static constexpr Operations kByLibrary = WithLibraryAttention(WithGpuKernels());
  return dtype == DType::kF32 || attention_ == GpuAttention::kOwn ? kOwn : kByLibrary;
}

class MetaDevice final : public Device {
 public:
  absl::string_view name() const override { return "meta"; }
  bool has_elements() const override { return false; }
  const Device& meta() const override { return *this; }
  const Operations& operations(DType dtype) const override {
    // It counts what the host takes to compute in f32; a CPU that multiplies tiles of bf16 takes
    // less.
    static constexpr Operations kNarrow = TableOfForm<NarrowForm<kCounted>>();
    return SizeOf(dtype) < SizeOf(DType::kF32) ? kNarrow : kCounted;
  }
};

}  // namespace

const Device& MetaOfGpus(GpuAttention attention) {
  static const MetaGpu own(GpuAttention::kOwn);
  static const MetaGpu library(GpuAttention::kLibrary);
  static const MetaGpu same_bits(GpuAttention::kLibrarySameBits);
  switch (attention) {
    case GpuAttention::kOwn:
      return own;
    case GpuAttention::kLibrary:
      return library;
    case GpuAttention::kLibrarySameBits:
      return same_bits;
  }
  return own;
}

std::unique_ptr<const Device> MakeMetaOfGpu(GpuAttention attention, WorkspaceOf workspace_of) {
  return std::make_unique<const MetaGpu>(attention, std::move(workspace_of));
}

const Device& Device::Meta() {
  static const MetaDevice device;
  return device;
}

}  // namespace muster
