// A small model trained by the ranks of a loopback group, each a thread: for tests of the engine.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/data.h"
#include "muster/decoder.h"
#include "muster/engine.h"
#include "muster/rng.h"
#include "proto/base/status_macros.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/data_parallel_presets.h"
#include "worker_runtime/comm/loopback/loopback_communicator.h"

namespace muster::testing {

inline constexpr DecoderConfig kSmallGpt = {
    .layers = 2, .heads = 2, .hidden_size = 32, .context = 16, .vocabulary = 24};
inline constexpr int64_t kRows = 2;

// Micro-batch `index` of `step`: sequences that can be learned, of which some targets do not count,
// so that micro-batches have different numbers of tokens.
struct SmallBatch {
  std::vector<int32_t> inputs;
  std::vector<int32_t> targets;

  SmallBatch(int64_t step, int64_t index) {
    const Rng rng(11, "training_ranks");
    for (int64_t row = 0; row < kRows; ++row) {
      int32_t token = rng.Below(kSmallGpt.vocabulary, step, index * kRows + row);
      for (int64_t i = 0; i < kSmallGpt.context; ++i) {
        inputs.push_back(token);
        token = (token * 5 + 3) % kSmallGpt.vocabulary;
        targets.push_back(i < index % 5 ? -1 : token);
      }
    }
  }
  TokenBatch tokens() const {
    return {.tokens = inputs, .batch = kRows, .sequence = kSmallGpt.context};
  }
};

// The same for readers of batches: tokens that can be learned.
class SmallText final : public TokenSource {
 public:
  int64_t num_tokens() const override { return 4000; }
  int64_t vocabulary() const override { return kSmallGpt.vocabulary; }
  std::string Describe() const override { return "a small text"; }
  absl::Status Read(int64_t first, absl::Span<int32_t> out) const override {
    for (int32_t& token : out) token = static_cast<int32_t>(first++ * 7 % 23);
    return absl::OkStatus();
  }
};

// One rank's model, engine and steps.
class SmallTraining {
 public:
  // `device`: see ParameterStore::PlaceOn.
  static absl::StatusOr<std::unique_ptr<SmallTraining>> Create(Communicator& world, Plan plan,
                                                               DType dtype = DType::kF32,
                                                               const Device* device = nullptr,
                                                               EngineOptions options = {}) {
    auto training =
        std::unique_ptr<SmallTraining>(new SmallTraining(world, dtype, plan.tensor_ranks));
    training->store_.PlaceOn(device);
    MUSTER_ASSIGN_OR_RETURN(training->gpt_, Decoder::Create(kSmallGpt, training->store_));
    MUSTER_ASSIGN_OR_RETURN(
        training->engine_,
        Engine::Create(
            world, training->store_, std::move(plan),
            [&](Tape& tape) { return training->Sample(tape); }, std::move(options)));
    return training;
  }

  // A rank's own delays and mistakes, or a look at what there is: called before each forward pass,
  // and within each pass after each block.
  std::function<absl::Status(int64_t index)> before_forward = [](int64_t) {
    return absl::OkStatus();
  };
  std::function<void()> within_forward = [] {};
  std::function<void()> within_backward = [] {};

  absl::StatusOr<StepResult> Step() {
    const int64_t accumulation = engine_->plan().accumulation;
    std::unique_ptr<SmallBatch> batch;
    return engine_->Step([&](Tape& tape, int64_t index) -> absl::StatusOr<Loss> {
      MUSTER_RETURN_IF_ERROR(before_forward(index));
      batch = std::make_unique<SmallBatch>(engine_->step(), replica_ * accumulation + index);
      return LossOf(tape, *batch);
    });
  }

  // What a micro-batch does, for the engine to see.
  absl::StatusOr<Loss> Sample(Tape& tape) {
    const SmallBatch batch(0, 0);
    return LossOf(tape, batch);
  }

  // The loss of the micro-batches that the next step takes.
  absl::StatusOr<Engine::Evaluation> Evaluate(int64_t num_batches) {
    std::unique_ptr<SmallBatch> batch;
    return engine_->Evaluate(num_batches, [&](Tape& tape, int64_t index) -> absl::StatusOr<Loss> {
      batch = std::make_unique<SmallBatch>(engine_->step(), replica_ * num_batches + index);
      return gpt_->ComputeLoss(tape, batch->tokens(), batch->targets);
    });
  }

