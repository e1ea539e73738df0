// The kernels of a GPU, found by dtype: each puts what it launches on the stream of its queue.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <type_traits>

#include "absl/functional/function_ref.h"
#include "muster/cuda_attention.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/cuda/attention_library.h"
#include "worker_runtime/cuda/cuda_device.h"
#include "worker_runtime/cuda/products.h"
#include "worker_runtime/kernels/attention_tiles.h"
#include "worker_runtime/kernels/chunked_loss.h"
#include "worker_runtime/kernels/cuda_kernels.h"
#include "worker_runtime/kernels/half.h"
#include "worker_runtime/kernels/logit_chunks.h"
#include "worker_runtime/nn/kernel_table.h"
#include "worker_runtime/nn/linear_in_passes.h"
#include "worker_runtime/nn/operations.h"
#include "worker_runtime/nn/row_view.h"

namespace muster {
namespace {

namespace cuda = kernels::cuda;
static_assert(cuda::kWidestHead == kCudaWidestHead);

template <typename T>
constexpr DType TypeOf() {
  if constexpr (std::is_same_v<T, kernels::Half>) {
    return DType::kF16;
  } else {
    return internal::ElementType<T>();
  }
}

// The elements of an array of T; null: it is left out.
template <typename T>
T* At(const Tensor& tensor) {
  MUSTER_CHECK(tensor.empty() || tensor.dtype() == TypeOf<T>());
  return static_cast<T*>(tensor.raw_data());
}

void Keep(Queue& queue, kernels::LaunchError error) {
  queue.Count();
  CudaDevice::Of(queue).Keep(error);
}
void Keep(Queue& queue, const absl::Status& status) {
  queue.Count();
  CudaDevice::Of(queue).Keep(status);
}
CudaStream StreamOf(Queue& queue) { return CudaDevice::Of(queue).stream(queue); }
Tensor Scratch(Queue& queue, DType dtype, int64_t count) {
  return CudaDevice::Of(queue).Scratch(queue, dtype, count);
}

// What is the same for every type.
struct BytesOfCuda : Fallbacks {
  static void Copy(Queue& queue, const Tensor& from, const Tensor& to) {
    MUSTER_CHECK(from.num_bytes() <= to.num_bytes());
    queue.Count();
    queue.device().CopyBytes(queue, from.raw_data(), to.raw_data(), from.num_bytes());
  }

  static void Clear(Queue& queue, const Tensor& x) {
    Keep(queue,
         CudaDevice::Of(queue).cuda().MemsetAsync(x.raw_data(), 0, x.num_bytes(), StreamOf(queue)));
  }

  static void Cast(Queue& queue, const Tensor& from, const Tensor& to) {
    MUSTER_CHECK(from.num_elements() == to.num_elements());
    if (from.dtype() == to.dtype()) return Copy(queue, from, to);
    const int64_t n = from.num_elements();
    const CudaStream stream = StreamOf(queue);
    if (to.dtype() == DType::kBf16) {
      Keep(queue, cuda::CastToBf16(stream, At<float>(from), At<uint16_t>(to), n));
    } else if (to.dtype() == DType::kF16) {
      Keep(queue, cuda::CastToF16(stream, At<float>(from), At<kernels::Half>(to), n));
    } else if (from.dtype() == DType::kBf16) {
      Keep(queue, cuda::CastToFloat(stream, At<uint16_t>(from), At<float>(to), n));
    } else {
      Keep(queue, cuda::CastToFloat(stream, At<kernels::Half>(from), At<float>(to), n));
    }
  }

  static void SumByTree(Queue& queue, const Tensor& values, const Tensor& to) {
    const int64_t n = values.num_elements();
    const Tensor scratch = Scratch(queue, DType::kF64, cuda::TreeScratch(n));
    Keep(queue, cuda::TreeSum(StreamOf(queue), At<double>(values), n, At<double>(scratch),
                              At<double>(to)));
  }

  static void DecideUpdate(Queue& queue, const kernels::UpdateSettings& settings,
                           Operations::Totals totals, const Tensor& decision) {
    Keep(queue, cuda::DecideUpdate(StreamOf(queue), settings,
                                   {.squares = At<double>(totals.squares),
                                    .tokens = At<double>(totals.tokens),
                                    .loss_scale = At<double>(totals.loss_scale),
                                    .loss = At<double>(totals.loss),
                                    .learning_rate = At<double>(totals.learning_rate)},
                                   DecisionIn(decision)));
  }

