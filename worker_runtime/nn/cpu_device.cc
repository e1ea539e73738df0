// The host's kernels, found by dtype; each runs at once, on the caller's thread.
#include <cstring>
#include <string>

#include "muster/layers.h"
#include "muster/sum_tree.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/kernels/bias.h"
#include "worker_runtime/kernels/cast.h"
#include "worker_runtime/kernels/elementwise.h"
#include "worker_runtime/kernels/gelu.h"
#include "worker_runtime/kernels/isa.h"
#include "worker_runtime/kernels/matmul.h"
#include "worker_runtime/kernels/norm.h"
#include "worker_runtime/kernels/rotary.h"
#include "worker_runtime/kernels/sum_of_squares.h"
#include "worker_runtime/kernels/swiglu.h"
#include "worker_runtime/nn/kernel_table.h"
#include "worker_runtime/nn/narrow_operations.h"
#include "worker_runtime/nn/operations.h"
#include "worker_runtime/nn/rounding.h"
#include "worker_runtime/nn/row_view.h"

namespace muster {
namespace {

template <typename T>
T* OrNull(const Tensor& tensor) {
  return tensor.empty() ? nullptr : tensor.data<T>();
}

// A factor [rows, columns], whose elements are stored column by column if `transposed`.
template <typename T>
kernels::MatmulOperand<T> OperandOf(const T* elements, bool transposed, int64_t rows,
                                    int64_t columns) {
  return {.data = elements,
          .stride = transposed ? rows : columns,
          .transpose = transposed ? kernels::Transpose::kYes : kernels::Transpose::kNo};
}

// What is the same for every type.
struct BytesOfHost : Fallbacks {
  static void Copy(Queue&, const Tensor& from, const Tensor& to) {
    MUSTER_CHECK(from.num_bytes() <= to.num_bytes());
    std::memcpy(to.raw_data(), from.raw_data(), from.num_bytes());
  }
  static void Clear(Queue&, const Tensor& x) { std::memset(x.raw_data(), 0, x.num_bytes()); }
  static void Cast(Queue& queue, const Tensor& from, const Tensor& to) {
    const int64_t n = from.num_elements();
    MUSTER_CHECK(n == to.num_elements());
    if (from.dtype() == to.dtype()) return Copy(queue, from, to);
    const kernels::CastKernels& casts = kernels::Cast();
    if (to.dtype() == DType::kF32) {
      const auto widen = from.dtype() == DType::kBf16 ? casts.bf16_to_f32 : casts.f16_to_f32;
      widen(static_cast<const uint16_t*>(from.raw_data()), to.data<float>(), n);
    } else {
      const auto round = to.dtype() == DType::kBf16 ? casts.f32_to_bf16 : casts.f32_to_f16;
      round(from.data<float>(), static_cast<uint16_t*>(to.raw_data()), n);
    }
  }
  static void SumByTree(Queue&, const Tensor& values, const Tensor& to) {
    *to.data<double>() = TreeSum(values.span<double>());
  }
  static void DecideUpdate(Queue&, const kernels::UpdateSettings& settings,
                           Operations::Totals totals, const Tensor& decision) {
    kernels::DecideUpdate(settings,
                          {.squares = totals.squares.data<double>(),
                           .tokens = totals.tokens.data<double>(),
                           .loss_scale = totals.loss_scale.data<double>(),
                           .loss = totals.loss.data<double>(),
                           .learning_rate = OrNull<double>(totals.learning_rate)},
                          DecisionIn(decision));
  }
  static void RoundByDraws(Queue&, const Tensor& decision, const Tensor& masters,
                           kernels::RoundingDraws draws, const Tensor& to) {
    MUSTER_CHECK(to.dtype() == DType::kBf16 && to.num_elements() == masters.num_elements());
    muster::RoundByDraws(masters.span<float>(), draws, DecisionIn(decision)->updates,
                         static_cast<uint16_t*>(to.raw_data()));
  }
};

template <typename T>
struct HostKernels : BytesOfHost {
  static void Fill(Queue&, double value, const Tensor& x) {
    for (T& element : x.span<T>()) element = static_cast<T>(value);
  }
  static void Add(Queue&, const Tensor& a, const Tensor& b, const Tensor& out) {
    kernels::Elementwise<T>().add(a.data<T>(), b.data<T>(), out.data<T>(), out.num_elements());
  }
  static void Scale(Queue&, const Tensor& factor, const Tensor& x, const Tensor& out) {
    kernels::Elementwise<T>().scale(*factor.data<T>(), x.data<T>(), out.data<T>(),
                                    out.num_elements());
  }
  static void Multiply(Queue&, Product p, const Tensor& a, const Tensor& b, const Tensor& c) {
    kernels::Matmul({.m = p.m, .n = p.n, .k = p.k}, T{1},
                    OperandOf<T>(a.data<T>(), p.transpose_a, p.m, p.k),
                    OperandOf<T>(b.data<T>(), p.transpose_b, p.k, p.n),
                    kernels::MatmulResult<T>{
                        .data = c.data<T>(), .stride = p.n, .beta = static_cast<T>(p.accumulate)});
  }

