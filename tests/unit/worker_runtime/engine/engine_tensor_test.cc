// Layers that tensor ranks compute together, beside the same model on one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/engine/training_ranks.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kSteps = 20;
constexpr int64_t kMicroBatches = 4;  // of a step
constexpr Engine::BatchSize kSize = {.batch = 2, .sequence = 16};

constexpr DecoderConfig kFourHeads = {
    .layers = 2, .heads = 4, .hidden_size = 32, .context = 16, .vocabulary = 24};

// Parts as Llama's: two heads of keys serve four of queries.
DecoderConfig LikeLlama() {
  DecoderConfig config = kFourHeads;
  config.kv_heads = 2;
  config.mlp_size = 48;
  config.parts.norm = NormKind::kRms;
  config.parts.mlp = Nonlinearity::kSwiGlu;
  config.parts.biases = DecoderParts::Biases::kNone;
  config.parts.rotary = RotaryPositions{};
  config.parts.tied = false;
  return config;
}

// Parts as Qwen 3's, and the biases of 2.5.
DecoderConfig LikeQwen() {
  DecoderConfig config = LikeLlama();
  config.parts.head_norms = true;
  config.parts.biases = DecoderParts::Biases::kQkv;
  return config;
}

// How the ranks of a job lie, and what else its plan says.
struct Layout {
  std::string preset = "ddp";
  int tensor_ranks = 2;
  int replicas = 1;
  int64_t stages = 1;
  std::string schedule = "1f1b";
  Recompute::Kind recompute = Recompute::Kind::kNone;

  int ranks() const { return tensor_ranks * replicas * static_cast<int>(stages); }
};
constexpr Recompute::Kind kFull = Recompute::Kind::kFull;
constexpr Recompute::Kind kSelective = Recompute::Kind::kSelective;

std::ostream& operator<<(std::ostream& out, const Layout& layout) {
  return out << layout.preset << " tp=" << layout.tensor_ranks << " dp=" << layout.replicas
             << " pp=" << layout.stages << " " << layout.schedule << " recompute "
             << ToString(layout.recompute);
}

Plan PlanOf(const Layout& layout, SumMode mode = SumMode::kFast) {
  Plan plan = SmallPlan(mode, kMicroBatches / layout.replicas);
  plan = Under(layout.preset, plan, layout.replicas);
  plan.tensor_ranks = layout.tensor_ranks;
  plan.stages = layout.stages;
  plan.schedule = layout.schedule;
  plan.recompute.kind = layout.recompute;
  plan.buckets = {.bytes_max = 20'000, .first_bytes = 4'000};
  return plan;
}

// One rank of a job: its model, its engine and its batches.
struct Worker {
  static absl::StatusOr<std::unique_ptr<Worker>> Create(Communicator& world,
                                                        const DecoderConfig& config,
                                                        const Plan& plan, DType dtype,
                                                        const DecoderAdapters& adapters = {}) {
    auto worker = std::make_unique<Worker>(dtype, TensorRanks::Of(world.rank(), plan.tensor_ranks));
    MUSTER_ASSIGN_OR_RETURN(worker->model, Decoder::Create(config, worker->store, adapters));
    MUSTER_ASSIGN_OR_RETURN(
        worker->engine, Engine::Create(world, worker->store, plan, worker->model->Units(), kSize));
    return worker;
  }
  Worker(DType dtype, TensorRanks ranks) : store(dtype, ranks) {}