  // The loss of each of the next `steps` steps.
  absl::StatusOr<std::vector<double>> Steps(int steps) {
    std::vector<double> losses;
    for (int i = 0; i < steps; ++i) {
      MUSTER_ASSIGN_OR_RETURN(const StepResult result, Step());
      losses.push_back(result.loss);
    }
    return losses;
  }

  Engine& engine() { return *engine_; }
  ParameterStore& store() { return store_; }

 private:
  Loss LossOf(Tape& tape, const SmallBatch& batch) {
    Activation x = gpt_->Embed(tape, batch.tokens());
    for (const auto& block : gpt_->blocks()) {
      x = block->Forward(tape, x);
      within_forward();
      const int slot = x.slot;
      x = tape.Record(
          x.value, {},
          [this, slot](Tape& replay, const Tensor& dy) {
            within_backward();
            replay.AddGradient(slot, dy);
          },
          NoGradientFunction());
    }
    return gpt_->HeadLoss(tape, x, batch.targets);
  }

  SmallTraining(Communicator& world, DType dtype, int64_t tensor_ranks)
      : world_(world),
        replica_(world.rank() / tensor_ranks),
        store_(dtype, TensorRanks::Of(world.rank(), tensor_ranks)) {}

  Communicator& world_;
  const int64_t replica_;  // where there is no pipeline
  ParameterStore store_;
  std::unique_ptr<Decoder> gpt_;
  std::unique_ptr<Engine> engine_;
};

// Runs `body` as every rank of a group; returns by rank.
template <typename Result>
std::vector<Result> OnRanks(int size, const std::function<Result(Communicator& world)>& body) {
  auto communicators = comm::MakeLoopbackCommunicators({.size = size});
  std::vector<Result> results(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { results[rank] = body(*communicators[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

inline Plan SmallPlan(SumMode mode, int64_t accumulation) {
  Plan plan;
  plan.mode = mode;
  plan.accumulation = accumulation;
  plan.learning_rate = {.peak = 3e-3};
  return plan;
}

// The placements of a preset; groups of half of the ranks where it has groups, and gathering that
// does something with a model as small.
inline Plan Under(const std::string& preset, Plan plan, int ranks) {
  const Plan from = CompletePlan(*PlanPreset(preset), std::max(1, ranks / 2));
  plan.preset = from.preset;
  plan.parameters = from.parameters;
  plan.gradients = from.gradients;
  plan.optimizer = from.optimizer;
  plan.shard_ranks = from.shard_ranks;
  plan.gathering = from.gathering;
  plan.gathering.persistence_threshold =
      std::min<int64_t>(from.gathering.persistence_threshold, 1024);
  plan.gathering.max_reuse_distance = std::min<int64_t>(from.gathering.max_reuse_distance, 15'000);
  return plan;
}

struct Outcome {
  absl::Status status;
  std::vector<double> losses;
  std::string hash;
};

// `device`: see ParameterStore::PlaceOn.
inline Outcome TrainRank(Communicator& world, const Plan& plan, int steps, DType dtype,
                         const Device* device) {
  auto training = SmallTraining::Create(world, plan, dtype, device);
  if (!training.ok()) return {training.status()};
  const auto losses = (*training)->Steps(steps);
  if (!losses.ok()) return {losses.status()};
  return {absl::OkStatus(), *losses, (*training)->engine().ParameterHash().value_or("none")};
}

// Opens the device of each rank; null: the host.
using OpenDevice = std::function<std::unique_ptr<Device>()>;

inline std::unique_ptr<Device> OnTheHost() { return nullptr; }

// All ranks end alike; returns what they share.
inline Outcome Train(int size, const Plan& plan, int steps, DType dtype = DType::kF32,
                     const OpenDevice& open = OnTheHost) {
  const auto outcomes = OnRanks<Outcome>(size, [&](Communicator& world) {
    const std::unique_ptr<Device> device = open();
    return TrainRank(world, plan, steps, dtype, device.get());
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_THAT(outcome.status, IsOk());
    EXPECT_EQ(outcome.hash, outcomes[0].hash);
    EXPECT_EQ(outcome.losses, outcomes[0].losses);
  }
  return outcomes[0];
}

inline double LargestRelativeDifference(const std::vector<double>& a,
                                        const std::vector<double>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(a[i] - b[i]) / std::abs(b[i]));
  }
  return largest;
}

}  // namespace muster::testing
