// Activations that are computed again instead of kept: the same bits in less memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "muster/decoder.h"
#include "muster/engine.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/engine/training_ranks.h"

namespace muster::testing {
namespace {

using ::testing::Each;

constexpr DecoderConfig kDeepGpt = {
    .layers = 5, .heads = 2, .hidden_size = 32, .context = 16, .vocabulary = 24};

struct Outcome {
  absl::Status status;
  std::string hash;
  EngineMemory memory;
  EngineMemory planned;
};

Outcome TrainRank(Communicator& world, const Plan& plan) {
  Outcome outcome;
  ParameterStore store;
  const auto gpt = *Decoder::Create(kDeepGpt, store);
  std::unique_ptr<SmallBatch> batch;
  int64_t step = 0;
  const auto forward = [&](Tape& tape, int64_t index) -> absl::StatusOr<Loss> {
    batch = std::make_unique<SmallBatch>(step, world.rank() * plan.accumulation + index);
    return gpt->ComputeLoss(tape, batch->tokens(), batch->targets);
  };
  const auto planned = Engine::PlanMemory(store, plan, {world.size()}, forward);
  if (!planned.ok()) return {planned.status()};
  outcome.planned = *planned;
  const auto engine =
      Engine::Create(world, store, plan, [&](Tape& tape) { return forward(tape, 0); });
  outcome.status = engine.status();
  for (; outcome.status.ok() && step < 4; ++step)
    outcome.status = (*engine)->Step(forward).status();
  if (!outcome.status.ok()) return outcome;
  outcome.hash = (*engine)->ParameterHash().value_or("none");
  outcome.memory = (*engine)->memory();
  return outcome;
}

Outcome Train(const Recompute& recompute, SumMode mode, const LossScaling& scaling = {}) {
  Plan plan;
  plan.mode = mode;
  plan.accumulation = 2;
  plan.recompute = recompute;
  plan.loss_scaling = scaling;
  plan.buckets.bytes_max = 40'000;  // several, which overlap with the backward pass
  plan.buckets.first_bytes = 4096;
  const auto outcomes =
      OnRanks<Outcome>(2, [&](Communicator& world) { return TrainRank(world, plan); });
  EXPECT_THAT(outcomes[0].status, IsOk());
  EXPECT_EQ(outcomes[0].hash, outcomes[1].hash);
  EXPECT_EQ(outcomes[0].memory.activations_peak, outcomes[0].planned.activations_peak);
  return outcomes[0];
}

const std::vector<Recompute>& Kinds() {
  static const std::vector<Recompute> kinds = {
      {.kind = Recompute::Kind::kSelective},
      {.kind = Recompute::Kind::kFull},
      {.kind = Recompute::Kind::kFull, .layers = 2},
      {.kind = Recompute::Kind::kFull, .layers = 99},
  };
  return kinds;
}

TEST(Recompute, ChangesNoBit) {
  for (const SumMode mode : {SumMode::kOrdered, SumMode::kFast}) {
    const std::string expected = Train({}, mode).hash;
    for (const Recompute& recompute : Kinds()) {
      EXPECT_EQ(Train(recompute, mode).hash, expected)
          << ToString(mode) << " " << ToString(recompute.kind) << " " << recompute.layers;
    }
  }
}

TEST(Recompute, TakesTheMemoryThatItsPlanSays) {
  const auto peak = [](const Recompute& recompute) {
    return Train(recompute, SumMode::kFast).memory.activations_peak;  // which compares
  };
  const int64_t none = peak({});
  EXPECT_LT(peak(Kinds()[0]), none * 9 / 10);
  const int64_t each = peak(Kinds()[1]);
  EXPECT_LT(each, none / 2);
  EXPECT_LT(peak(Kinds()[3]), none * 3 / 2);  // nothing saved, and nothing lost twice over
}

TEST(Recompute, KeepsItsPlannedMemoryUnderALossScale) {
  Train({}, SumMode::kFast, LossScaling::Static(1024));
  Train({.kind = Recompute::Kind::kFull}, SumMode::kFast, LossScaling::Static(1024));
}

// A parameter that a region and the rest of the model use is ready once, when both have written.
TEST(Recompute, SaysThatAGradientIsReadyOnceItIsWhole) {
  ParameterStore store;
  const auto gpt = *Decoder::Create(kDeepGpt, store);
  store.BindToOwnBuffers();
  store.Initialize(1);
  TensorPool pool;
  Tape tape(pool);
  const SmallBatch batch(0, 0);
  const auto gradients = [&] {
    std::map<std::string, std::vector<float>> at_ready;
    tape.OnGradientReady([&](Parameter& parameter) {
      const auto span = parameter.gradient().span<float>();
      const bool first =
          at_ready.emplace(parameter.name(), std::vector<float>(span.begin(), span.end())).second;
      EXPECT_TRUE(first) << parameter.name();
    });
    store.ForgetGradients();
    Activation x = gpt->Embed(tape, batch.tokens());
    // A region that uses the token table too, and one within another.
    x = tape.Recomputed(x, [&](Tape& on, const Activation& in) {
      const Activation y = on.Recomputed(in, [&](Tape& inside, const Activation& z) {
        return gpt->blocks()[0]->Forward(inside, z);
      });
      const Activation table = gpt->Embed(on, batch.tokens());
      return Add(on, y, table);
    });
    tape.Backward(CrossEntropy(tape, gpt->Head(tape, x), batch.targets).output);
    for (const auto& [name, values] : at_ready) {
      const auto span = store.Find(name)->gradient().span<float>();
      EXPECT_EQ(values, std::vector<float>(span.begin(), span.end())) << name;
    }
    return at_ready;
  };
  const auto first = gradients();
  EXPECT_EQ(first.size(), 16);
  EXPECT_EQ(gradients(), first);
}

}  // namespace
}  // namespace muster::testing