  // Masters, moments and their gradients are of f32 under values of any type.
  static cuda::UpdateRuns RunsOf(const Operations::Updates& updates) {
    return {.runs = updates.runs.data(), .count = updates.runs.size()};
  }
  static void AdamW(Queue& queue, Operations::Updates updates, Operations::AdamWArrays arrays) {
    Keep(queue, cuda::AdamWUpdate(StreamOf(queue), RunsOf(updates), DecisionIn(updates.decisions),
                                  {.gradient = At<float>(arrays.gradient),
                                   .master = At<float>(arrays.value),
                                   .first_moment = At<float>(arrays.first_moment),
                                   .second_moment = At<float>(arrays.second_moment),
                                   .value = At<uint16_t>(arrays.rounded)},
                                  arrays.draws));
  }

  static void RoundByDraws(Queue& queue, const Tensor& decision, const Tensor& masters,
                           kernels::RoundingDraws draws, const Tensor& to) {
    Keep(queue, cuda::RoundByDraws(StreamOf(queue), DecisionIn(decision), At<float>(masters),
                                   At<uint16_t>(to), draws, masters.num_elements()));
  }

  static void Sgd(Queue& queue, kernels::SgdStep step, Operations::Updates updates,
                  const Tensor& gradient, const Tensor& value, const Tensor& buffer) {
    Keep(queue,
         cuda::SgdUpdate(StreamOf(queue),
                         {.momentum = static_cast<float>(step.momentum), .nesterov = step.nesterov},
                         RunsOf(updates), DecisionIn(updates.decisions),
                         {.gradient = At<float>(gradient),
                          .value = At<float>(value),
                          .buffer = At<float>(buffer)}));
  }
};

// --- By type. Gradients of weights are of that type, or of f32.

// Calls `run` with `gradient` as an array of its type.
template <typename T, typename Run>
void WithGradient(const Tensor& gradient, Run run) {
  if (gradient.dtype() == DType::kF32) return run(At<float>(gradient));
  run(At<T>(gradient));
}

template <typename T>
struct CudaKernels : BytesOfCuda {
  static constexpr DType kType = TypeOf<T>();

  static void Fill(Queue& queue, double value, const Tensor& x) {
    Keep(queue, cuda::Fill(StreamOf(queue), static_cast<float>(value), At<T>(x), x.num_elements()));
  }
  static void Add(Queue& queue, const Tensor& a, const Tensor& b, const Tensor& out) {
    Keep(queue, cuda::Add<T>(StreamOf(queue), At<T>(a), At<T>(b), At<T>(out), out.num_elements()));
  }
  static void Scale(Queue& queue, const Tensor& factor, const Tensor& x, const Tensor& out) {
    Keep(queue,
         cuda::Scale<T>(StreamOf(queue), At<T>(factor), At<T>(x), At<T>(out), out.num_elements()));
  }
  // Describes the product and its operands to the device.
  static CudaProduct Of(Product p, const Tensor& a, const Tensor& b, const Tensor& c) {
    MUSTER_CHECK(a.dtype() == kType && b.dtype() == kType);
    return {.m = p.m,
            .n = p.n,
            .k = p.k,
            .transpose_a = p.transpose_a,
            .transpose_b = p.transpose_b,
            .type = kType,
            .result = c.dtype(),
            .a = a.raw_data(),
            .b = b.raw_data(),
            .addend = p.accumulate ? c.raw_data() : nullptr,
            .c = c.raw_data()};
  }
  static void Multiply(Queue& queue, Product p, const Tensor& a, const Tensor& b, const Tensor& c) {
    Keep(queue, CudaDevice::Of(queue).products().Multiply(StreamOf(queue), Of(p, a, b, c)));
  }

