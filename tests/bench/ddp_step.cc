// Wall time of a data-parallel training step of a GPT (6 layers, 6 heads, hidden size 384, context
// 256, bytes), by kind of work, and the time that its products alone take at the rate this machine
// multiplies matrices at.
//
//   muster run --nproc_per_node=2 ddp_step [steps] [preset]
//
// One thread per rank, fp32, four sequences per rank and step: one micro-batch of them, or in a
// pipeline micro-batches of two; with "tp" they compute the layers of one micro-batch together.
// Its peer is ddp_step.py, the same model in PyTorch.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "muster/data.h"
#include "muster/decoder.h"
#include "muster/engine.h"
#include "muster/rng.h"
#include "muster/runtime.h"
#include "proto/base/status_macros.h"
#include "tests/bench/gemm_rate.h"
#include "worker_runtime/kernels/isa.h"

namespace muster {
namespace {

constexpr int64_t kRows = 4;
constexpr int64_t kRowsOfStages = 2;

class RandomTokens : public TokenSource {
 public:
  explicit RandomTokens(int64_t vocabulary) : vocabulary_(vocabulary) {}

  int64_t num_tokens() const override { return int64_t{1} << 20; }
  int64_t vocabulary() const override { return vocabulary_; }
  std::string Describe() const override { return "random tokens"; }
  absl::Status Read(int64_t first, absl::Span<int32_t> out) const override {
    for (int32_t& token : out) token = rng_.Below(static_cast<uint64_t>(vocabulary_), 0, first++);
    return absl::OkStatus();
  }

 private:
  const int64_t vocabulary_;
  const Rng rng_{1, "ddp_step"};
};

double Milliseconds(absl::Duration time) { return absl::ToDoubleMilliseconds(time); }

absl::Status Run(int64_t steps, const std::string& preset) {
  MUSTER_ASSIGN_OR_RETURN(const auto runtime, Runtime::FromEnvironment());
  MUSTER_ASSIGN_OR_RETURN(const auto world, runtime->MakeCommunicator("world"));
  const DecoderConfig config;
  const bool is_tensor = preset == "tp";
  MUSTER_ASSIGN_OR_RETURN(Plan plan, PlanPreset(is_tensor ? "ddp" : preset));
  if (is_tensor) plan.tensor_ranks = world->size();
  ParameterStore store(DType::kF32, TensorRanks::Of(world->rank(), plan.tensor_ranks));
  MUSTER_ASSIGN_OR_RETURN(const auto gpt, Decoder::Create(config, store));
  plan = CompletePlan(plan, world->size());
  plan.learning_rate = {.peak = 1e-4};
  const bool is_pipeline = plan.stages != 1;
  const Engine::BatchSize size = {.batch = is_pipeline ? kRowsOfStages : kRows,
                                  .sequence = config.context};
  if (is_pipeline) plan.accumulation = world->size() * kRows / kRowsOfStages;
  const RandomTokens tokens(config.vocabulary);
  MUSTER_ASSIGN_OR_RETURN(const auto engine,
                          Engine::Create(*world, store, plan, gpt->Units(), size));
  MUSTER_ASSIGN_OR_RETURN(const auto reader, engine->Read(tokens, size));
  const bool prints = world->rank() == 0;
  const double gemm_rate = bench::MeasureGemmRate(config, kRows * config.context);
  if (prints) {
    std::printf("ranks %d parameters %lld isa %s gemm %.1f GFLOP/s bound %.1f ms\n", world->size(),
                static_cast<long long>(store.num_elements()),
                std::string(kernels::ToString(kernels::BestIsa())).c_str(), gemm_rate / 1e9,
                1e3 * bench::StepFlops(config, kRows * config.context) / gemm_rate);
  }
  for (int64_t i = 0; i < steps; ++i) {
    MUSTER_ASSIGN_OR_RETURN(const StepResult result, engine->Step(*reader));
    if (!prints) continue;
    const StepTimes& times = result.times;
    std::printf(
        "step %lld loss %.6f forward %.1f backward %.1f wait %.1f update %.1f "
        "communication %.1f total %.1f ms\n",
        static_cast<long long>(result.step), result.loss, Milliseconds(times.forward),
        Milliseconds(times.backward), Milliseconds(times.wait), Milliseconds(times.update),
        Milliseconds(times.communication), Milliseconds(times.total));
  }
  return runtime->Finish(engine->step());
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  const int64_t steps = argc > 1 ? std::atoll(argv[1]) : 10;
  if (steps < 1) return 2;
  const absl::Status status = muster::Run(steps, argc > 2 ? argv[2] : "ddp");
  if (!status.ok()) std::fprintf(stderr, "ddp_step: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
