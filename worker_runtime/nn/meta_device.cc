// Sizes only: every kernel is counted, none runs.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "muster/cuda_device.h"
#include "worker_runtime/kernels/cuda_kernels.h"
#include "worker_runtime/kernels/library_attention.h"
#include "worker_runtime/kernels/logit_chunks.h"
#include "worker_runtime/nn/linear_in_passes.h"
#include "worker_runtime/nn/meta_gpu.h"
#include "worker_runtime/nn/operations.h"
#include "worker_runtime/nn/row_view.h"

namespace muster {
namespace {

template <typename... Args>
void Count(Queue& queue, Args...) {
  queue.Count();
}

void CountProduct(Queue& queue, Product product, const Tensor&, const Tensor&, const Tensor&) {
  queue.Count();
  queue.CountFlops(2.0 * static_cast<double>(product.m) * static_cast<double>(product.n) *
                   static_cast<double>(product.k));
}

// Counts the two products of attention, as if nothing were masked.
void CountAttention(Queue& queue, kernels::AttentionShape shape, const Tensor&, const Tensor&,
                    const Tensor&, const Tensor&) {
  queue.Count();
  const auto scores = static_cast<double>(shape.batch * shape.heads * shape.sequence) *
                      static_cast<double>(shape.sequence);
  queue.CountFlops(4 * scores * static_cast<double>(shape.head_width));
}

kernels::CrossEntropySum CountCrossEntropy(Queue& queue, const Tensor& logits, const int32_t*,
                                           const Tensor&, const Tensor&, const Tensor&) {
  queue.Count();
  return {.num_tokens = RowsOf(logits.shape()).rows};
}

// The host computes 16 bits in f32, in memory beside the arguments (narrow_operations.cc).
class WideCopies {
 public:
  explicit WideCopies(Queue& queue) : queue_(queue) {}
  void Take(const Tensor& x) {
    const bool is_narrow = !x.empty() && SizeOf(x.dtype()) < SizeOf(DType::kF32);
    if (!is_narrow || queue_.memory() == nullptr) return;
    copies_.push_back(queue_.memory()->Allocate(DType::kF32, x.shape()));
  }
  void Take(const Operations::LayerNorm& in) {
    for (const Tensor* x : {&in.x, &in.gamma, &in.saved}) Take(*x);
  }
  void Take(const Operations::LayerNormGradients& to) {
    for (const Tensor* x : {&to.addend, &to.dx, &to.dgamma, &to.dbeta}) Take(*x);
  }
  void Take(const Operations::AttentionGradient& in) {
    for (const Tensor* x : {&in.qkv, &in.saved, &in.out, &in.dout}) Take(*x);
  }
  template <typename Other>
  void Take(const Other&) {}  // sizes, ids and numbers

 private:
  Queue& queue_;
  std::vector<Tensor> copies_;
};

template <auto kCount>
struct Wide;
template <typename Result, typename... Args, Result (*kCount)(Queue&, Args...)>
struct Wide<kCount> {
  static Result Run(Queue& queue, Args... args) {
    WideCopies copies(queue);
    (copies.Take(args), ...);
    return kCount(queue, args...);
  }
};

// The same kernels, with the memory that they take where they compute in f32. A CPU with products
// of bf16 takes less.
template <const Operations& kOf>
constexpr Operations Widened() {
  Operations wide = kOf;
  wide.fill = &Wide<kOf.fill>::Run;
  wide.add = &Wide<kOf.add>::Run;
  wide.scale = &Wide<kOf.scale>::Run;
  wide.multiply = &Wide<kOf.multiply>::Run;
  wide.bias_fill = &Wide<kOf.bias_fill>::Run;
  wide.bias_gradient = &Wide<kOf.bias_gradient>::Run;
  wide.gelu_forward = &Wide<kOf.gelu_forward>::Run;
  wide.gelu_backward = &Wide<kOf.gelu_backward>::Run;
  wide.layer_norm_forward = &Wide<kOf.layer_norm_forward>::Run;
  wide.layer_norm_backward = &Wide<kOf.layer_norm_backward>::Run;
  wide.embedding_forward = &Wide<kOf.embedding_forward>::Run;
  wide.embedding_gradient = &Wide<kOf.embedding_gradient>::Run;
  wide.attention_forward = &Wide<kOf.attention_forward>::Run;
  wide.attention_backward = &Wide<kOf.attention_backward>::Run;
  wide.cross_entropy = &Wide<kOf.cross_entropy>::Run;
  return wide;
}

constexpr Operations kOperations = {.copy = &Count,
                                    .cast = &Count,
                                    .clear = &Count,
                                    .fill = &Count,
                                    .add = &Count,
                                    .scale = &Count,
                                    .multiply = &CountProduct,
                                    .bias_fill = &Count,
                                    .bias_gradient = &Count,
                                    .gelu_forward = &Count,
                                    .gelu_backward = &Count,
                                    .linear_forward = &LinearInPasses::LinearForward,
                                    .linear_gelu = &LinearInPasses::LinearGelu,
                                    .gelu_linear_input = &LinearInPasses::GeluLinearInput,
                                    .linear_weight = &LinearInPasses::LinearWeight,
                                    .layer_norm_forward = &Count,
                                    .layer_norm_backward = &Count,
                                    .embedding_forward = &Count,
                                    .embedding_gradient = &Count,
                                    .attention_forward = &CountAttention,
                                    .attention_backward = &Count,
                                    .squares = &Count,
                                    .tree_sum = &Count,
                                    .decide_update = &Count,
                                    .adamw = &Count,
                                    .sgd = &Count,
                                    .round_by_draws = &Count,
                                    .cross_entropy = &CountCrossEntropy};

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
  // On the product's way, or in a pass of its own once that was refused: cuBLASLt decides.
  static void LinearWeight(Queue& queue, const Tensor& dy, const Tensor& x,
                           Operations::GradientSum dweight, Operations::GradientSum dbias) {
    Tensor sums;
    const bool has_both = !dweight.to.empty() && !dbias.to.empty();
    if (has_both && dweight.to.dtype() == dbias.to.dtype()) {
      sums = Take(queue, dbias.to.dtype(), dbias.to.num_elements());
    }
    LinearInPasses::LinearWeight(queue, dy, x, dweight, dbias);
  }
  static void LayerNormBackward(Queue& queue, Operations::LayerNorm in, const Tensor&,
                                Operations::LayerNormGradients to) {
    if (!to.dgamma.empty()) {
      Take(queue, DType::kF32, kernels::cuda::NormScratch(RowsOf(in.x.shape())));
    }
    queue.Count();
  }
  static int64_t OwnBackward(kernels::AttentionShape shape) {
    return shape.batch * shape.heads * shape.sequence;
  }
  static void AttentionBackward(Queue& queue, kernels::AttentionShape shape,
                                Operations::AttentionGradient, const Tensor&, const Tensor&) {
    Take(queue, DType::kF32, OwnBackward(shape));
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
    Take(queue, DType::kF32, std::max((bytes + kFloat - 1) / kFloat, OwnBackward(shape)));
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
  Operations table = kOperations;
  table.bias_gradient = &GpuKernels::BiasGradient;
  table.linear_weight = &GpuKernels::LinearWeight;
  table.layer_norm_backward = &GpuKernels::LayerNormBackward;
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
    static constexpr Operations kWidened = Widened<kOperations>();
    return SizeOf(dtype) < SizeOf(DType::kF32) ? kWidened : kOperations;
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