  // Whether it was put there in one pass.
  static bool MultiplyInOnePass(Queue& queue, const CudaProduct& product) {
    const CudaStream stream = StreamOf(queue);
    Products& products = CudaDevice::Of(queue).products();
    if (!products.HasInOnePass(product)) return false;
    const absl::Status status = products.Multiply(stream, product);
    if (absl::IsUnimplemented(status)) return false;
    Keep(queue, status);
    return true;
  }
  // GELU or its gradient on the product's way, or `in_passes`. Neither reads what it writes, so
  // that both may be tried.
  static void GeluOf(Queue& queue, const CudaProduct& product,
                     absl::FunctionRef<void()> in_passes) {
    const CudaDevice& device = CudaDevice::Of(queue);
    const auto in_one_pass = [&] { return MultiplyInOnePass(queue, product); };
    if (device.gelu_ways() != nullptr && !device.is_capturing()) {
      device.Keep(device.gelu_ways()->Learn(device.cuda(), StreamOf(queue), product, in_one_pass,
                                            in_passes));
    }
    const bool prefers_passes =
        device.gelu_ways() != nullptr && device.gelu_ways()->PrefersPasses(product);
    if (prefers_passes || !in_one_pass()) in_passes();
  }
  static void LinearForward(Queue& queue, Operations::Linear in, const Tensor& residual,
                            const Tensor& y) {
    CudaProduct product = Of(ForwardProduct(in.x, in.weight), in.x, in.weight, y);
    product.addend = At<T>(residual);
    product.epilogue = in.bias.empty() ? Epilogue::kNone : Epilogue::kBias;
    product.bias = At<T>(in.bias);
    if (!MultiplyInOnePass(queue, product)) LinearInPasses::LinearForward(queue, in, residual, y);
  }
  // GELU is on the way of products with a bias alone.
  static void LinearGelu(Queue& queue, Operations::Linear in, const Tensor& pre, const Tensor& y) {
    if (in.bias.empty()) return LinearInPasses::LinearGelu(queue, in, pre, y);
    CudaProduct product = Of(ForwardProduct(in.x, in.weight), in.x, in.weight, y);
    product.epilogue = Epilogue::kBiasGelu;
    product.bias = At<T>(in.bias);
    product.pre = At<T>(pre);
    GeluOf(queue, product, [&] {
      LinearForward(queue, in, {}, pre);
      GeluForward(queue, pre, y);
    });
  }
  static void GeluLinearInput(Queue& queue, const Tensor& dy, const Tensor& weight,
                              const Tensor& pre, const Tensor& dpre) {
    CudaProduct product = Of(InputProduct(dy, weight), dy, weight, dpre);
    product.epilogue = Epilogue::kGeluGradient;
    product.pre = At<T>(pre);
    GeluOf(queue, product, [&] { LinearInPasses::GeluLinearInput(queue, dy, weight, pre, dpre); });
  }
  // The gradient of the bias cannot be added to on the way.
  static void LinearWeight(Queue& queue, const Tensor& dy, const Tensor& x,
                           Operations::GradientSum dweight, Operations::GradientSum dbias) {
    const auto in_passes = [&] { LinearInPasses::LinearWeight(queue, dy, x, dweight, dbias); };
    if (dweight.to.empty() || dbias.to.empty() || dweight.to.dtype() != dbias.to.dtype()) {
      return in_passes();
    }
    const DType type = dbias.to.dtype();
    // Taken also where it is not used: which blocks a pool holds in the end depends on all that
    // were taken, and the plan knows of one micro-batch.
    const Tensor sums = Scratch(queue, type, dbias.to.num_elements());
    CudaProduct product = Of(WeightProduct(dy, x, dweight.accumulate), dy, x, dweight.to);
    product.epilogue = Epilogue::kBiasGradient;
    product.bias = dbias.accumulate ? sums.raw_data() : dbias.to.raw_data();
    if (!MultiplyInOnePass(queue, product)) return in_passes();
    if (dbias.accumulate) CudaOperations(type).add(queue, dbias.to, sums, dbias.to);
  }

  static void BiasFill(Queue& queue, const Tensor& bias, const Tensor& residual, const Tensor& y) {
    Keep(queue, cuda::BiasFill<T>(StreamOf(queue), RowsOf(y.shape()), At<T>(bias), At<T>(residual),
                                  At<T>(y)));
  }
  static void BiasGradient(Queue& queue, const Tensor& dy, const Tensor& dbias, bool accumulate) {
    const kernels::RowShape rows = RowsOf(dy.shape());
    const Tensor scratch = Scratch(queue, DType::kF32, cuda::ColumnScratch(rows));
    WithGradient<T>(dbias, [&](auto* to) {
      Keep(queue, cuda::BiasGradient(StreamOf(queue), rows, static_cast<const T*>(At<T>(dy)), to,
                                     accumulate, At<float>(scratch)));
    });
  }
  static void GeluForward(Queue& queue, const Tensor& x, const Tensor& y) {
    Keep(queue,
         cuda::BiasGeluForward<T>(StreamOf(queue), RowsOf(y.shape()),
                                  {.x = At<T>(x), .bias = nullptr, .pre = nullptr}, At<T>(y)));
  }
  static void GeluBackward(Queue& queue, const Tensor& x, const Tensor& dy, const Tensor& dx) {
    Keep(queue,
         cuda::GeluBackward<T>(StreamOf(queue), At<T>(x), At<T>(dy), At<T>(dx), dx.num_elements()));
  }

