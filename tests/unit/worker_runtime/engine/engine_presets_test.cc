// What holds for every preset: bits, numbers, bytes, memory and checkpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/rng.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/engine/training_ranks.h"
#include "tests/unit/worker_runtime/engine/watched_communicator.h"
#include "worker_runtime/engine/meta_run.h"
#include "worker_runtime/plan/compile_program.h"
#include "worker_runtime/plan/prove_program.h"

namespace muster::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Le;

TEST(EveryPreset, GivesTheSameBitsInOrderedModeOnOneToEightRanks) {
  const std::string expected = Train(1, SmallPlan(SumMode::kOrdered, 8), 20).hash;
  for (const std::string& preset : DataParallelPresets()) {
    for (const int ranks : {1, 2, 4, 8}) {
      Plan plan = SmallPlan(SumMode::kOrdered, 8 / ranks);
      plan = Under(preset, plan, ranks);
      EXPECT_EQ(Train(ranks, plan, 20).hash, expected) << preset << " on " << ranks << " ranks";
    }
  }
}

TEST(EveryPreset, StaysWithinOneHundredThousandthOfOneProcess) {
  const Outcome one = Train(1, SmallPlan(SumMode::kFast, 6), 100);
  for (const std::string& preset : DataParallelPresets()) {
    Plan plan = SmallPlan(SumMode::kFast, 3);
    plan = Under(preset, plan, 2);
    plan.buckets.bytes_max = 20'000;
    EXPECT_LE(LargestRelativeDifference(Train(2, plan, 100).losses, one.losses), 1e-5) << preset;
  }
}

