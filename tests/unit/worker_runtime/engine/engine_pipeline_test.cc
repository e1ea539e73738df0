// A pipeline of two stages, with data-parallel replicas in each, from a program: to the bit what
// one process computes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/engine/training_ranks.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kSteps = 5;
constexpr int64_t kMicroBatches = 8;  // of a step

using Values = std::map<std::string, std::vector<float>>;

struct StageResult {
  absl::Status status;
  std::vector<double> losses;
  Values values;  // that the rank holds
  std::string hash;
};

Values ValuesOf(const ParameterStore& store) {
  Values values;
  for (const auto& parameter : store.parameters()) {
    if (parameter->value().empty()) continue;
    const auto span = parameter->value().span<float>();
    values[parameter->name()] = {span.begin(), span.end()};
  }
  return values;
}

Plan PipelinePlan(SumMode mode, int64_t accumulation) {
  Plan plan;
  plan.mode = mode;
  plan.accumulation = accumulation;
  plan.learning_rate = {.peak = 3e-3};
  plan.buckets.bytes_max = 30'000;
  return plan;
}

// The first stage has the embedding and block 0; the second block 1 and the head, which is tied to
// the embedding's table. `fails`: the forward pass of this rank does, in the second step.
StageResult TrainStage(Communicator& world, const Plan& plan, bool fails = false) {
  ParameterStore store;
  auto gpt = Decoder::Create(kSmallGpt, store);
  const PipelineCut cut = {.first_units = {0, 2},
                           .borrowed = {{}, {store.Find("wte.weight")}},
                           .received = {{}, {{kRows, kSmallGpt.context, kSmallGpt.hidden_size}}}};
  const int replicas = std::max(1, world.size() / 2);
  const int replica = world.rank() % replicas;
  const bool is_first = world.rank() < replicas;
  const auto compute = [&](Tape& tape, const SmallBatch& batch,
                           absl::Span<const Activation> received) -> StageOutput {
    if (is_first) {
      const Activation x = (*gpt)->Embed(tape, batch.tokens());
      return {.passed_on = {(*gpt)->blocks()[0]->Forward(tape, x)}};
    }
    const Activation x = (*gpt)->blocks()[1]->Forward(tape, received[0]);
    return {.loss = CrossEntropy(tape, (*gpt)->Head(tape, x), batch.targets)};
  };
  const SmallBatch sample(0, 0);
  auto engine = Engine::CreateStage(
      world, store, plan, cut,
      [&](Tape& tape, absl::Span<const Activation> received) -> absl::StatusOr<StageOutput> {
        return compute(tape, sample, received);
      });
  if (!engine.ok()) return {engine.status()};
  StageResult result;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<std::unique_ptr<SmallBatch>> batches(plan.accumulation);
    const auto forward = [&](Tape& tape, int64_t index,
                             absl::Span<const Activation> received) -> absl::StatusOr<StageOutput> {
      if (fails && step == 1) return absl::UnavailableError("cannot read b.txt");
      batches[index] = std::make_unique<SmallBatch>(step, replica * plan.accumulation + index);
      return compute(tape, *batches[index], received);
    };
    const auto stepped = (*engine)->StepStage(forward);
    if (!stepped.ok()) return {stepped.status()};
    result.losses.push_back(stepped->loss);
  }
  const absl::StatusOr<std::string> hash = (*engine)->ParameterHash().value_or("none");
  if (!hash.ok()) return {hash.status()};
  result.hash = *hash;
  result.values = ValuesOf(store);
  return result;
}

StageResult TrainWhole(Communicator& world, const Plan& plan) {
  auto training = SmallTraining::Create(world, plan);
  StageResult result;
  const auto losses = (*training)->Steps(kSteps);
  if (!losses.ok()) return {losses.status()};
  result.losses = *losses;
  result.values = ValuesOf((*training)->store());
  return result;
}

StageResult OneProcess() {
  return OnRanks<StageResult>(1, [](Communicator& world) {
    return TrainWhole(world, PipelinePlan(SumMode::kOrdered, kMicroBatches));
  })[0];
}

