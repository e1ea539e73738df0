// Processor time of one training step (forward, backward, AdamW) of a GPT (6 layers, 6 heads,
// hidden size 384, context 256, bytes) in one thread.
//
//   step_bench [steps]       prints one line per step and the median: "step 3 loss 5.54 forward
//   201.2 ms …"
//
// Its peer is tests/bench/step_bench.py, the same model in PyTorch; run the two in turn, since
// machines are shared.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <vector>

#include "muster/decoder.h"
#include "muster/rng.h"
#include "worker_runtime/kernels/adamw.h"
#include "worker_runtime/kernels/isa.h"

namespace muster {
namespace {

constexpr int64_t kBatch = 4;

// Milliseconds of processor time: what others do on a shared machine counts less than in wall time.
double Now() { return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

std::vector<int32_t> RandomTokens(int64_t count, uint64_t vocabulary) {
  const Rng rng(1, "step_bench");
  std::vector<int32_t> tokens(count);
  for (int64_t i = 0; i < count; ++i) tokens[i] = rng.Below(vocabulary, 0, i);
  return tokens;
}

void Update(ParameterStore& store, const std::vector<float>& moments, int64_t step,
            int64_t num_tokens) {
  float* moment = const_cast<float*>(moments.data());
  kernels::AdamWStep options = {.learning_rate = 1e-4, .step = step};
  options.gradient_scale = 1.0 / static_cast<double>(num_tokens);
  for (const auto& parameter : store.parameters()) {
    const int64_t n = parameter->num_elements();
    options.weight_decay = parameter->spec().weight_decay ? 0.1 : 0;
    kernels::AdamW<float>().update(options, parameter->gradient().data<float>(),
                                   {.value = parameter->value().data<float>(),
                                    .first_moment = moment,
                                    .second_moment = moment + n},
                                   n);
    moment += 2 * n;
  }
}

int Run(int steps) {
  const DecoderConfig config;
  ParameterStore store;
  const auto model = Decoder::Create(config, store);
  if (!model.ok()) return 1;
  store.BindToOwnBuffers();
  store.Initialize(1);
  TensorPool pool;
  Tape tape(pool);
  const int64_t rows = kBatch * config.context;
  const std::vector<int32_t> tokens = RandomTokens(rows + 1, config.vocabulary);
  const absl::Span<const int32_t> targets(tokens.data() + 1, rows);
  const std::vector<float> moments(2 * store.num_elements());
  std::printf("parameters %lld isa %s\n", static_cast<long long>(store.num_elements()),
              std::string(kernels::ToString(kernels::BestIsa())).c_str());
  std::vector<double> totals;
  for (int step = 1; step <= steps; ++step) {
    const double start = Now();
    store.ForgetGradients();
    const Loss loss = (*model)->ComputeLoss(
        tape, {{tokens.data(), static_cast<size_t>(rows)}, kBatch, config.context}, targets);
    const double forward = Now();
    tape.Backward(loss.output);
    const double backward = Now();
    Update(store, moments, step, loss.num_tokens);
    const double end = Now();
    std::printf("step %d loss %.6f forward %.1f ms backward %.1f ms update %.1f ms total %.1f ms\n",
                step, loss.mean(), forward - start, backward - forward, end - backward,
                end - start);
    totals.push_back(end - start);
  }
  std::sort(totals.begin(), totals.end());
  std::printf("median %.1f ms, fastest %.1f ms, memory peak %.1f MB\n", totals[totals.size() / 2],
              totals[0], pool.usage().bytes_in_use_peak / 1e6);
  return 0;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 10;
  return steps < 1 ? 2 : muster::Run(steps);
}