  static void BiasFill(Queue&, const Tensor& bias, const Tensor& residual, const Tensor& y) {
    kernels::Bias<T>().fill(RowsOf(y.shape()), OrNull<T>(bias), OrNull<T>(residual), y.data<T>());
  }
  static void BiasGradient(Queue&, const Tensor& dy, const Tensor& dbias, bool accumulate) {
    kernels::Bias<T>().gradient(RowsOf(dy.shape()), dy.data<T>(), dbias.data<T>(), accumulate);
  }
  static void GeluForward(Queue&, const Tensor& x, const Tensor& y) {
    kernels::Gelu<T>().forward(x.data<T>(), y.data<T>(), y.num_elements());
  }
  static void GeluBackward(Queue&, const Tensor& x, const Tensor& dy, const Tensor& dx) {
    kernels::Gelu<T>().backward(x.data<T>(), dy.data<T>(), dx.data<T>(), dx.num_elements());
  }

  static void SwiGluForward(Queue&, const Tensor& gate_up, const Tensor& y) {
    MUSTER_CHECK(gate_up.num_elements() == 2 * y.num_elements());
    kernels::SwiGlu<T>().forward(RowsOf(y.shape()), gate_up.data<T>(), y.data<T>());
  }
  static void SwiGluBackward(Queue&, const Tensor& gate_up, const Tensor& dy,
                             const Tensor& dgate_up) {
    MUSTER_CHECK(gate_up.num_elements() == 2 * dy.num_elements());
    kernels::SwiGlu<T>().backward(RowsOf(dy.shape()), gate_up.data<T>(), dy.data<T>(),
                                  dgate_up.data<T>());
  }

  static typename kernels::NormKernels<T>::Saved NormSaved(const Operations::Norm& in) {
    T* const saved = in.saved.data<T>();
    if (in.shape.kind == kernels::NormKind::kRms) return {.mean = nullptr, .rstd = saved};
    return {.mean = saved, .rstd = saved + in.shape.rows};
  }
  static void NormForward(Queue&, Operations::Norm in, const Tensor& beta, double epsilon,
                          const Tensor& y) {
    kernels::Norm<T>().forward(
        in.shape, in.x.data<T>(),
        {.gamma = in.gamma.data<T>(), .beta = OrNull<T>(beta), .epsilon = epsilon}, y.data<T>(),
        NormSaved(in));
  }
  // Those of weights go first: dx may take the place of dy.
  static void NormBackward(Queue&, Operations::Norm in, const Tensor& dy,
                           Operations::NormGradients to) {
    if (!to.dgamma.empty()) {
      kernels::Norm<T>().weight_gradient(in.shape, in.x.data<T>(), dy.data<T>(), NormSaved(in),
                                         {.dgamma = to.dgamma.data<T>(),
                                          .dbeta = OrNull<T>(to.dbeta),
                                          .accumulate = to.accumulate});
    }
    if (to.dx.empty()) return;
    kernels::Norm<T>().input_gradient(in.shape, in.x.data<T>(), dy.data<T>(), in.gamma.data<T>(),
                                      NormSaved(in), OrNull<T>(to.addend), to.dx.data<T>());
  }

