// Sizes only: every kernel is counted, none runs.
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

// Of its two products, as if nothing were masked.
void CountAttention(Queue& queue, kernels::AttentionShape shape, const Tensor&, const Tensor&,
                    const Tensor&, const Tensor&) {
  queue.Count();
  const auto scores = static_cast<double>(shape.batch * shape.heads * shape.sequence) *
                      static_cast<double>(shape.sequence);
  queue.CountFlops(4 * scores * static_cast<double>(shape.head_width));
}

kernels::CrossEntropySum CountCrossEntropy(Queue& queue, const Tensor& logits, const int32_t*,
                                           const Tensor&, const Tensor&) {
  queue.Count();
  return {.num_tokens = RowsOf(logits.shape()).rows};
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
                                    .layer_norm_forward = &Count,
                                    .layer_norm_input = &Count,
                                    .layer_norm_weight = &Count,
                                    .embedding_forward = &Count,
                                    .embedding_gradient = &Count,
                                    .attention_forward = &CountAttention,
                                    .attention_backward = &Count,
                                    .squares = &Count,
                                    .adamw = &Count,
                                    .sgd = &Count,
                                    .cross_entropy = &CountCrossEntropy};

class MetaDevice final : public Device {
 public:
  absl::string_view name() const override { return "meta"; }
  bool has_elements() const override { return false; }
  const Operations& operations(DType) const override { return kOperations; }
};

}  // namespace

const Device& Device::Meta() {
  static const MetaDevice device;
  return device;
}

}  // namespace muster
