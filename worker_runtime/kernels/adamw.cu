// AdamW and Adam in one pass over all groups, after one thread has decided how.
#include "worker_runtime/kernels/adamw.h"

#include "worker_runtime/kernels/cuda_kernels.h"
#include "worker_runtime/kernels/device_numbers.h"
#include "worker_runtime/kernels/device_rounding.h"
#include "worker_runtime/kernels/device_runs.h"

namespace muster::kernels::cuda {
namespace {

constexpr double kNormSlack = 1e-6;
// Elements of a thread.
constexpr int kPerThread = kElementsPerDraw;

// x^n by squaring, as the host twin does it.
__device__ double Power(double x, int64_t n) {
  double result = 1;
  for (; n > 0; n /= 2, x *= x) {
    if (n % 2 == 1) result *= x;
  }
  return result;
}

// One thread.
__global__ void DecideKernel(UpdateSettings settings, GradientTotals totals,
                             UpdateDecision* decision) {
  if (threadIdx.x != 0) return;
  const double weight = totals.tokens[0] * totals.loss_scale[0];
  const double norm = sqrt(totals.squares[0]) / weight;
  decision->norm = norm;
  const double loss = totals.loss == nullptr ? 0 : totals.loss[0];
  // Infinities and NaN have no difference.
  decision->skipped = norm - norm == 0 && loss - loss == 0 ? 0 : 1;
  if (decision->skipped == 1) return;
  const double most = settings.max_norm / (norm + kNormSlack);
  const double clip = settings.max_norm > 0 && most < 1 ? most : 1.0;
  const AdamWStep& update = settings.update;
  const int64_t t = ++decision->updates;
  decision->gradient_scale = clip / weight;
  const double of_step = totals.learning_rate == nullptr ? 1 : totals.learning_rate[0];
  const double learning_rate = of_step * update.learning_rate;
  decision->learning_rate = learning_rate;
  decision->rate = static_cast<float>(-learning_rate / (1 - Power(update.beta1, t)));
  decision->root = static_cast<float>(1 / sqrt(1 - Power(update.beta2, t)));
  decision->keep =
      static_cast<float>(update.decays_gradient ? 1 : 1 - learning_rate * update.weight_decay);
  decision->beta1 = static_cast<float>(update.beta1);
  decision->rest1 = static_cast<float>(1 - update.beta1);
  decision->beta2 = static_cast<float>(update.beta2);
  decision->rest2 = static_cast<float>(1 - update.beta2);
  decision->epsilon = static_cast<float>(update.epsilon);
  decision->decay = static_cast<float>(update.decays_gradient ? update.weight_decay : 0.0);
}

__global__ void UpdateKernel(const RunsAtOnce runs, const UpdateDecision* decisions,
                             AdamWArrays arrays, RoundingDraws draws, int64_t n) {
  const int64_t first = GlobalThread() * kPerThread;
  if (first >= n) return;
  const UpdateDecision* const decision = decisions + GroupOf(runs, first);
  if (decision->skipped == 1) return;
  const float beta1 = decision->beta1, rest1 = decision->rest1;
  const float beta2 = decision->beta2, rest2 = decision->rest2;
  const float epsilon = decision->epsilon, decay = decision->decay, keep = decision->keep;
  const auto scale = static_cast<float>(decision->gradient_scale);
  float gradient[kPerThread], m[kPerThread], v[kPerThread], master[kPerThread];
  LoadUpTo(arrays.gradient, first, n, gradient);
  LoadUpTo(arrays.first_moment, first, n, m);
  LoadUpTo(arrays.second_moment, first, n, v);
  LoadUpTo(arrays.master, first, n, master);
  for (int i = 0; i < kPerThread; ++i) {
    const float g = fmaf(decay, master[i], scale * gradient[i]);
    m[i] = fmaf(rest1, g, beta1 * m[i]);
    v[i] = fmaf(rest2 * g, g, beta2 * v[i]);
    const float direction = m[i] / fmaf(sqrtf(v[i]), decision->root, epsilon);
    master[i] = fmaf(decision->rate, direction, keep * master[i]);
  }
  StoreUpTo(m, arrays.first_moment, first, n);
  StoreUpTo(v, arrays.second_moment, first, n);
  StoreUpTo(master, arrays.master, first, n);
  if (arrays.value == nullptr) return;
  StoreRounded(master, arrays.value, draws, decision->updates, first, n);
}

}  // namespace

LaunchError DecideUpdate(StreamHandle stream, const UpdateSettings& settings, GradientTotals totals,
                         UpdateDecision* decision) {
  return simt::Launch(&DecideKernel, {.blocks = 1, .threads = simt::kWarpSize}, stream, settings,
                      totals, decision);
}

LaunchError AdamWUpdate(StreamHandle stream, UpdateRuns runs, const UpdateDecision* decisions,
                        AdamWArrays arrays, RoundingDraws draws) {
  return ForRunsAtOnce(runs, [&](int64_t begin, const RunsAtOnce& some, int64_t n) {
    RoundingDraws from = draws;
    from.first_element += begin;
    const auto at = [begin](auto* array) { return array == nullptr ? nullptr : array + begin; };
    return simt::Launch(&UpdateKernel,
                        {.blocks = BlocksFor(n, kThreads * kPerThread), .threads = kThreads},
                        stream, some, decisions,
                        AdamWArrays{at(arrays.gradient), at(arrays.master), at(arrays.first_moment),
                                    at(arrays.second_moment), at(arrays.value)},
                        from, n);
  });
}

}  // namespace muster::kernels::cuda