  absl::Status Steps(int steps) {
    MUSTER_ASSIGN_OR_RETURN(const auto reader, engine->Read(text, kSize));
    for (int step = 0; step < steps; ++step) {
      MUSTER_ASSIGN_OR_RETURN(const StepResult result, engine->Step(*reader));
      losses.push_back(result.loss);
      norms.push_back(result.gradient_norm);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Engine::Evaluation> Evaluate() {
    const SmallBatch batch(0, 0);
    return engine->Evaluate(1, [&](Tape& tape, int64_t) -> absl::StatusOr<Loss> {
      return model->ComputeLoss(tape, batch.tokens(), batch.targets);
    });
  }

  ParameterStore store;
  SmallText text;
  std::unique_ptr<Decoder> model;
  std::unique_ptr<Engine> engine;
  std::vector<double> losses;
  std::vector<double> norms;
};

// What a rank has seen and holds in the end.
struct Trained {
  absl::Status status;
  std::vector<double> losses;
  std::vector<double> norms;
  Engine::Evaluation evaluation;
  std::string hash;
  int64_t bytes_sent = 0;
};

// Files that a job begins with and ends with.
struct Places {
  std::string load;
  std::string save;
};

absl::StatusOr<Trained> TrainRank(Communicator& world, const DecoderConfig& config,
                                  const Plan& plan, DType dtype, int steps, const Places& places) {
  MUSTER_ASSIGN_OR_RETURN(const auto worker, Worker::Create(world, config, plan, dtype));
  if (!places.load.empty()) MUSTER_RETURN_IF_ERROR(worker->engine->Load(places.load).status());
  const int64_t sent_before = worker->engine->bytes_sent();
  MUSTER_RETURN_IF_ERROR(worker->Steps(steps));
  Trained trained = {.losses = worker->losses,
                     .norms = worker->norms,
                     .bytes_sent = worker->engine->bytes_sent() - sent_before};
  if (!places.save.empty()) MUSTER_RETURN_IF_ERROR(worker->engine->Save(places.save, {}));
  MUSTER_ASSIGN_OR_RETURN(trained.evaluation, worker->Evaluate());
  MUSTER_ASSIGN_OR_RETURN(trained.hash, worker->engine->ParameterHash());
  return trained;
}

// Ranks end alike; what the first has.
Trained TrainJob(const Layout& layout, const DecoderConfig& config, DType dtype,
                 SumMode mode = SumMode::kFast, int steps = kSteps, const Places& places = {}) {
  const auto all = OnRanks<Trained>(layout.ranks(), [&](Communicator& world) {
    auto trained = TrainRank(world, config, PlanOf(layout, mode), dtype, steps, places);
    return trained.ok() ? *trained : Trained{trained.status()};
  });
  for (const Trained& trained : all) {
    EXPECT_THAT(trained.status, IsOk()) << layout;
    EXPECT_EQ(trained.losses, all[0].losses) << layout;
    EXPECT_EQ(trained.norms, all[0].norms) << layout;
    EXPECT_EQ(trained.hash, all[0].hash) << layout;
  }
  return all[0];
}

constexpr Layout kOneRank = {.tensor_ranks = 1};

class EngineTensor : public ::testing::TestWithParam<Layout> {};

TEST_P(EngineTensor, TrainsAsOneRankDoes) {
  for (const DecoderConfig& config : {kFourHeads, LikeLlama(), LikeQwen()}) {
    if (config.key_heads() % GetParam().tensor_ranks != 0) continue;
    const Trained one = TrainJob(kOneRank, config, DType::kF64);
    const Trained shared = TrainJob(GetParam(), config, DType::kF64);
    ASSERT_THAT(shared.status, IsOk());
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(shared.losses[step], one.losses[step], 1e-12) << step;
      EXPECT_NEAR(shared.norms[step], one.norms[step], 1e-11) << step;
    }
    EXPECT_NEAR(shared.evaluation.loss, one.evaluation.loss, 1e-12);
    EXPECT_EQ(shared.evaluation.num_tokens,
              GetParam().ranks() / GetParam().tensor_ranks * one.evaluation.num_tokens);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, EngineTensor,
    ::testing::Values(Layout{}, Layout{.tensor_ranks = 4}, Layout{.replicas = 2},
                      Layout{.replicas = 2, .recompute = kFull}, Layout{.recompute = kSelective},
                      Layout{.preset = "zero-1", .replicas = 2},
                      Layout{.preset = "zero-2", .replicas = 2},
                      Layout{.preset = "zero-3", .replicas = 2},
                      Layout{.preset = "zero-3", .replicas = 4, .recompute = kFull},
                      Layout{.preset = "hybrid-shard", .replicas = 4}, Layout{.stages = 2},
                      Layout{.replicas = 2, .stages = 2, .schedule = "gpipe"},
                      Layout{.stages = 2, .schedule = "zb-h1"},
                      Layout{.preset = "zero-3", .replicas = 2, .stages = 2}));

TEST(EngineTensorBits, OfOrderedModeAreThoseOfAsManyTensorRanks) {
  const std::string expected = TrainJob({}, kFourHeads, DType::kF32, SumMode::kOrdered).hash;
  EXPECT_NE(expected, TrainJob(kOneRank, kFourHeads, DType::kF32, SumMode::kOrdered).hash);
  const Layout others[] = {{.replicas = 2},
                           {.replicas = 4, .recompute = kFull},
                           {.preset = "zero-1", .replicas = 2},
                           {.preset = "zero-2", .replicas = 4},
                           {.preset = "zero-3", .replicas = 2},
                           {.stages = 2},
                           {.replicas = 2, .stages = 2, .schedule = "gpipe"}};
  for (const Layout& other : others) {
    EXPECT_EQ(TrainJob(other, kFourHeads, DType::kF32, SumMode::kOrdered).hash, expected) << other;
  }
}

TEST(EngineTensorInitial, WeightsAreThoseOfTheUncutModel) {
  for (const DecoderConfig& config : {kFourHeads, LikeLlama()}) {
    const std::string whole = TrainJob(kOneRank, config, DType::kF32, SumMode::kFast, 0).hash;
    EXPECT_EQ(TrainJob({}, config, DType::kF32, SumMode::kFast, 0).hash, whole);
    EXPECT_EQ(
        TrainJob({.preset = "zero-3", .replicas = 2}, config, DType::kF32, SumMode::kFast, 0).hash,
        whole);
  }
}

// The half that makes gradients of weights has no sums: these are made with the inputs'.
TEST(EngineTensorAdapters, LearnAsTheyDoOnOneRank) {
  const DecoderAdapters adapters = {.rank = 3, .beside = "h.*.c_*.weight"};
  const auto train = [&](const Layout& layout) {
    return OnRanks<std::vector<double>>(layout.ranks(), [&](Communicator& world) {
      auto worker = Worker::Create(world, LikeLlama(), PlanOf(layout), DType::kF64, adapters);
      EXPECT_THAT(worker, IsOk());
      EXPECT_THAT((*worker)->Steps(kSteps), IsOk());
      return (*worker)->losses;
    })[0];
  };
  const std::vector<double> one = train(kOneRank);
  EXPECT_LT(one.back(), one.front());
  for (const Layout& layout :
       {Layout{}, Layout{.replicas = 2}, Layout{.recompute = kFull},
        Layout{.preset = "zero-3", .replicas = 2}, Layout{.stages = 2, .schedule = "zb-h1"}}) {
    const std::vector<double> shared = train(layout);
    ASSERT_EQ(shared.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(shared[i], one[i], 1e-12) << layout;
  }
}

// A scale that overflows at first, parameters of 16 bits and norms that are frozen.
TEST(EngineTensorSixteenBits, SkipAndGoOnAlike) {
  for (const char* preset : {"ddp", "zero-3"}) {
    Plan plan = PlanOf({.preset = preset, .replicas = 2});
    plan.loss_scaling = {.kind = LossScaling::Kind::kTorch, .initial = 0x1p40, .backoff = 0x1p-20};
    plan.groups = {{.parameters = "h.*.ln_1.*", .frozen = true}};
    const auto all = OnRanks<std::pair<std::vector<double>, std::string>>(
        4, [&](Communicator& world) -> std::pair<std::vector<double>, std::string> {
          auto worker = Worker::Create(world, kFourHeads, plan, DType::kF16);
          EXPECT_THAT(worker, IsOk());
          EXPECT_THAT((*worker)->Steps(12), IsOk());
          return {(*worker)->losses, *(*worker)->engine->ParameterHash()};
        });
    EXPECT_THAT(all, Each(all[0])) << preset;
    EXPECT_LT(all[0].first.back(), all[0].first.front());
  }
}

// Each layer adds up four times a micro-batch, of an activation; and one number of the norm.
TEST(EngineTensorBytes, AreThoseOfTheActivations) {
  const int64_t activation = kSize.batch * kSize.sequence * kFourHeads.hidden_size * 4;
  const int64_t sums = 4 * kFourHeads.layers * kMicroBatches;
  for (const int ranks : {2, 4}) {
    const Trained trained =
        TrainJob({.tensor_ranks = ranks}, kFourHeads, DType::kF32, SumMode::kFast, 1);
    const int64_t of_ring = 2 * (activation - activation / ranks) * sums;
    const int64_t norm = trained.bytes_sent - of_ring;
    EXPECT_GE(norm, 0) << ranks;
    EXPECT_LE(norm, 64) << ranks;
  }
}

TEST(EngineTensorMemory, IsPlannedAsItIsTaken) {
  const Layout layout = {.replicas = 2};
  const auto all = OnRanks<absl::StatusOr<EngineMemory>>(
      layout.ranks(), [&](Communicator& world) -> absl::StatusOr<EngineMemory> {
        MUSTER_ASSIGN_OR_RETURN(const auto worker,
                                Worker::Create(world, kFourHeads, PlanOf(layout), DType::kF32));
        MUSTER_RETURN_IF_ERROR(worker->Steps(2));
        return worker->engine->memory();
      });
  ParameterStore store(DType::kF32, TensorRanks::Of(0, layout.tensor_ranks));
  const auto model = *Decoder::Create(kFourHeads, store);
  const auto planned = Engine::PlanMemory(store, PlanOf(layout), {.world_size = layout.ranks()},
                                          model->Units(), kSize);
  ASSERT_THAT(planned, IsOk());
  for (const auto& taken : all) {
    ASSERT_THAT(taken, IsOk());
    EXPECT_EQ(taken->parameters, planned->parameters);
    EXPECT_EQ(taken->gradients, planned->gradients);
    EXPECT_EQ(taken->optimizer, planned->optimizer);
    EXPECT_EQ(taken->buffers, planned->buffers);
    EXPECT_NEAR(taken->activations_peak, planned->activations_peak,
                0.05 * planned->activations_peak);
  }
}

TEST(EngineTensorCheckpoint, HoldsTheWholeModelWhateverRanksHaveWrittenIt) {
  for (const DecoderConfig& config : {kFourHeads, LikeLlama()}) {
    const Layout writers[] = {
        {}, {.replicas = 2}, {.preset = "zero-3", .replicas = 2}, {.stages = 2}, kOneRank};
    const Layout readers[] = {{},
                              kOneRank,
                              {.tensor_ranks = 1, .replicas = 2},
                              {.preset = "zero-2", .tensor_ranks = 1, .replicas = 4},
                              {.preset = "zero-3", .replicas = 2},
                              {.tensor_ranks = 1, .stages = 2},
                              {.tensor_ranks = 4}};
    for (const Layout& writer : writers) {
      const TemporaryDirectory directory;
      const Trained written =
          TrainJob(writer, config, DType::kF64, SumMode::kFast, 3, {.save = directory.path()});
      for (const Layout& reader : readers) {
        if (config.key_heads() % reader.tensor_ranks != 0) continue;
        const Trained read =
            TrainJob(reader, config, DType::kF64, SumMode::kFast, 0, {.load = directory.path()});
        EXPECT_EQ(read.hash, written.hash) << writer << ", then " << reader;
      }
    }
  }
}

TEST(EngineTensorCheckpoint, GoesOnAsIfNothingHadHappened) {
  const Trained through = TrainJob(kOneRank, LikeLlama(), DType::kF64, SumMode::kFast, 10);
  const std::pair<Layout, Layout> changes[] = {
      {{}, {.preset = "zero-3", .tensor_ranks = 1, .replicas = 4}},
      {{.replicas = 2, .stages = 2}, {.tensor_ranks = 1}},
      {{.tensor_ranks = 1, .stages = 2}, {.preset = "zero-1", .replicas = 2}}};
  for (const auto& [before, after] : changes) {
    const TemporaryDirectory directory;
    TrainJob(before, LikeLlama(), DType::kF64, SumMode::kFast, 5, {.save = directory.path()});
    const Trained resumed =
        TrainJob(after, LikeLlama(), DType::kF64, SumMode::kFast, 5, {.load = directory.path()});
    ASSERT_EQ(resumed.losses.size(), 5U);
    for (int step = 0; step < 5; ++step) {
      EXPECT_NEAR(resumed.losses[step], through.losses[5 + step], 1e-12) << before << after;
    }
  }
}

// Rank 1 of four brings nothing: its part is the other replica's too.
TEST(EngineTensorSnapshot, OfAReplicaStandsForALostTensorRank) {
  const Plan plan = PlanOf({.replicas = 2});
  const auto train = [&](Communicator& world) -> absl::StatusOr<std::string> {
    MUSTER_ASSIGN_OR_RETURN(auto worker, Worker::Create(world, kFourHeads, plan, DType::kF32));
    MUSTER_RETURN_IF_ERROR(worker->Steps(3));
    MUSTER_ASSIGN_OR_RETURN(const std::string hash, worker->engine->ParameterHash());
    MUSTER_ASSIGN_OR_RETURN(EngineSnapshot snapshot, worker->engine->TakeSnapshot());
    worker.reset();
    if (world.rank() == 1) snapshot = {};
    Plan other = plan;
    other.seed = 77;
    MUSTER_ASSIGN_OR_RETURN(worker, Worker::Create(world, kFourHeads, other, DType::kF32));
    MUSTER_RETURN_IF_ERROR(worker->engine->Restore(snapshot).status());
    MUSTER_ASSIGN_OR_RETURN(const std::string restored, worker->engine->ParameterHash());
    EXPECT_EQ(restored, hash);
    return restored;
  };
  EXPECT_THAT(OnRanks<absl::StatusOr<std::string>>(4, train), Each(IsOk()));
}

TEST(EngineTensorSnapshot, GoesOnWithAsManyTensorRanks) {
  std::vector<EngineSnapshot> taken = OnRanks<EngineSnapshot>(2, [&](Communicator& world) {
    auto worker = *Worker::Create(world, kFourHeads, PlanOf({}), DType::kF32);
    EXPECT_THAT(worker->Steps(1), IsOk());
    return *worker->engine->TakeSnapshot();
  });
  const auto statuses = OnRanks<absl::Status>(2, [&](Communicator& world) {
    const Plan plan = PlanOf({.tensor_ranks = 1, .replicas = 2});
    auto worker = *Worker::Create(world, kFourHeads, plan, DType::kF32);
    return worker->engine->Restore(taken[world.rank()]).status();
  });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("is of 2 tensor ranks, and here are 1"))));
}

