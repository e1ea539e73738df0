#include "tests/support/emulation/late_device.h"

#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "proto/base/status_macros.h"
#include "tests/support/emulation/counting_cuda.h"
#include "tests/support/emulation/emulated_stream.h"
#include "worker_runtime/cuda/cuda_device.h"
#include "worker_runtime/cuda/make_cuda_device.h"
#include "worker_runtime/nn/linear_in_passes.h"
#include "worker_runtime/nn/operations.h"

namespace muster::testing {
namespace {

// Arguments as they are kept until the kernel runs. Of tensors only the place: as on a GPU, their
// memory may go back to its pool before.
template <typename T>
struct Kept {
  explicit Kept(const T& argument) : value(argument) {}
  const T& Get() const { return value; }
  const T value;
};
template <>
struct Kept<Tensor> {
  explicit Kept(const Tensor& x)
      : value(x.empty() ? Tensor() : Tensor::Borrow(x.raw_data(), x.dtype(), x.shape())) {}
  const Tensor& Get() const { return value; }
  const Tensor value;
};
template <>
struct Kept<Operations::LayerNorm> {
  explicit Kept(const Operations::LayerNorm& in) : x(in.x), gamma(in.gamma), saved(in.saved) {}
  Operations::LayerNorm Get() const { return {x.Get(), gamma.Get(), saved.Get()}; }
  const Kept<Tensor> x, gamma, saved;
};
template <>
struct Kept<Operations::LayerNormGradients> {
  explicit Kept(const Operations::LayerNormGradients& in)
      : addend(in.addend),
        dx(in.dx),
        dgamma(in.dgamma),
        dbeta(in.dbeta),
        accumulate(in.accumulate) {}
  Operations::LayerNormGradients Get() const {
    return {addend.Get(), dx.Get(), dgamma.Get(), dbeta.Get(), accumulate};
  }
  const Kept<Tensor> addend, dx, dgamma, dbeta;
  const bool accumulate;
};
template <>
struct Kept<Operations::Updates> {
  explicit Kept(const Operations::Updates& in)
      : runs(in.runs.begin(), in.runs.end()),
        steps(in.steps.begin(), in.steps.end()),
        decisions(in.decisions) {}
  Operations::Updates Get() const { return {runs, steps, decisions.Get()}; }
  const std::vector<kernels::UpdateRun> runs;
  const std::vector<kernels::AdamWStep> steps;
  const Kept<Tensor> decisions;
};
template <>
struct Kept<Operations::AttentionGradient> {
  explicit Kept(const Operations::AttentionGradient& in)
      : qkv(in.qkv), saved(in.saved), out(in.out), dout(in.dout) {}
  Operations::AttentionGradient Get() const {
    return {qkv.Get(), saved.Get(), out.Get(), dout.Get()};
  }
  const Kept<Tensor> qkv, saved, out, dout;
};
template <>
struct Kept<Operations::AdamWArrays> {
  explicit Kept(const Operations::AdamWArrays& in)
      : gradient(in.gradient),
        value(in.value),
        first_moment(in.first_moment),
        second_moment(in.second_moment),
        rounded(in.rounded),
        draws(in.draws) {}
  Operations::AdamWArrays Get() const {
    return {gradient.Get(),      value.Get(),   first_moment.Get(),
            second_moment.Get(), rounded.Get(), draws};
  }
  const Kept<Tensor> gradient, value, first_moment, second_moment, rounded;
  const kernels::RoundingDraws draws;
};
template <>
struct Kept<Operations::Totals> {
  explicit Kept(const Operations::Totals& in)
      : squares(in.squares),
        tokens(in.tokens),
        loss_scale(in.loss_scale),
        loss(in.loss),
        learning_rate(in.learning_rate) {}
  Operations::Totals Get() const {
    return {squares.Get(), tokens.Get(), loss_scale.Get(), loss.Get(), learning_rate.Get()};
  }
  const Kept<Tensor> squares, tokens, loss_scale, loss, learning_rate;
};

// The host's kernel `kMember` for `kType`, put on the device's stream.
template <DType kType, auto kMember>
struct Late;
template <DType kType, typename Result, typename... Args,
          Result (*Operations::*kMember)(Queue&, Args...)>
struct Late<kType, kMember> {
  static Result Run(Queue& queue, Args... args) {
    const CudaDevice& device = CudaDevice::Of(queue);
    const auto kept = std::make_tuple(Kept<std::decay_t<Args>>(args)...);
    const kernels::LaunchError error =
        EmulatedStream::Of(device.stream(queue)).Enqueue([kept]() -> std::string {
          Queue host(Device::Cpu());
          const auto kernel = Device::Cpu().operations(kType).*kMember;
          std::apply([&](const auto&... each) { kernel(host, each.Get()...); }, kept);
          return "";
        });
    device.Keep(error);
    if constexpr (!std::is_void_v<Result>) return {.loss = NAN, .num_tokens = -1};
  }
};

template <DType kType>
constexpr Operations TableOf() {
  return {.copy = &Late<kType, &Operations::copy>::Run,
          .cast = &Late<kType, &Operations::cast>::Run,
          .clear = &Late<kType, &Operations::clear>::Run,
          .fill = &Late<kType, &Operations::fill>::Run,
          .add = &Late<kType, &Operations::add>::Run,
          .scale = &Late<kType, &Operations::scale>::Run,
          .multiply = &Late<kType, &Operations::multiply>::Run,
          .bias_fill = &Late<kType, &Operations::bias_fill>::Run,
          .bias_gradient = &Late<kType, &Operations::bias_gradient>::Run,
          .gelu_forward = &Late<kType, &Operations::gelu_forward>::Run,
          .gelu_backward = &Late<kType, &Operations::gelu_backward>::Run,
          .linear_forward = &LinearInPasses::LinearForward,
          .linear_gelu = &LinearInPasses::LinearGelu,
          .gelu_linear_input = &LinearInPasses::GeluLinearInput,
          .linear_weight = &LinearInPasses::LinearWeight,
          .layer_norm_forward = &Late<kType, &Operations::layer_norm_forward>::Run,
          .layer_norm_backward = &Late<kType, &Operations::layer_norm_backward>::Run,
          .embedding_forward = &Late<kType, &Operations::embedding_forward>::Run,
          .embedding_gradient = &Late<kType, &Operations::embedding_gradient>::Run,
          .attention_forward = &Late<kType, &Operations::attention_forward>::Run,
          .attention_backward = &Late<kType, &Operations::attention_backward>::Run,
          .squares = &Late<kType, &Operations::squares>::Run,
          .tree_sum = &Late<kType, &Operations::tree_sum>::Run,
          .decide_update = &Late<kType, &Operations::decide_update>::Run,
          .adamw = &Late<kType, &Operations::adamw>::Run,
          .sgd = &Late<kType, &Operations::sgd>::Run,
          .round_by_draws = &Late<kType, &Operations::round_by_draws>::Run,
          .cross_entropy = &Late<kType, &Operations::cross_entropy>::Run};
}

const Operations& LateOperations(DType dtype) {
  static constexpr Operations kF32 = TableOf<DType::kF32>();
  static constexpr Operations kBf16 = TableOf<DType::kBf16>();
  static constexpr Operations kF16 = TableOf<DType::kF16>();
  if (dtype == DType::kF32) return kF32;
  if (dtype == DType::kBf16) return kBf16;
  MUSTER_CHECK(dtype == DType::kF16);
  return kF16;
}

}  // namespace

std::unique_ptr<Device> MakeLateDevice(CudaApi& cuda) {
  return *MakeCudaDevice({.cuda = std::make_unique<CountingCuda>(cuda),
                          .products = nullptr,
                          .operations = &LateOperations});
}

}  // namespace muster::testing