  static void SwiGluForward(Queue& queue, const Tensor& gate_up, const Tensor& y) {
    MUSTER_CHECK(gate_up.num_elements() == 2 * y.num_elements());
    Keep(queue,
         cuda::SwiGluForward<T>(StreamOf(queue), RowsOf(y.shape()), At<T>(gate_up), At<T>(y)));
  }
  static void SwiGluBackward(Queue& queue, const Tensor& gate_up, const Tensor& dy,
                             const Tensor& dgate_up) {
    MUSTER_CHECK(gate_up.num_elements() == 2 * dy.num_elements());
    Keep(queue, cuda::SwiGluBackward<T>(StreamOf(queue), RowsOf(dy.shape()), At<T>(gate_up),
                                        At<T>(dy), At<T>(dgate_up)));
  }

  static cuda::NormSaved NormSaved(const Operations::Norm& in) {
    float* const saved = At<float>(in.saved);
    if (in.shape.kind == kernels::NormKind::kRms) return {.mean = nullptr, .rstd = saved};
    return {.mean = saved, .rstd = saved + in.shape.rows};
  }
  static void NormForward(Queue& queue, Operations::Norm in, const Tensor& beta, double epsilon,
                          const Tensor& y) {
    Keep(queue,
         cuda::NormForward<T>(StreamOf(queue), in.shape, At<T>(in.x),
                              {.gamma = At<T>(in.gamma), .beta = At<T>(beta), .epsilon = epsilon},
                              At<T>(y), NormSaved(in)));
  }
  static void NormBackward(Queue& queue, Operations::Norm in, const Tensor& dy,
                           Operations::NormGradients to) {
    const Tensor scratch =
        to.dgamma.empty() ? Tensor() : Scratch(queue, DType::kF32, cuda::NormScratch(in.shape));
    WithGradient<T>(to.dgamma, [&](auto* dgamma) {
      using G = std::remove_pointer_t<decltype(dgamma)>;
      Keep(queue, cuda::NormBackward<T, G>(
                      StreamOf(queue), in.shape,
                      {.x = At<T>(in.x), .dy = At<T>(dy), .addend = At<T>(to.addend)},
                      At<T>(in.gamma), NormSaved(in), At<T>(to.dx),
                      {.dgamma = dgamma, .dbeta = At<G>(to.dbeta), .accumulate = to.accumulate},
                      At<float>(scratch)));
    });
  }

  static void EmbeddingForward(Queue& queue, kernels::EmbeddingShape shape, const int32_t* tokens,
                               const Tensor& table, const Tensor& positions, const Tensor& y) {
    Keep(queue, cuda::EmbeddingForward<T>(StreamOf(queue), shape, tokens, At<T>(table),
                                          At<T>(positions), At<T>(y)));
  }
  static void EmbeddingGradient(Queue& queue, kernels::EmbeddingShape shape, const int32_t* tokens,
                                const Tensor& dy, const Tensor& dtable, const Tensor& dpositions) {
    WithGradient<T>(dtable.empty() ? dpositions : dtable, [&](auto* to) {
      using G = std::remove_pointer_t<decltype(to)>;
      Keep(queue, cuda::EmbeddingBackward<T, G>(
                      StreamOf(queue), shape, tokens, At<T>(dy),
                      {.dtoken = At<G>(dtable), .dposition = At<G>(dpositions)}));
    });
  }

  static void Rotary(Queue& queue, kernels::RotaryShape shape,
                     const kernels::RotaryFrequencies& frequencies, const Tensor& x) {
    MUSTER_CHECK(kernels::CanRotate(shape));
    Keep(queue, cuda::Rotate<T>(StreamOf(queue), shape, frequencies, At<T>(x)));
  }

