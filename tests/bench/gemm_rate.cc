#include "tests/bench/gemm_rate.h"

#include <algorithm>
#include <ctime>
#include <vector>

#include "worker_runtime/kernels/matmul.h"

namespace muster::bench {
namespace {

double ThreadSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

double MeasureGemmRate(const DecoderConfig& config, int64_t rows) {
  constexpr int kRuns = 15;
  const int64_t m = rows, k = config.hidden_size, n = 4 * config.hidden_size;
  std::vector<float> a(m * k, 0.5F), b(k * n, 0.25F), c(m * n);
  std::vector<double> rates;
  for (int run = 0; run < kRuns; ++run) {
    const double begin = ThreadSeconds();
    kernels::Matmul({.m = m, .n = n, .k = k}, 1.0F, {.data = a.data(), .stride = k},
                    {.data = b.data(), .stride = n}, {.data = c.data(), .stride = n});
    rates.push_back(2.0 * static_cast<double>(m * n * k) / (ThreadSeconds() - begin));
  }
  std::nth_element(rates.begin(), rates.begin() + kRuns / 2, rates.end());
  return rates[kRuns / 2];
}

double StepFlops(const DecoderConfig& config, int64_t rows) {
  const double hidden = static_cast<double>(config.hidden_size);
  const double weights = 12.0 * static_cast<double>(config.layers) * hidden * hidden +
                         static_cast<double>(config.vocabulary) * hidden;
  const double attention =
      static_cast<double>(config.layers) * static_cast<double>(config.context) * hidden;
  return 6.0 * static_cast<double>(rows) * (weights + attention);
}

}  // namespace muster::bench
