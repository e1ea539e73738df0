#include "worker_runtime/nn/narrow_operations.h"

#include <cstring>
#include <utility>
#include <vector>

#include "proto/base/status_macros.h"
#include "worker_runtime/kernels/cast.h"
#include "worker_runtime/kernels/matmul.h"
#include "worker_runtime/nn/kernel_table.h"
#include "worker_runtime/nn/operations.h"

namespace muster {
namespace {

const Operations& F32() { return Device::Cpu().operations(DType::kF32); }

bool IsNarrow(DType dtype) { return dtype == DType::kBf16 || dtype == DType::kF16; }

void Widen(const Tensor& from, const Tensor& to) {
  const auto* bits = static_cast<const uint16_t*>(from.raw_data());
  const auto cast =
      from.dtype() == DType::kBf16 ? kernels::Cast().bf16_to_f32 : kernels::Cast().f16_to_f32;
  cast(bits, to.data<float>(), from.num_elements());
}

void Round(const Tensor& from, const Tensor& to) {
  auto* bits = static_cast<uint16_t*>(to.raw_data());
  const auto cast =
      to.dtype() == DType::kBf16 ? kernels::Cast().f32_to_bf16 : kernels::Cast().f32_to_f16;
  cast(from.data<float>(), bits, from.num_elements());
}

// The arguments of one operation in f32; results are rounded when it goes. What is in f32 or left
// out is passed on as it is.
class Widened {
 public:
  explicit Widened(Queue& queue) : pool_(queue.memory() != nullptr ? *queue.memory() : OwnPool()) {}
  ~Widened() {
    for (const auto& [wide, narrow] : results_) Round(wide, narrow);
  }
  Tensor In(const Tensor& x) {
    if (x.empty() || !IsNarrow(x.dtype())) return x;
    Tensor wide = pool_.Allocate(DType::kF32, x.shape());
    Widen(x, wide);
    return wide;
  }
  Tensor Out(const Tensor& x) { return Sum(x, false); }
  // A result that is added to what is there if `accumulate`.
  Tensor Sum(const Tensor& x, bool accumulate) {
    if (x.empty() || !IsNarrow(x.dtype())) return x;
    Tensor wide = accumulate ? In(x) : pool_.Allocate(DType::kF32, x.shape());
    results_.emplace_back(wide, x);
    return wide;
  }
  // Memory to work in.
  Tensor Scratch(const Tensor& x) {
    return IsNarrow(x.dtype()) ? pool_.Allocate(DType::kF32, x.shape()) : x;
  }

 private:
  static TensorPool& OwnPool() {
    thread_local TensorPool pool;
    return pool;
  }
  TensorPool& pool_;
  std::vector<std::pair<Tensor, Tensor>> results_;
};

void MultiplyTiles(const Product& product, const Tensor& a, const Tensor& b, const Tensor& c) {
  const auto operand = [](const Tensor& tensor, bool transposed, int64_t rows, int64_t columns) {
    return kernels::MatmulOperand<uint16_t>{
        .data = static_cast<const uint16_t*>(tensor.raw_data()),
        .stride = transposed ? rows : columns,
        .transpose = transposed ? kernels::Transpose::kYes : kernels::Transpose::kNo};
  };
  const auto into = [&]<typename T>(T* to) {
    kernels::Matmul(
        {.m = product.m, .n = product.n, .k = product.k},
        operand(a, product.transpose_a, product.m, product.k),
        operand(b, product.transpose_b, product.k, product.n),
        kernels::MatmulResult<T>{
            .data = to, .stride = product.n, .beta = static_cast<T>(product.accumulate ? 1 : 0)});
  };
  c.dtype() == DType::kF32 ? into(c.data<float>()) : into(static_cast<uint16_t*>(c.raw_data()));
}

struct NarrowKernels : BytesOfHost {
  static void Fill(Queue& queue, double value, const Tensor& x) {
    Widened wide(queue);
    F32().fill(queue, value, wide.Out(x));
  }

  static void Add(Queue& queue, const Tensor& a, const Tensor& b, const Tensor& out) {
    Widened wide(queue);
    F32().add(queue, wide.In(a), wide.In(b), wide.Out(out));
  }

  static void Scale(Queue& queue, const Tensor& factor, const Tensor& x, const Tensor& out) {
    Widened wide(queue);
    F32().scale(queue, wide.In(factor), wide.In(x), wide.Out(out));
  }

  static void Multiply(Queue& queue, Product product, const Tensor& a, const Tensor& b,
                       const Tensor& c) {
    static const bool multiplies_tiles = kernels::MultipliesTilesOfBf16();
    if (multiplies_tiles && a.dtype() == DType::kBf16 && b.dtype() == DType::kBf16) {
      return MultiplyTiles(product, a, b, c);
    }
    Widened wide(queue);
    F32().multiply(queue, product, wide.In(a), wide.In(b), wide.Sum(c, product.accumulate));
  }

  static void BiasFill(Queue& queue, const Tensor& bias, const Tensor& residual, const Tensor& y) {
    Widened wide(queue);
    F32().bias_fill(queue, wide.In(bias), wide.In(residual), wide.Out(y));
  }

  static void BiasGradient(Queue& queue, const Tensor& dy, const Tensor& dbias, bool accumulate) {
    Widened wide(queue);
    F32().bias_gradient(queue, wide.In(dy), wide.Sum(dbias, accumulate), accumulate);
  }