  static cuda::AttentionSaved AttentionSaved(const Tensor& saved) {
    return {.row_max = At<float>(saved), .row_scale = At<float>(saved) + saved.shape()[1]};
  }
  // The library's attention of that shape, once it is prepared. The answer is the same for both
  // passes.
  enum class Attends { kOwn, kLibrary, kNobody };
  static Attends WhoAttends(Queue& queue, const LibraryAttention& attention) {
    const CudaDevice& device = CudaDevice::Of(queue);
    if (kType == DType::kF32 || attention.shape.of_cache || device.attention() == nullptr) {
      return Attends::kOwn;
    }
    const absl::Status prepared = device.attention()->Prepare(attention);
    if (prepared.ok()) return Attends::kLibrary;
    return device.DoesWithout(prepared) ? Attends::kOwn : Attends::kNobody;
  }
  static LibraryAttention AttentionOf(Queue& queue, kernels::AttentionShape shape) {
    return {shape, kType, CudaDevice::Of(queue).attention_same_bits()};
  }
  static Tensor LibraryScratch(Queue& queue, int64_t bytes) {
    constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
    return Scratch(queue, DType::kF32, (bytes + kFloat - 1) / kFloat);
  }
  static void AttentionForward(Queue& queue, kernels::AttentionShape shape, const Tensor& qkv,
                               const Tensor& out, const Tensor& saved, const Tensor&) {
    const LibraryAttention attention = AttentionOf(queue, shape);
    switch (WhoAttends(queue, attention)) {
      case Attends::kOwn:
        return Keep(queue, cuda::AttentionForward<T>(StreamOf(queue), shape, At<T>(qkv), At<T>(out),
                                                     AttentionSaved(saved),
                                                     CudaDevice::Of(queue).shared_bytes_max()));
      case Attends::kNobody:
        return;
      case Attends::kLibrary:
        break;
    }
    AttentionLibrary& library = *CudaDevice::Of(queue).attention();
    const Tensor scratch = LibraryScratch(queue, library.WorkspaceOf(attention).forward);
    Keep(queue, library.Forward(StreamOf(queue), attention,
                                {.qkv = At<T>(qkv),
                                 .out = At<T>(out),
                                 .log_sums = At<float>(saved),
                                 .workspace = scratch.raw_data()}));
  }
  static void AttentionBackward(Queue& queue, kernels::AttentionShape shape,
                                Operations::AttentionGradient in, const Tensor& dqkv,
                                const Tensor&) {
    const LibraryAttention attention = AttentionOf(queue, shape);
    const Attends who = WhoAttends(queue, attention);
    if (who == Attends::kNobody) return;
    if (who == Attends::kLibrary) return LibraryAttentionBackward(queue, attention, in, dqkv);
    const Tensor scratch = Scratch(queue, DType::kF32, shape.query_rows());
    Keep(queue,
         cuda::AttentionBackward<T>(StreamOf(queue), shape, At<T>(in.qkv), AttentionSaved(in.saved),
                                    {.out = At<T>(in.out), .dout = At<T>(in.dout)}, At<T>(dqkv),
                                    At<float>(scratch), CudaDevice::Of(queue).shared_bytes_max()));
  }

  static void LibraryAttentionBackward(Queue& queue, const LibraryAttention& attention,
                                       Operations::AttentionGradient in, const Tensor& dqkv) {
    AttentionLibrary& library = *CudaDevice::Of(queue).attention();
    const Tensor scratch = LibraryScratch(queue, library.WorkspaceOf(attention).backward);
    Keep(queue, library.Backward(StreamOf(queue), attention,
                                 {.qkv = At<T>(in.qkv),
                                  .out = At<T>(in.out),
                                  .dout = At<T>(in.dout),
                                  .log_sums = At<float>(in.saved),
                                  .dqkv = At<T>(dqkv),
                                  .workspace = scratch.raw_data()}));
  }

  static void Squares(Queue& queue, const Tensor& x, const Tensor& partials) {
    MUSTER_CHECK(partials.num_elements() == kernels::NumNormBlocks(x.num_elements()));
    WithGradient<T>(x, [&](auto* from) {
      using G = std::remove_pointer_t<decltype(from)>;
      Keep(queue,
           cuda::SquaresByBlock<G>(StreamOf(queue), from, x.num_elements(), At<double>(partials)));
    });
  }

  static kernels::CrossEntropySum CrossEntropy(Queue& queue, const Tensor& logits,
                                               const int32_t* targets, const Tensor& dlogits,
                                               const Tensor& value, const Tensor& sum) {
    const kernels::RowShape rows = RowsOf(logits.shape());
    const bool learns = !dlogits.empty();
    if (learns && dlogits.raw_data() != logits.raw_data()) Copy(queue, logits, dlogits);
    const Tensor losses = Scratch(queue, DType::kF64, rows.rows);
    Keep(queue, cuda::CrossEntropyRows<T>(StreamOf(queue), {.rows = rows.rows, .width = rows.width},
                                          At<T>(learns ? dlogits : logits), targets,
                                          learns ? CudaDevice::Of(queue).one() : nullptr,
                                          At<double>(losses)));
    SumLosses(queue, losses, value, sum);
    return {};
  }

