// A model with an operation of its own, beside frozen layers, under every plan.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/arithmetic.h"
#include "muster/engine.h"
#include "muster/layers.h"
#include "muster/low_rank.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/engine/training_ranks.h"
#include "worker_runtime/nn/operations.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kWidth = 32;
constexpr int64_t kMicroBatches = 4;  // of a step

// Three units of a layer and its adapter each, behind a table and before logits.
class Adapted {
 public:
  explicit Adapted(ParameterStore& store)
      : table_((store.BeginUnit("table"), Scope(store)), {.vocabulary = kSmallGpt.vocabulary,
                                                          .context = kSmallGpt.context,
                                                          .width = kWidth,
                                                          .initial_std = 0.5}) {
    for (int i = 0; i < 3; ++i) {
      store.BeginUnit(absl::StrCat("layer", i));
      const Scope scope = Scope(store) / "layer" / i;
      linear_.push_back(
          std::make_unique<Linear>(scope / "base", Linear::Options{kWidth, kWidth, 0.1}));
      adapter_.push_back(std::make_unique<LowRank>(
          scope / "adapter", LowRank::Options{.inputs = kWidth, .outputs = kWidth, .rank = 2}));
    }
    store.BeginUnit("head");
    head_ = std::make_unique<Linear>(Scope(store) / "head",
                                     Linear::Options{kWidth, kSmallGpt.vocabulary, 0.1});
  }
  Loss ComputeLoss(Tape& tape, const SmallBatch& batch) const {
    Activation x = table_.Forward(tape, batch.tokens());
    for (size_t i = 0; i < linear_.size(); ++i) {
      x = Add(tape, linear_[i]->Forward(tape, x), adapter_[i]->Forward(tape, x));
    }
    return CrossEntropy(tape, head_->Forward(tape, x), batch.targets);
  }

 private:
  const Embedding table_;
  std::vector<std::unique_ptr<Linear>> linear_;
  std::vector<std::unique_ptr<LowRank>> adapter_;
  std::unique_ptr<Linear> head_;
};

Outcome TrainAdapted(Communicator& world, const std::string& preset) {
  ParameterStore store;
  const Adapted model(store);
  Plan plan =
      Under(preset, SmallPlan(SumMode::kOrdered, kMicroBatches / world.size()), world.size());
  plan.gathering.persistence_threshold = 0;
  plan.groups = {{.parameters = "layer.*.base.*", .frozen = true}};
  const SmallBatch sample(0, 0);
  auto engine = Engine::Create(world, store, plan, [&](Tape& tape) -> absl::StatusOr<Loss> {
    return model.ComputeLoss(tape, sample);
  });
  if (!engine.ok()) return {engine.status()};
  Outcome outcome;
  for (int i = 0; i < 6; ++i) {
    std::unique_ptr<SmallBatch> batch;
    const auto step = (*engine)->Step([&](Tape& tape, int64_t index) -> absl::StatusOr<Loss> {
      batch = std::make_unique<SmallBatch>(i, world.rank() * plan.accumulation + index);
      return model.ComputeLoss(tape, *batch);
    });
    if (!step.ok()) return {step.status()};
    outcome.losses.push_back(step->loss);
  }
  outcome.hash = (*engine)->ParameterHash().value_or("none");
  return outcome;
}

TEST(OwnOperation, LearnsUnderEveryPlanWithTheBitsOfOneProcess) {
  const auto train = [](int ranks, const std::string& preset) {
    return OnRanks<Outcome>(ranks,
                            [&](Communicator& world) { return TrainAdapted(world, preset); });
  };
  const Outcome one = train(1, "ddp")[0];
  EXPECT_LT(one.losses.back(), one.losses.front());
  for (const std::string& preset : DataParallelPresets()) {
    for (const int ranks : {2, 4}) {
      for (const Outcome& outcome : train(ranks, preset)) {
        ASSERT_THAT(outcome.status, IsOk()) << preset;
        EXPECT_EQ(outcome.hash, one.hash) << preset << " on " << ranks << " ranks";
      }
    }
  }
}

// The sample shows it on every rank, before anybody waits for another; without one the step does.
TEST(OwnOperation, WhoseGradientDoesNotFitIsRefusedInASentence) {
  for (const bool has_sample : {true, false}) {
    const auto statuses = OnRanks<absl::Status>(2, [&](Communicator& world) -> absl::Status {
      ParameterStore store;
      store.BeginUnit("all");
      Parameter& table = Scope(store).Declare({"table", {8, 4}, Initializer::Normal(0.5)});
      const std::vector<int32_t> targets = {1, 2, 3};
      const auto loss = [&](Tape& tape) -> absl::StatusOr<Loss> {
        const Tensor x = tape.pool().Allocate(DType::kF32, {3, 4});
        tape.operations(DType::kF32).fill(tape.queue(), 1, x);
        const Activation y = tape.Record(
            TimesTransposed(tape, x, tape.Use(table)), {&table}, NoGradientFunction(),
            [&table](Tape& on, const Tensor& dy) { AddProductGradient(on, table, dy, dy); });
        return CrossEntropy(tape, y, targets);
      };
      MUSTER_ASSIGN_OR_RETURN(const auto engine,
                              Engine::Create(world, store, SmallPlan(SumMode::kFast, 1),
                                             has_sample ? Engine::Sample(loss) : Engine::Sample()));
      return engine->Step([&](Tape& tape, int64_t) { return loss(tape); }).status();
    });
    for (const absl::Status& status : statuses) {
      EXPECT_THAT(status.message(),
                  HasSubstr("AddProductGradient to table: [8, 4] and [3, 8] and [3, 8]"));
    }
  }
}

}  // namespace
}  // namespace muster::testing