  static void GeluForward(Queue& queue, const Tensor& x, const Tensor& y) {
    Widened wide(queue);
    F32().gelu_forward(queue, wide.In(x), wide.Out(y));
  }

  static void GeluBackward(Queue& queue, const Tensor& x, const Tensor& dy, const Tensor& dx) {
    Widened wide(queue);
    F32().gelu_backward(queue, wide.In(x), wide.In(dy), wide.Out(dx));
  }

  // --- norms, tables, attention
  // ---------------------------------------------------------------------

  static void LayerNormForward(Queue& queue, Operations::LayerNorm in, const Tensor& beta,
                               double epsilon, const Tensor& y) {
    Widened wide(queue);
    const Tensor x = wide.In(in.x), gamma = wide.In(in.gamma), saved = wide.Out(in.saved);
    F32().layer_norm_forward(queue, {.x = x, .gamma = gamma, .saved = saved}, wide.In(beta),
                             epsilon, wide.Out(y));
  }

  static void LayerNormBackward(Queue& queue, Operations::LayerNorm in, const Tensor& dy,
                                Operations::LayerNormGradients to) {
    Widened wide(queue);
    const Tensor x = wide.In(in.x), gamma = wide.In(in.gamma), saved = wide.In(in.saved);
    const Tensor addend = wide.In(to.addend), dx = wide.Out(to.dx);
    const Tensor dgamma = wide.Sum(to.dgamma, to.accumulate),
                 dbeta = wide.Sum(to.dbeta, to.accumulate);
    F32().layer_norm_backward(queue, {.x = x, .gamma = gamma, .saved = saved}, wide.In(dy),
                              {.addend = addend,
                               .dx = dx,
                               .dgamma = dgamma,
                               .dbeta = dbeta,
                               .accumulate = to.accumulate});
  }

  static void EmbeddingForward(Queue& queue, kernels::EmbeddingShape shape, const int32_t* tokens,
                               const Tensor& table, const Tensor& positions, const Tensor& y) {
    Widened wide(queue);
    F32().embedding_forward(queue, shape, tokens, wide.In(table), wide.In(positions), wide.Out(y));
  }

  static void EmbeddingGradient(Queue& queue, kernels::EmbeddingShape shape, const int32_t* tokens,
                                const Tensor& dy, const Tensor& dtable, const Tensor& dpositions) {
    Widened wide(queue);
    F32().embedding_gradient(queue, shape, tokens, wide.In(dy), wide.Sum(dtable, true),
                             wide.Sum(dpositions, true));
  }

  static void AttentionForward(Queue& queue, kernels::AttentionShape shape, const Tensor& qkv,
                               const Tensor& out, const Tensor& saved, const Tensor& scratch) {
    Widened wide(queue);
    F32().attention_forward(queue, shape, wide.In(qkv), wide.Out(out), wide.Out(saved),
                            wide.Scratch(scratch));
  }

  static void AttentionBackward(Queue& queue, kernels::AttentionShape shape,
                                Operations::AttentionGradient in, const Tensor& dqkv,
                                const Tensor& scratch) {
    Widened wide(queue);
    const Tensor qkv = wide.In(in.qkv), saved = wide.In(in.saved), out = wide.In(in.out);
    const Tensor dout = wide.In(in.dout);
    F32().attention_backward(queue, shape, {.qkv = qkv, .saved = saved, .out = out, .dout = dout},
                             wide.Out(dqkv), wide.Scratch(scratch));
  }

  // --- losses and updates
  // ---------------------------------------------------------------------------

  static void Squares(Queue& queue, const Tensor& x, const Tensor& partials) {
    Widened wide(queue);
    F32().squares(queue, wide.In(x), partials);
  }

  static void AdamW(Queue& queue, Operations::Updates updates, Operations::AdamWArrays arrays) {
    Widened wide(queue);
    const Tensor gradient = wide.In(arrays.gradient), value = wide.Sum(arrays.value, true),
                 first_moment = wide.Sum(arrays.first_moment, true),
                 second_moment = wide.Sum(arrays.second_moment, true);
    F32().adamw(queue, updates,
                {.gradient = gradient,
                 .value = value,
                 .first_moment = first_moment,
                 .second_moment = second_moment,
                 .rounded = arrays.rounded,
                 .draws = arrays.draws});
  }

  static void Sgd(Queue& queue, kernels::SgdStep step, Operations::Updates updates,
                  const Tensor& gradient, const Tensor& value, const Tensor& buffer) {
    Widened wide(queue);
    F32().sgd(queue, step, updates, wide.In(gradient), wide.Sum(value, true),
              wide.Sum(buffer, true));
  }

  static kernels::CrossEntropySum CrossEntropy(Queue& queue, const Tensor& logits,
                                               const int32_t* targets, const Tensor& dlogits,
                                               const Tensor& value, const Tensor& sum) {
    Widened wide(queue);
    return F32().cross_entropy(queue, wide.In(logits), targets, wide.Out(dlogits), wide.Out(value),
                               sum);
  }
};

}  // namespace

void CastElements(Queue&, const Tensor& from, const Tensor& to) {
  MUSTER_CHECK(from.num_elements() == to.num_elements());
  if (from.dtype() == to.dtype()) {
    std::memcpy(to.raw_data(), from.raw_data(), from.num_bytes());
  } else if (IsNarrow(from.dtype())) {
    Widen(from, to);
  } else {
    Round(from, to);
  }
}

const Operations& NarrowOperations() {
  static constexpr Operations kOperations = TableOf<NarrowKernels>();
  return kOperations;
}

}  // namespace muster