// Settings of buckets, gathering and overlap, drawn at random.
Plan Drawn(const Rng& rng, int draw, int ranks) {
  const std::vector<std::string> presets = DataParallelPresets();
  Plan plan = Under(presets[draw % presets.size()], SmallPlan(SumMode::kOrdered, 4 / ranks), ranks);
  plan.buckets.bytes_max = 256 + rng.Below(60'000, draw, 0);
  plan.buckets.first_bytes = 256 + rng.Below(20'000, draw, 1);
  plan.overlap = draw % 5 != 0;
  GatherPlan& gathering = plan.gathering;
  const std::vector<BackwardPrefetch> prefetches = {BackwardPrefetch::kPre, BackwardPrefetch::kPost,
                                                    BackwardPrefetch::kNone};
  gathering.backward_prefetch = prefetches[rng.Below(3, draw, 2)];
  gathering.prefetch_units = static_cast<int64_t>(rng.Below(4, draw, 3));
  gathering.prefetch_elements = static_cast<int64_t>(rng.Below(40'000, draw, 4));
  gathering.max_live_elements = 14'000 + static_cast<int64_t>(rng.Below(30'000, draw, 5));
  gathering.max_reuse_distance = static_cast<int64_t>(rng.Below(30'000, draw, 6));
  gathering.persistence_threshold = static_cast<int64_t>(rng.Below(3'000, draw, 7));
  return plan;
}

// Ranks that fall behind at random, before each collective and before and within passes, change the
// timing of everything but no bit.
TEST(EveryPreset, GivesTheSameBitsForTwoHundredSettingsUnderRandomDelays) {
  const std::string expected = Train(1, SmallPlan(SumMode::kOrdered, 4), 4).hash;
  const Rng rng(5, "engine_presets_test settings");
  for (int draw = 0; draw < 200; ++draw) {
    const int ranks = draw % 2 == 0 ? 4 : 2;
    const Plan plan = Drawn(rng, draw, ranks);
    const auto hashes = OnRanks<std::string>(ranks, [&](Communicator& world) {
      uint64_t delays = 2;
      const auto delay = [&] {
        const uint64_t micros = rng.Below(300, draw, 10 * delays++ + world.rank());
        std::this_thread::sleep_for(std::chrono::microseconds(micros));
      };
      WatchedCommunicator delaying(world, [&](int64_t) { delay(); });
      auto training = SmallTraining::Create(delaying, plan);
      if (!training.ok()) return training.status().ToString();
      (*training)->before_forward = [&](int64_t) {
        delay();
        return absl::OkStatus();
      };
      (*training)->within_backward = delay;
      const auto losses = (*training)->Steps(4);
      if (!losses.ok()) return losses.status().ToString();
      return (*training)->engine().ParameterHash().value_or("none");
    });
    EXPECT_THAT(hashes, Each(expected)) << "draw " << draw << ", preset " << plan.preset;
  }
}

// Known before the run, from the model on the meta device. Two ranks, three micro-batches each.
void ExpectPlannedMemory(const Plan& plan) {
  EngineMemory planned;
  const auto taken = OnRanks<EngineMemory>(2, [&](Communicator& world) {
    ParameterStore store;
    const auto gpt = Decoder::Create(kSmallGpt, store);
    std::unique_ptr<SmallBatch> batch;
    const auto forward = [&](Tape& tape, int64_t index) -> absl::StatusOr<Loss> {
      batch = std::make_unique<SmallBatch>(0, 3 * world.rank() + index);
      return (*gpt)->ComputeLoss(tape, batch->tokens(), batch->targets);
    };
    const auto memory = Engine::PlanMemory(store, plan, {world.size()}, forward);
    EXPECT_THAT(memory, IsOk());
    if (world.rank() == 0) {
      planned = *memory;
      planned.exchange = 0;  // of which loopback takes none
    }
    auto engine = Engine::Create(world, store, plan, [&](Tape& tape) { return forward(tape, 0); });
    for (int step = 0; step < 2; ++step) EXPECT_THAT((*engine)->Step(forward), IsOk());
    return (*engine)->memory();
  });
  EXPECT_EQ(std::max(taken[0].total(), taken[1].total()), planned.total()) << plan.preset;
  for (const EngineMemory& memory : taken) {
    EXPECT_LE(memory.total(), planned.total());
    EXPECT_EQ(memory.gathered, planned.gathered);
    EXPECT_EQ(memory.activations_peak, planned.activations_peak);
  }
}

TEST(EveryPreset, ReservesWhatItsProgramSays) {
  for (const std::string& preset : DataParallelPresets()) {
    for (const auto& [mode, rounds] :
         {std::pair{SumMode::kFast, false}, {SumMode::kFast, true}, {SumMode::kOrdered, false}}) {
      Plan plan = Under(preset, SmallPlan(mode, 3), 2);
      if (rounds) plan.dtypes.reduced = DType::kBf16;
      ExpectPlannedMemory(plan);
    }
  }
}

// What lies there in the middle of passes, not what the program says.
TEST(EveryPreset, KeepsItsLiveParametersUnderTheLimit) {
  constexpr int64_t kLimit = 14'000;  // a block of the model, and not two
  for (const std::string& preset : DataParallelPresets()) {
    Plan plan = Under(preset, SmallPlan(SumMode::kFast, 2), 4);
    plan.gathering.max_live_elements = kLimit;
    const auto most = OnRanks<int64_t>(4, [&](Communicator& world) {
      auto training = *SmallTraining::Create(world, plan);
      std::vector<Parameter*> at_rest_in_shards;
      for (const auto& parameter : training->store().parameters()) {
        if (parameter->value().empty()) at_rest_in_shards.push_back(parameter.get());
      }
      int64_t most = 0;
      const auto look = [&] {
        int64_t live = 0;
        for (const Parameter* parameter : at_rest_in_shards) {
          if (!parameter->value().empty()) live += parameter->num_elements();
        }
        most = std::max(most, live);
      };
      training->within_forward = look;
      training->within_backward = look;
      EXPECT_THAT(training->Steps(3), IsOk());
      return most;
    });
    EXPECT_THAT(most, Each(Le(kLimit))) << preset;
    EXPECT_EQ(most[0] > 0, plan.parameters.placement == Placement::kShard) << preset;
  }
}

// Expects it in both directions, and onto other numbers of ranks.
void ExpectCheckpointsFitEachOther(const std::vector<ParameterGroup>& groups,
                                   DType dtype = DType::kF32) {
  Plan alone = SmallPlan(SumMode::kOrdered, 1);
  alone.groups = groups;
  const std::string whole = Train(4, alone, 6, dtype).hash;
  const auto train = [&](const std::string& preset, int ranks, const std::string& directory,
                         bool loads, int steps) {
    return OnRanks<std::string>(ranks, [&](Communicator& world) {
      Plan plan = Under(preset, SmallPlan(SumMode::kOrdered, 4 / ranks), ranks);
      plan.groups = groups;
      auto training = SmallTraining::Create(world, plan, dtype);
      if (!training.ok()) return training.status().ToString();
      Engine& engine = (*training)->engine();
      if (loads) {
        EXPECT_THAT(engine.Load(directory), IsOk()) << preset;
      }
      EXPECT_THAT((*training)->Steps(steps), IsOk());
      if (!loads) {
        EXPECT_THAT(engine.Save(directory, {}), IsOk()) << preset;
      }
      return engine.ParameterHash().value_or("none");
    });
  };
  for (const std::string& preset : DataParallelPresets()) {
    TemporaryDirectory directory;
    train(preset, 4, directory.File("by"), false, 4);
    EXPECT_THAT(train("ddp", 2, directory.File("by"), true, 2), Each(whole)) << preset;
    train("ddp", 1, directory.File("ddp"), false, 4);
    for (const int ranks : {2, 4}) {
      EXPECT_THAT(train(preset, ranks, directory.File("ddp"), true, 2), Each(whole)) << preset;
    }
  }
}

TEST(EveryPreset, LoadsWhatAnyOtherSavedOnOtherRanks) { ExpectCheckpointsFitEachOther({}); }

// What the programs of `ranks` send in a step.
std::vector<plan::StepFigures> PlannedFigures(const Plan& plan, int ranks) {
  ParameterStore store;
  const auto gpt = *Decoder::Create(kSmallGpt, store);
  EXPECT_THAT(engine::FreezeGroups(store, plan), IsOk());
  const auto tokens = engine::SizesOf(kRows * kSmallGpt.context);
  const auto trace = *engine::RecordUse(store, plan, [&](Tape& tape) -> absl::StatusOr<Loss> {
    return gpt->ComputeLoss(tape, {tokens, kRows, kSmallGpt.context}, tokens);
  });
  const auto parameters = engine::InfoOf(store);
  const std::vector<plan::StageInfo> stages = {
      plan::WholeModel(plan::PlanBlockLayout(parameters), trace)};
  const plan::ProgramInput input = {.plan = plan,
                                    .parameters = parameters,
                                    .types = plan::TypesOf(plan, DType::kF32),
                                    .mesh = *plan::MeshOf(plan, 1, ranks),
                                    .stages = stages};
  std::vector<plan::StepFigures> figures;
  for (int rank = 0; rank < ranks; ++rank) {
    figures.push_back(plan::FiguresOf(plan::CompileProgram(input, rank)));
  }
  return figures;
}

// Looks at one step that is not the first.
void ExpectPlannedBytes(const Plan& plan) {
  const auto sent = OnRanks<int64_t>(4, [&](Communicator& world) {
    auto training = SmallTraining::Create(world, plan);
    EXPECT_THAT((*training)->Steps(1), IsOk());
    const int64_t before = (*training)->engine().bytes_sent();
    EXPECT_THAT((*training)->Steps(1), IsOk());
    return (*training)->engine().bytes_sent() - before;
  });
  const auto figures = PlannedFigures(plan, 4);
  for (int rank = 0; rank < 4; ++rank) {
    const auto planned = static_cast<double>(figures[rank].sent_total());
    EXPECT_NEAR(static_cast<double>(sent[rank]), planned, 0.01 * planned) << plan.preset;
  }
}

TEST(EveryPreset, SendsTheBytesThatItsProgramSays) {
  for (const std::string& preset : DataParallelPresets()) {
    for (const int64_t accumulation : {1, 3}) {
      ExpectPlannedBytes(Under(preset, SmallPlan(SumMode::kFast, accumulation), 4));
    }
  }
}

TEST(EveryPreset, SendsHalfTheGradientsWhereTheyTravelIn16Bits) {
  for (const std::string& preset : DataParallelPresets()) {
    for (const DType dtype : {DType::kBf16, DType::kF16}) {
      Plan plan = Under(preset, SmallPlan(SumMode::kFast, 2), 4);
      const plan::StepFigures whole = PlannedFigures(plan, 4)[0];
      plan.dtypes.reduced = dtype;
      const plan::StepFigures half = PlannedFigures(plan, 4)[0];
      for (const auto kind : {plan::ActionKind::kReduce, plan::ActionKind::kReplicate}) {
        EXPECT_EQ(2 * half.sent[static_cast<size_t>(kind)], whole.sent[static_cast<size_t>(kind)])
            << preset;
      }
      ExpectPlannedBytes(plan);
    }
  }
}

// One process sends nothing; ranks send their sums with 8 bits of mantissa, or 11.
TEST(EveryPreset, LearnsWithGradientsRoundedOnTheirWay) {
  const Outcome one = Train(1, SmallPlan(SumMode::kFast, 8), 30);
  for (const std::string& preset : DataParallelPresets()) {
    for (const DType dtype : {DType::kBf16, DType::kF16}) {
      Plan plan = Under(preset, SmallPlan(SumMode::kFast, 2), 4);
      plan.dtypes.reduced = dtype;
      plan.buckets.bytes_max = 20'000;
      const Outcome rounded = Train(4, plan, 30);
      const double difference = LargestRelativeDifference(rounded.losses, one.losses);
      EXPECT_LE(difference, dtype == DType::kBf16 ? 1e-2 : 2e-3) << preset;
      EXPECT_GE(difference, 1e-7) << preset << ": nothing was rounded";
    }
  }
}

TEST(ReduceDtype, IsRefusedWhereItCannotBe) {
  Plan plan = SmallPlan(SumMode::kOrdered, 1);
  plan.dtypes.reduced = DType::kBf16;
  EXPECT_THAT(plan.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("reduce_dtype")));
  plan.mode = SumMode::kFast;
  plan.dtypes.reduced = DType::kF64;
  const auto status = OnRanks<absl::Status>(
      1, [&](Communicator& world) { return SmallTraining::Create(world, plan).status(); })[0];
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("reduce_dtype is f64")));
}

// Whole units of them, and parts of one.
std::vector<ParameterGroup> FrozenParts() {
  return {{.parameters = "h.0.*", .frozen = true}, {.parameters = "h.1.mlp.*", .frozen = true}};
}
// All blocks, so that what learns is at both ends.
std::vector<ParameterGroup> FrozenBlocks() { return {{.parameters = "h.*", .frozen = true}}; }

TEST(EveryPreset, GivesTheSameBitsWhereverFrozenParametersLie) {
  for (const auto& groups : {FrozenParts(), FrozenBlocks()}) {
    for (const bool recomputes : {false, true}) {
      const auto train = [&](const std::string& preset, int ranks) {
        Plan plan = Under(preset, SmallPlan(SumMode::kOrdered, 4 / ranks), ranks);
        plan.groups = groups;
        if (recomputes) plan.recompute = {.kind = Recompute::Kind::kFull, .layers = 2};
        return Train(ranks, plan, 3).hash;
      };
      const std::string one = train("ddp", 1);
      for (const std::string& preset : DataParallelPresets()) {
        for (const int ranks : {1, 2, 4}) {
          EXPECT_EQ(train(preset, ranks), one) << preset << " on " << ranks << " ranks";
        }
      }
    }
  }
}

TEST(EveryPreset, ReservesAndSendsWhatItsProgramSaysWithFrozenParameters) {
  for (const auto& groups : {FrozenParts(), FrozenBlocks()}) {
    for (const std::string& preset : DataParallelPresets()) {
      Plan plan = Under(preset, SmallPlan(SumMode::kFast, 3), 2);
      plan.groups = groups;
      ExpectPlannedMemory(plan);
      plan = Under(preset, SmallPlan(SumMode::kFast, 1), 4);
      plan.groups = groups;
      ExpectPlannedBytes(plan);
    }
  }
}

TEST(EveryPreset, LoadsFrozenParametersThatAnyOtherSavedOnOtherRanks) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    ExpectCheckpointsFitEachOther(FrozenParts(), dtype);
  }
}

// Four ranks hold a quarter of what one holds, but for the blocks that shards are rounded up to.
TEST(Sharded, FrozenParametersRestAsShards) {
  for (const char* preset : {"full-shard", "zero-3", "fsdp"}) {
    Plan plan = Under(preset, SmallPlan(SumMode::kFast, 1), 4);
    plan.gathering.persistence_threshold = 0;
    const auto parameters = [&](int ranks) {
      return OnRanks<int64_t>(ranks, [&](Communicator& world) {
        return (*SmallTraining::Create(world, plan))->engine().memory().parameters;
      })[0];
    };
    const int64_t learned = parameters(4);
    plan.groups = FrozenBlocks();
    constexpr int64_t kUnits = 4;
    EXPECT_LE(parameters(4), learned + kUnits * 4096) << preset;
    EXPECT_LT(2 * parameters(4), parameters(1)) << preset;
  }
}

TEST(EveryPreset, EvaluatesWithoutTouchingAnything) {
  for (const std::string& preset : DataParallelPresets()) {
    OnRanks<int>(2, [&](Communicator& world) {
      const Plan plan = Under(preset, SmallPlan(SumMode::kFast, 2), 4);
      Plan of_two = plan;
      of_two.shard_ranks = 0;
      of_two.gathering.secondary_ranks = 0;
      auto training = SmallTraining::Create(world, of_two);
      const auto evaluated = (*training)->Evaluate(2);
      EXPECT_THAT(evaluated, IsOk());
      const absl::StatusOr<StepResult> step = (*training)->Step();
      EXPECT_THAT(step, IsOk());
      EXPECT_NEAR(evaluated->loss, step->loss, 1e-6) << preset;
      return 0;
    });
  }
}

// A model that uses its units in another order than its sample: a sentence on every rank, no hang.
TEST(Sharded, NamesTheUnitThatTheProgramDoesNotExpect) {
  const auto statuses = OnRanks<absl::Status>(2, [](Communicator& world) {
    ParameterStore store;
    auto gpt = Decoder::Create(kSmallGpt, store);
    const SmallBatch batch(0, world.rank());
    bool swaps = false;
    const auto forward = [&](Tape& tape) -> absl::StatusOr<Loss> {
      Activation x = (*gpt)->Embed(tape, batch.tokens());
      for (const int block : {0, 1}) {
        x = (*gpt)->blocks()[swaps && world.rank() == 1 ? 1 - block : block]->Forward(tape, x);
      }
      return CrossEntropy(tape, (*gpt)->Head(tape, x), batch.targets);
    };
    auto engine = Engine::Create(world, store, *PlanPreset("fsdp"), forward);
    EXPECT_THAT(engine, IsOk());
    const auto step = [&](Tape& tape, int64_t) { return forward(tape); };
    EXPECT_THAT((*engine)->Step(step), IsOk());
    swaps = true;
    return (*engine)->Step(step).status();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(std::string(status.message()), HasSubstr("the model uses unit h.0")) << status;
  }
}

// Elements of the collectives that the last of three steps makes, in their order.
std::vector<int64_t> ReducedByThirdStep(Communicator& world, bool has_sample) {
  std::vector<int64_t> counts;
  WatchedCommunicator watched(world, [&](int64_t count) { counts.push_back(count); });
  ParameterStore store;
  const Scope scope(store);
  std::vector<std::unique_ptr<Linear>> layers;  // used from the last to the first
  for (int i = 0; i < 3; ++i) {
    layers.push_back(
        std::make_unique<Linear>(scope / i, Linear::Options{.inputs = 40, .outputs = 40}));
  }
  const std::vector<int32_t> targets(4, 1);
  const auto forward = [&](Tape& tape) -> absl::StatusOr<Loss> {
    Activation x = {.value = tape.pool().Allocate(DType::kF32, {4, 40})};
    if (x.value.has_elements()) {
      for (float& element : x.value.span<float>()) element = 0.1f * (world.rank() + 1);
    }
    for (int i = 3; i-- > 0;) x = layers[i]->Forward(tape, x);
    return CrossEntropy(tape, x, targets);
  };
  Plan plan = SmallPlan(SumMode::kFast, 1);
  plan.buckets.first_bytes = 4096;  // one block, then two at a time
  plan.buckets.bytes_max = 8192;
  auto engine =
      Engine::Create(watched, store, plan, has_sample ? Engine::Sample(forward) : nullptr);
  EXPECT_THAT(engine, IsOk());
  for (int step = 0; step < 3; ++step) {
    counts.clear();
    EXPECT_THAT((*engine)->Step([&](Tape& tape, int64_t) { return forward(tape); }), IsOk());
  }
  return counts;
}

// Gradients are reduced in the order of the first step from then on, as where a sample tells it;
// here it is that of declaration.
TEST(Ddp, LearnsTheOrderOfGradientsFromItsFirstStep) {
  for (const bool has_sample : {false, true}) {
    const auto counts = OnRanks<std::vector<int64_t>>(
        2, [&](Communicator& world) { return ReducedByThirdStep(world, has_sample); });
    EXPECT_THAT(counts, Each(ElementsAre(2, 2048, 2048, 1024))) << "with a sample: " << has_sample;
  }
}

}  // namespace
}  // namespace muster::testing
