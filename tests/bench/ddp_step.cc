// Wall time of a data-parallel training step of a GPT (6 layers, 6 heads, hidden size 384, context 256, bytes), by kind
// of work, and the time that its products alone take at the rate this machine multiplies matrices at.
//
//   muster run --nproc_per_node=2 ddp_step [steps] [preset]
//
// One thread per rank, micro-batch 4, fp32. Its peer is ddp_step.py, the same model in PyTorch.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "muster/engine.h"
#include "muster/gpt.h"
#include "muster/rng.h"
#include "muster/runtime.h"
#include "proto/base/status_macros.h"
#include "tests/bench/gemm_rate.h"
#include "worker_runtime/kernels/isa.h"

namespace muster {
namespace {

constexpr int64_t kRows = 4;

double Milliseconds(absl::Duration time) { return absl::ToDoubleMilliseconds(time); }

absl::Status Run(int64_t steps, const std::string& preset) {
  MUSTER_ASSIGN_OR_RETURN(const auto runtime, Runtime::FromEnvironment());
  MUSTER_ASSIGN_OR_RETURN(const auto world, runtime->MakeCommunicator("world"));
  const GptConfig config;
  ParameterStore store;
  MUSTER_ASSIGN_OR_RETURN(const auto gpt, Gpt::Create(config, store));
  MUSTER_ASSIGN_OR_RETURN(Plan plan, PlanPreset(preset));
  plan = CompletePlan(plan, world->size());
  plan.learning_rate = {.peak = 1e-4};
  const Rng rng(1, "ddp_step");
  std::vector<int32_t> tokens(kRows * config.context + 1);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = rng.Below(config.vocabulary, world->rank(), i);
  }
  const auto inputs = absl::MakeConstSpan(tokens).first(tokens.size() - 1);
  const auto targets = absl::MakeConstSpan(tokens).subspan(1);
  const auto loss = [&](Tape& tape) -> absl::StatusOr<Loss> {
    return gpt->ComputeLoss(tape, {inputs, kRows, config.context}, targets);
  };
  MUSTER_ASSIGN_OR_RETURN(const auto engine, Engine::Create(*world, store, plan, loss));
  const bool prints = world->rank() == 0;
  const double gemm_rate = bench::MeasureGemmRate(config, kRows * config.context);
  if (prints) {
    std::printf("ranks %d parameters %lld isa %s gemm %.1f GFLOP/s bound %.1f ms\n", world->size(),
                static_cast<long long>(store.num_elements()),
                std::string(kernels::ToString(kernels::BestIsa())).c_str(), gemm_rate / 1e9,
                1e3 * bench::StepFlops(config, kRows * config.context) / gemm_rate);
  }
  for (int64_t i = 0; i < steps; ++i) {
    MUSTER_ASSIGN_OR_RETURN(const StepResult result,
                            engine->Step([&](Tape& tape, int64_t) { return loss(tape); }));
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