  static void EmbeddingForward(Queue&, kernels::EmbeddingShape shape, const int32_t* tokens,
                               const Tensor& table, const Tensor& positions, const Tensor& y) {
    kernels::Embedding<T>().forward(shape, tokens, table.data<T>(), OrNull<T>(positions),
                                    y.data<T>());
  }
  static void EmbeddingGradient(Queue&, kernels::EmbeddingShape shape, const int32_t* tokens,
                                const Tensor& dy, const Tensor& dtable, const Tensor& dpositions) {
    if (!dtable.empty()) {
      kernels::Embedding<T>().token_gradient(shape, tokens, dy.data<T>(), dtable.data<T>());
    }
    if (!dpositions.empty()) {
      kernels::Embedding<T>().position_gradient(shape, dy.data<T>(), dpositions.data<T>());
    }
  }

  static void Rotary(Queue&, kernels::RotaryShape shape,
                     const kernels::RotaryFrequencies& frequencies, const Tensor& x) {
    MUSTER_CHECK(kernels::CanRotate(shape));
    kernels::Rotary<T>().rotate(shape, frequencies.of_pair.data(), x.data<T>());
  }

  static typename kernels::AttentionKernels<T>::Saved AttentionSaved(const Tensor& saved) {
    return {.row_max = saved.data<T>(), .row_scale = saved.data<T>() + saved.shape()[1]};
  }
  static void AttentionForward(Queue&, kernels::AttentionShape shape, const Tensor& qkv,
                               const Tensor& out, const Tensor& saved, const Tensor& scratch) {
    kernels::Attention<T>().forward(shape, qkv.data<T>(), out.data<T>(), AttentionSaved(saved),
                                    scratch.data<T>());
  }
  static void AttentionBackward(Queue&, kernels::AttentionShape shape,
                                Operations::AttentionGradient in, const Tensor& dqkv,
                                const Tensor& scratch) {
    kernels::Attention<T>().backward(shape, in.qkv.data<T>(), AttentionSaved(in.saved),
                                     {.out = in.out.data<T>(), .dout = in.dout.data<T>()},
                                     dqkv.data<T>(), scratch.data<T>());
  }

  static void Squares(Queue&, const Tensor& x, const Tensor& partials) {
    MUSTER_CHECK(partials.num_elements() == kernels::NumNormBlocks(x.num_elements()));
    kernels::SumOfSquares<T>().blocks(x.data<T>(), x.num_elements(), partials.data<double>());
  }
  // Calls `run(group, begin, n)` for each run of an update that is not to be skipped.
  template <typename Run>
  static void ForRuns(const Operations::Updates& updates, const Run& run) {
    int64_t begin = 0;
    for (const kernels::UpdateRun& part : updates.runs) {
      if (DecisionIn(updates.decisions)[part.group].skipped == 0) {
        run(part.group, begin, part.end - begin);
      }
      begin = part.end;
    }
  }
  static void AdamW(Queue& queue, Operations::Updates updates, Operations::AdamWArrays arrays) {
    ForRuns(updates, [&](int group, int64_t begin, int64_t n) {
      const kernels::UpdateDecision& decided = DecisionIn(updates.decisions)[group];
      kernels::AdamWStep step = updates.steps[group];
      step.learning_rate = decided.learning_rate;
      step.gradient_scale = decided.gradient_scale;
      step.step = decided.updates;
      kernels::AdamW<T>().update(step, arrays.gradient.data<T>() + begin,
                                 {.value = arrays.value.data<T>() + begin,
                                  .first_moment = arrays.first_moment.data<T>() + begin,
                                  .second_moment = arrays.second_moment.data<T>() + begin},
                                 n);
    });
    // All groups are skipped together and have counted the same updates.
    if (arrays.rounded.empty() || DecisionIn(updates.decisions)->skipped != 0) return;
    RoundByDraws(queue, updates.decisions, arrays.value, arrays.draws, arrays.rounded);
  }