TEST(EngineTensorRefusals, NameTheNumbers) {
  const auto status_of = [](int ranks, const DecoderConfig& config, const Plan& plan,
                            int64_t of_store) {
    return OnRanks<absl::Status>(ranks, [&](Communicator& world) -> absl::Status {
      ParameterStore store(DType::kF32, TensorRanks::Of(world.rank(), of_store));
      MUSTER_ASSIGN_OR_RETURN(const auto model, Decoder::Create(config, store));
      return Engine::Create(world, store, plan, model->Units(), kSize).status();
    });
  };
  const Plan two = PlanOf({});
  EXPECT_THAT(status_of(2, kFourHeads, two, 1)[1],
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("tensor_ranks is 2"), HasSubstr("number 0 of 1"))));
  EXPECT_THAT(status_of(3, kFourHeads, two, 1)[0],
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("tensor_ranks is 2, which does not divide the ranks of the job, "
                                 "3; 1 or 3 would")));
  DecoderConfig three = kFourHeads;
  three.heads = 3;
  three.hidden_size = 48;
  EXPECT_THAT(status_of(2, three, two, 2)[0],
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has 3 heads")));
  const auto without_sample = OnRanks<absl::Status>(2, [&](Communicator& world) -> absl::Status {
    ParameterStore store(DType::kF32, TensorRanks::Of(world.rank(), 2));
    MUSTER_ASSIGN_OR_RETURN(const auto model, Decoder::Create(kFourHeads, store));
    return Engine::Create(world, store, two).status();
  });
  EXPECT_THAT(without_sample,
              Each(StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("as a sample"))));
}

// A layer of a program's own, whose outputs as many ranks do not share.
TEST(EngineTensorRefusals, NameTheParameterThatIsNotShared) {
  const auto statuses = OnRanks<absl::Status>(2, [&](Communicator& world) {
    ParameterStore store(DType::kF32, TensorRanks::Of(world.rank(), 2));
    const Linear odd(Scope(store) / "odd",
                     {.inputs = 4, .outputs = 7, .cut = Linear::Cut::kOutputs});
    return Engine::Create(world, store, PlanOf({})).status();
  });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                      AllOf(HasSubstr("odd.weight: its shape is [7, 4]"),
                                            HasSubstr("do not divide the 7")))));
}

}  // namespace
}  // namespace muster::testing
