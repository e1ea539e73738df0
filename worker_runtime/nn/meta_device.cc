// Sizes only: every kernel is counted, none runs.
#include "worker_runtime/nn/operations.h"
#include "worker_runtime/nn/row_view.h"

namespace muster {
namespace {

template <typename... Args>
void Count(Queue& queue, Args...) {
  queue.Count();
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
                                    .multiply = &Count,
                                    .bias_fill = &Count,
                                    .bias_gradient = &Count,
                                    .gelu_forward = &Count,
                                    .gelu_backward = &Count,
                                    .layer_norm_forward = &Count,
                                    .layer_norm_input = &Count,
                                    .layer_norm_weight = &Count,
                                    .embedding_forward = &Count,
                                    .embedding_gradient = &Count,
                                    .attention_forward = &Count,
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