  static void Sgd(Queue&, kernels::SgdStep step, Operations::Updates updates,
                  const Tensor& gradient, const Tensor& value, const Tensor& buffer) {
    ForRuns(updates, [&](int group, int64_t begin, int64_t n) {
      const kernels::UpdateDecision& decided = DecisionIn(updates.decisions)[group];
      step.learning_rate = decided.learning_rate;
      step.gradient_scale = decided.gradient_scale;
      step.weight_decay = updates.steps[group].weight_decay;
      T* const to = OrNull<T>(buffer);
      kernels::Sgd<T>().update(step, gradient.data<T>() + begin, value.data<T>() + begin,
                               to == nullptr ? nullptr : to + begin, n);
    });
  }

  static kernels::CrossEntropySum CrossEntropy(Queue&, const Tensor& logits, const int32_t* targets,
                                               const Tensor& dlogits, const Tensor& value,
                                               const Tensor& total) {
    const kernels::CrossEntropySum sum = kernels::CrossEntropy<T>().run(
        RowsOf(logits.shape()), logits.data<T>(), targets, OrNull<T>(dlogits));
    *value.data<T>() = static_cast<T>(sum.loss);
    if (!total.empty()) *total.data<double>() = sum.loss;
    return sum;
  }
};

constexpr Operations kF32 = TableOf<HostKernels<float>>();
constexpr Operations kF64 = TableOf<HostKernels<double>>();

// Multiplies in f32, unless the CPU multiplies tiles of bf16.
void MultiplyNarrow(Queue& queue, Product p, const Tensor& a, const Tensor& b, const Tensor& c) {
  static const bool multiplies_tiles = kernels::MultipliesTilesOfBf16();
  if (!multiplies_tiles || a.dtype() != DType::kBf16 || b.dtype() != DType::kBf16) {
    using enum Role;
    using Sum = NarrowForm<kF32>::Kernel<&Operations::multiply, kIn, kIn, kInOut>;
    using Only = NarrowForm<kF32>::Kernel<&Operations::multiply, kIn, kIn, kOut>;
    return p.accumulate ? Sum::Run(queue, p, a, b, c) : Only::Run(queue, p, a, b, c);
  }
  const auto bits = [](const Tensor& x) { return static_cast<uint16_t*>(x.raw_data()); };
  const auto into = [&]<typename T>(T* to) {
    kernels::Matmul(
        {.m = p.m, .n = p.n, .k = p.k}, OperandOf<uint16_t>(bits(a), p.transpose_a, p.m, p.k),
        OperandOf<uint16_t>(bits(b), p.transpose_b, p.k, p.n),
        kernels::MatmulResult<T>{.data = to, .stride = p.n, .beta = static_cast<T>(p.accumulate)});
  };
  c.dtype() == DType::kF32 ? into(c.data<float>()) : into(bits(c));
}

constexpr Operations NarrowTable() {
  Operations table = TableOfForm<NarrowForm<kF32>>();
  table.multiply = &MultiplyNarrow;
  return table;
}

class CpuDevice final : public Device {
 public:
  absl::string_view name() const override { return "cpu"; }
  bool has_elements() const override { return true; }
  bool host_reads() const override { return true; }
  const Device& meta() const override { return Meta(); }
  const Operations& operations(DType dtype) const override {
    static constexpr Operations kNarrow = NarrowTable();
    if (dtype == DType::kF32) return kF32;
    if (dtype == DType::kBf16 || dtype == DType::kF16) return kNarrow;
    MUSTER_CHECK(dtype == DType::kF64);
    return kF64;
  }
};

}  // namespace

std::string InstructionSet() { return std::string(kernels::ToString(kernels::BestIsa())); }

const Device& Device::Cpu() {
  static const CpuDevice device;
  return device;
}

}  // namespace muster