  // The table with rows of zeros behind it, where products need them.
  static Tensor PaddedTable(Queue& queue, const Tensor& table) {
    const int64_t vocabulary = table.shape()[0], width = table.shape()[1];
    const int64_t padded = kernels::PaddedVocabulary(vocabulary);
    if (padded == vocabulary) return table;
    const Tensor copy = Scratch(queue, kType, padded * width);
    Copy(queue, table, copy);
    Clear(queue, copy.Slice(vocabulary * width, {(padded - vocabulary) * width}));
    return copy;
  }

  static void HeadLoss(Queue& queue, Operations::HeadLoss in, const Tensor& dx,
                       const Tensor& dtable, const Tensor& value, const Tensor& sum) {
    const CudaDevice& device = CudaDevice::Of(queue);
    const kernels::RowShape rows = RowsOf(in.x.shape());
    const int64_t vocabulary = in.table.shape()[0];
    const int64_t padded = kernels::PaddedVocabulary(vocabulary);
    const int64_t chunk = kernels::RowsAtOnce(rows.rows, padded, device.logits_at_once());
    const Tensor table = PaddedTable(queue, in.table);
    const Tensor logits = Scratch(queue, kType, chunk * padded);
    const Tensor losses = Scratch(queue, DType::kF64, rows.rows);
    const float* scale = nullptr;
    if (!dx.empty() || !dtable.empty()) {
      scale = in.gradient_scale.empty() ? device.one() : At<float>(in.gradient_scale);
    }
    const auto multiply = [&]<typename C>(const cuda::DenseProduct<T, C>& p) {
      Keep(queue,
           device.products().Multiply(StreamOf(queue), {.m = p.m,
                                                        .n = p.n,
                                                        .k = p.k,
                                                        .transpose_a = p.transpose_a,
                                                        .transpose_b = p.transpose_b,
                                                        .type = kType,
                                                        .result = TypeOf<C>(),
                                                        .a = p.a,
                                                        .b = p.b,
                                                        .addend = p.accumulate ? p.c : nullptr,
                                                        .c = p.c}));
      return kernels::LaunchError(nullptr);  // the device keeps what failed
    };
    Keep(queue, cuda::ChunkedLoss<T, float>(StreamOf(queue),
                                            {.rows = rows.rows,
                                             .width = rows.width,
                                             .vocabulary = vocabulary,
                                             .chunk_rows = chunk,
                                             .padded = padded},
                                            {.x = At<T>(in.x),
                                             .weight = At<T>(table),
                                             .targets = in.targets,
                                             .gradient_scale = scale},
                                            {.losses = At<double>(losses),
                                             .dx = At<T>(dx),
                                             .dweight = At<float>(dtable),
                                             .logits = At<T>(logits),
                                             .accumulates = false},
                                            multiply));
    if (!value.empty()) SumLosses(queue, losses, value, sum);
  }

 private:
  static void SumLosses(Queue& queue, const Tensor& losses, const Tensor& value,
                        const Tensor& sum) {
    const int64_t rows = losses.num_elements();
    const Tensor scratch = Scratch(queue, DType::kF64, cuda::TreeScratch(rows) + 1);
    double* const total =
        sum.empty() ? At<double>(scratch) + cuda::TreeScratch(rows) : At<double>(sum);
    Keep(queue, cuda::SumLosses<T>(StreamOf(queue), At<double>(losses), rows, At<double>(scratch),
                                   total, At<T>(value)));
  }
};

}  // namespace

const Operations& CudaOperations(DType dtype) {
  static constexpr Operations kF32 = TableOf<CudaKernels<float>>();
  static constexpr Operations kBf16 = TableOf<CudaKernels<uint16_t>>();
  static constexpr Operations kF16 = TableOf<CudaKernels<kernels::Half>>();
  if (dtype == DType::kF32) return kF32;
  if (dtype == DType::kBf16) return kBf16;
  if (dtype == DType::kF16) return kF16;
  std::fprintf(stderr, "device cuda computes in f32, bf16 and f16, not in %s\n",
               std::string(ToString(dtype)).c_str());
  std::abort();
}

}  // namespace muster