TEST(Pipeline, OfTwoStagesWithReplicasHasTheBitsOfOneProcess) {
  const StageResult expected = OneProcess();
  ASSERT_THAT(expected.status, IsOk());
  for (const int replicas : {1, 2, 4}) {
    const auto results = OnRanks<StageResult>(2 * replicas, [&](Communicator& world) {
      return TrainStage(world, PipelinePlan(SumMode::kOrdered, kMicroBatches / replicas));
    });
    Values together;
    for (const StageResult& result : results) {
      ASSERT_THAT(result.status, IsOk());
      EXPECT_EQ(result.losses, expected.losses);
      for (const auto& [name, values] : result.values) {
        EXPECT_EQ(values, expected.values.at(name)) << name << ", replicas " << replicas;
        together[name] = values;
      }
    }
    EXPECT_EQ(together.size(), expected.values.size()) << "each parameter is some stage's";
  }
}

TEST(Pipeline, ShardsTheOptimizerWithinAStage) {
  const StageResult expected = OneProcess();
  const auto results = OnRanks<StageResult>(4, [&](Communicator& world) {
    Plan plan = PipelinePlan(SumMode::kOrdered, kMicroBatches / 2);
    plan.optimizer.placement = Placement::kShard;
    return TrainStage(world, plan);
  });
  for (const StageResult& result : results) {
    ASSERT_THAT(result.status, IsOk());
    for (const auto& [name, values] : result.values) EXPECT_EQ(values, expected.values.at(name));
  }
}

// What a stage holds has one hash, whatever its ranks shard; units that the next stage borrows from
// stay whole.
TEST(Pipeline, ShardsEverythingWithinAStageToTheSameBits) {
  const auto train = [](const std::string& preset, int64_t accumulation) {
    return OnRanks<StageResult>(4, [&](Communicator& world) {
      Plan plan = Under(preset, PipelinePlan(SumMode::kOrdered, accumulation), 4);
      if (PlanPreset(preset)->gathering.secondary_ranks != 0) plan.gathering.secondary_ranks = 0;
      return TrainStage(world, plan);
    });
  };
  for (const int64_t accumulation : {1, 2, 4}) {
    const auto expected = train("ddp", accumulation);
    for (const std::string& preset : DataParallelPresets()) {
      const auto results = train(preset, accumulation);
      for (int rank = 0; rank < 4; ++rank) {
        ASSERT_THAT(results[rank].status, IsOk()) << preset;
        EXPECT_EQ(results[rank].losses, expected[rank].losses) << preset;
        EXPECT_EQ(results[rank].hash, expected[rank].hash) << preset << " on rank " << rank;
      }
    }
  }
}

TEST(Pipeline, IsCloseToOneProcessInFastMode) {
  const StageResult expected = OneProcess();
  const auto results = OnRanks<StageResult>(4, [&](Communicator& world) {
    return TrainStage(world, PipelinePlan(SumMode::kFast, kMicroBatches / 2));
  });
  for (const StageResult& result : results) {
    ASSERT_THAT(result.status, IsOk());
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(result.losses[step] / expected.losses[step], 1, 1e-5);
    }
  }
}

// Whatever they wait for: a transfer, a sum within their stage, or one over all.
TEST(Pipeline, TellsEveryRankOfAnErrorInOneStage) {
  for (const int failing : {0, 3}) {
    const auto results = OnRanks<StageResult>(4, [&](Communicator& world) {
      return TrainStage(world, PipelinePlan(SumMode::kFast, 3), world.rank() == failing);
    });
    for (int rank = 0; rank < 4; ++rank) {
      const auto code =
          rank == failing ? absl::StatusCode::kUnavailable : absl::StatusCode::kAborted;
      EXPECT_THAT(results[rank].status, StatusIs(code, HasSubstr("b.txt"))) << "rank " << rank;
    }
  }
}

TEST(Pipeline, RefusesACutThatDoesNotFit) {
  const auto statuses = OnRanks<absl::Status>(3, [](Communicator& world) {
    return TrainStage(world, PipelinePlan(SumMode::kFast, 2)).status;
  });
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kInvalidArgument,
                                    HasSubstr("3 ranks cannot be divided into 2 stages")));
}

}  // namespace
}  // namespace muster::testing
