// Pipelines in the order of each schedule: bits, checkpoints, memory, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/decoder.h"
#include "muster/engine.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/engine/training_ranks.h"
#include "worker_runtime/engine/cut_model.h"
#include "worker_runtime/engine/meta_run.h"
#include "worker_runtime/plan/compile_program.h"
#include "worker_runtime/plan/prove_program.h"
#include "worker_runtime/plan/stage_order.h"

namespace muster::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr DecoderConfig kModel = {
    .layers = 6, .heads = 2, .hidden_size = 32, .context = 16, .vocabulary = 24};
constexpr Engine::BatchSize kSize = {.batch = 1, .sequence = 16};
constexpr int64_t kMicroBatches = 8;  // of a step

// A text that can be learned.
class Sevens final : public TokenSource {
 public:
  int64_t num_tokens() const override { return 4000; }
  int64_t vocabulary() const override { return kModel.vocabulary; }
  std::string Describe() const override { return "multiples of seven"; }
  absl::Status Read(int64_t first, absl::Span<int32_t> out) const override {
    for (int32_t& token : out) token = static_cast<int32_t>(first++ * 7 % 23);
    return absl::OkStatus();
  }
};

struct Setting {
  std::string schedule = "1f1b";
  int64_t places = 1;
  int replicas = 1;
  std::string preset = "ddp";
  SumMode mode = SumMode::kOrdered;
  DType dtype = DType::kF32;
  std::string frozen;
  int64_t stages_per_rank = 0;
  bool overlap = true;
  GradientReduction reduction = GradientReduction::kChosen;

  int ranks() const { return static_cast<int>(places) * replicas; }
};

std::string Name(const Setting& setting) {
  return setting.schedule + " over " + std::to_string(setting.places) + " places of " +
         std::to_string(setting.replicas) + " under " + setting.preset;
}

Plan PlanOf(const Setting& setting) {
  Plan plan = Under(setting.preset, Plan(), setting.replicas);
  plan.stages = setting.places;
  plan.schedule = setting.schedule;
  plan.stages_per_rank = setting.stages_per_rank;
  plan.mode = setting.mode;
  plan.accumulation = kMicroBatches / setting.replicas;
  plan.learning_rate = {.peak = 3e-3};
  plan.buckets.bytes_max = 30'000;
  plan.overlap = setting.overlap;
  plan.gradient_reduction = setting.reduction;
  if (!setting.frozen.empty()) plan.groups = {{.parameters = setting.frozen, .frozen = true}};
  return plan;
}

Outcome TrainRank(Communicator& world, const Setting& setting, int steps, const std::string& load,
                  const std::string& save) {
  const Sevens text;
  ParameterStore store(setting.dtype);
  const auto gpt = *Decoder::Create(kModel, store);
  auto engine = Engine::Create(world, store, PlanOf(setting), gpt->Units(), kSize);
  if (!engine.ok()) return {engine.status()};
  Outcome outcome;
  if (!load.empty()) outcome.status = (*engine)->Load(load).status();
  auto reader = *(*engine)->Read(text, kSize);
  for (int i = 0; i < steps && outcome.status.ok(); ++i) {
    const auto step = (*engine)->Step(*reader);
    outcome.status = step.status();
    if (step.ok()) outcome.losses.push_back(step->loss);
  }
  if (!outcome.status.ok()) return outcome;
  if (!save.empty()) outcome.status = (*engine)->Save(save, {});
  const auto hash = (*engine)->ParameterHash();
  outcome.status.Update(hash.status());
  outcome.hash = hash.value_or("none");
  return outcome;
}

// Ends alike on all ranks.
Outcome Trained(const Setting& setting, int steps, const std::string& load = "",
                const std::string& save = "") {
  const auto outcomes = OnRanks<Outcome>(setting.ranks(), [&](Communicator& world) {
    return TrainRank(world, setting, steps, load, save);
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_THAT(outcome.status, IsOk()) << Name(setting);
    EXPECT_EQ(outcome.hash, outcomes[0].hash) << Name(setting);
    EXPECT_EQ(outcome.losses, outcomes[0].losses) << Name(setting);
  }
  return outcomes[0];
}

absl::Status Refusal(const Setting& setting) {
  return OnRanks<Outcome>(
             setting.ranks(),
             [&](Communicator& world) { return TrainRank(world, setting, 1, "", ""); })[0]
      .status;
}

// What a user may write: GPipe twice in a step, which keeps half of what GPipe keeps.
std::string TwoHalves(int64_t micro_batches) {
  std::string text =
      absl::StrCat("schedule halves\nmicro_batches ", micro_batches, "\nstages_on_ranks 0 1\n");
  for (const int rank : {0, 1}) {
    absl::StrAppend(&text, "rank ", rank, ":");
    for (const int64_t first : {int64_t{0}, micro_batches / 2}) {
      for (const char* pass : {"F", "B"}) {
        for (int64_t i = 0; i < micro_batches / 2; ++i) {
          absl::StrAppend(&text, " ", pass, rank, ".", first + i);
        }
      }
    }
    text.push_back('\n');
  }
  return text;
}

// The first of two ranks has the first stage and the last.
std::string UnequalStages(int64_t micro_batches) {
  std::string text = absl::StrCat("schedule unequal\nmicro_batches ", micro_batches,
                                  "\nstages_on_ranks 0 1 0\nrank 0:");
  for (int64_t m = 0; m < micro_batches; ++m) {
    absl::StrAppend(&text, " F0.", m, " F2.", m, " B2.", m, " B0.", m);
  }
  absl::StrAppend(&text, "\nrank 1:");
  for (int64_t m = 0; m < micro_batches; ++m) absl::StrAppend(&text, " F1.", m, " B1.", m);
  return text + "\n";
}

TEST(WrittenSchedule, MayGiveARankMoreStagesThanAnother) {
  const TemporaryDirectory folder;
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const std::string saved = folder.File(std::string(ToString(dtype)));
    const Outcome one = Trained({.dtype = dtype}, 3, "", saved);
    const Outcome gone_on = Trained({.dtype = dtype}, 2, saved);
    for (const std::string& preset : DataParallelPresets()) {
      const Setting setting = {.schedule = UnequalStages(kMicroBatches / 2),
                               .places = 2,
                               .replicas = 2,
                               .preset = preset,
                               .dtype = dtype};
      EXPECT_EQ(Trained(setting, 3).hash, one.hash) << Name(setting);
      EXPECT_EQ(Trained(setting, 2, saved).hash, gone_on.hash) << Name(setting);
    }
  }
}

TEST(WrittenSchedule, HasTheBitsOfOneProcess) {
  const Outcome one = Trained({}, 3);
  for (const int replicas : {1, 2}) {
    const Setting setting = {.schedule = TwoHalves(kMicroBatches / replicas),
                             .places = 2,
                             .replicas = replicas,
                             .preset = replicas == 1 ? "ddp" : "zero-3"};
    const Outcome outcome = Trained(setting, 3);
    EXPECT_EQ(outcome.hash, one.hash) << Name(setting);
    EXPECT_EQ(outcome.losses, one.losses) << Name(setting);
  }
  EXPECT_THAT(Refusal({.schedule = TwoHalves(4), .places = 2}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("schedule halves is for 4 micro-batches, and a step has 8")));
}

class EverySchedule : public ::testing::TestWithParam<const char*> {};

TEST_P(EverySchedule, HasTheBitsOfOneProcessWhateverItsRanksShard) {
  const Outcome one = Trained({}, 3);
  EXPECT_LT(one.losses.back(), one.losses.front());
  for (const int64_t places : {2, 4}) {
    for (const int replicas : {1, 2}) {
      for (const char* preset : {"ddp", "zero-1", "zero-2", "zero-3", "full-shard"}) {
        if (replicas == 1 && std::string(preset) != "ddp") continue;  // nobody to share with
        const Setting setting = {
            .schedule = GetParam(), .places = places, .replicas = replicas, .preset = preset};
        const Outcome outcome = Trained(setting, 3);
        EXPECT_EQ(outcome.hash, one.hash) << Name(setting);
        EXPECT_EQ(outcome.losses, one.losses) << Name(setting);
      }
    }
  }
}

TEST_P(EverySchedule, HasTheBitsOfOneProcessWithoutOverlapIn16BitsAndWithFrozenParameters) {
  const std::string one = Trained({}, 3).hash;
  for (const char* preset : {"ddp", "zero-1", "full-shard"}) {
    const Setting setting = {
        .schedule = GetParam(), .places = 2, .replicas = 2, .preset = preset, .overlap = false};
    EXPECT_EQ(Trained(setting, 3).hash, one) << Name(setting);
  }
  const std::string narrow = Trained({.dtype = DType::kBf16}, 3).hash;
  EXPECT_EQ(Trained({.schedule = GetParam(), .places = 2, .dtype = DType::kBf16}, 3).hash, narrow);
  for (const char* frozen : {"wte.weight", "h.1.*"}) {
    const std::string partly = Trained({.frozen = frozen}, 3).hash;
    for (const char* preset : {"ddp", "full-shard"}) {
      const Setting setting = {
          .schedule = GetParam(), .places = 2, .replicas = 2, .preset = preset, .frozen = frozen};
      EXPECT_EQ(Trained(setting, 3).hash, partly) << Name(setting) << " without " << frozen;
    }
  }
}

TEST_P(EverySchedule, StaysWithinOneHundredThousandthOfOneProcessInFastMode) {
  const Outcome one = Trained({.mode = SumMode::kFast}, 10);
  for (const char* preset : {"ddp", "zero-2", "full-shard"}) {
    for (const GradientReduction reduction :
         {GradientReduction::kEachMicroBatch, GradientReduction::kOnce}) {
      const Setting setting = {.schedule = GetParam(),
                               .places = 2,
                               .replicas = 2,
                               .preset = preset,
                               .mode = SumMode::kFast,
                               .reduction = reduction};
      EXPECT_LE(LargestRelativeDifference(Trained(setting, 10).losses, one.losses), 1e-5)
          << Name(setting);
    }
  }
}

TEST_P(EverySchedule, GoesOnFromTheCheckpointsOfOthersAndTheyFromIts) {
  const std::string whole = Trained({}, 4).hash;
  const Setting own = {.schedule = GetParam(), .places = 2, .replicas = 2, .preset = "full-shard"};
  const std::vector<Setting> others = {
      {}, {.schedule = "gpipe", .places = 3}, {.schedule = "interleaved", .places = 2}};
  const TemporaryDirectory of_own;
  Trained(own, 2, "", of_own.path());
  for (const Setting& other : others) {
    EXPECT_EQ(Trained(other, 2, of_own.path()).hash, whole) << Name(own) << " to " << Name(other);
    const TemporaryDirectory of_other;
    Trained(other, 2, "", of_other.path());
    EXPECT_EQ(Trained(own, 2, of_other.path()).hash, whole) << Name(other) << " to " << Name(own);
  }
}

// The ranks' parts after two steps; rank `lost` is replaced by one that has nothing.
std::string GoneOnWithout(int lost, const Setting& setting, int steps) {
  const auto engine_on = [&](Communicator& world, ParameterStore& store, const Decoder& gpt) {
    return *Engine::Create(world, store, PlanOf(setting), gpt.Units(), kSize);
  };
  const auto run = [](Engine& engine, int64_t steps) {
    const Sevens text;
    auto reader = *engine.Read(text, kSize);
    while (engine.step() < steps) ASSERT_THAT(engine.Step(*reader), IsOk());
  };
  std::vector<EngineSnapshot> brought =
      OnRanks<EngineSnapshot>(setting.ranks(), [&](Communicator& world) {
        ParameterStore store(setting.dtype);
        const auto gpt = *Decoder::Create(kModel, store);
        const auto engine = engine_on(world, store, *gpt);
        run(*engine, 2);
        return world.rank() == lost ? EngineSnapshot() : *engine->TakeSnapshot();
      });
  const auto hashes = OnRanks<std::string>(setting.ranks(), [&](Communicator& world) {
    ParameterStore store(setting.dtype);
    const auto gpt = *Decoder::Create(kModel, store);
    const auto engine = engine_on(world, store, *gpt);
    const auto restored = engine->Restore(brought[world.rank()]);
    if (!restored.ok()) return std::string(restored.status().message());
    run(*engine, steps);
    return *engine->ParameterHash();
  });
  EXPECT_THAT(hashes, Each(hashes[0]));
  return hashes[0];
}

TEST_P(EverySchedule, GoesOnFromWhatIsLeftOfStagesThatHaveReplicas) {
  for (const char* preset : {"ddp", "hybrid-shard"}) {
    const int replicas = preset == std::string("ddp") ? 2 : 4;
    const Setting setting = {
        .schedule = GetParam(), .places = 2, .replicas = replicas, .preset = preset};
    const std::string whole = Trained({}, 3).hash;
    for (const int lost : {0, replicas + 1}) {
      EXPECT_EQ(GoneOnWithout(lost, setting, 3), whole) << Name(setting) << " without " << lost;
    }
  }
}

TEST_P(EverySchedule, MissesAStageThatIsLost) {
  EXPECT_THAT(GoneOnWithout(1, {.schedule = GetParam(), .places = 2}, 3),
              HasSubstr("no whole state together: after step 2 they lack "));
}

// The programs of all ranks, from the model on the meta device.
std::vector<plan::Program> ProgramsOf(const Setting& setting) {
  ParameterStore store;
  const auto gpt = *Decoder::Create(kModel, store);
  const Plan plan = PlanOf(setting);
  const ModelInput sample = engine::SampleInput(kSize.batch, kSize.sequence);
  const int places = static_cast<int>(setting.places);
  const PipelineCut cut =
      *engine::CutModel(store, plan, plan::StagesOver(plan, places), gpt->Units(), sample);
  const auto traces = *engine::RecordStages(store, plan, cut, gpt->Units(), sample);
  const auto parameters = engine::InfoOf(store);
  const auto stages = engine::StagesOf(store, plan::PlanBlockLayout(parameters), cut, traces);
  std::vector<plan::Program> programs;
  for (int rank = 0; rank < setting.ranks(); ++rank) {
    programs.push_back(
        plan::CompileProgram({.plan = plan,
                              .parameters = parameters,
                              .types = plan::TypesOf(plan, DType::kF32),
                              .mesh = *plan::MeshOf(plan, places, places * setting.replicas),
                              .stages = stages},
                             rank));
  }
  return programs;
}

TEST_P(EverySchedule, SendsAndReservesWhatItsProgramsSay) {
  for (const char* preset : {"ddp", "zero-2", "full-shard"}) {
    const Setting setting = {.schedule = GetParam(),
                             .places = 2,
                             .replicas = 2,
                             .preset = preset,
                             .mode = SumMode::kFast};
    const std::vector<plan::Program> programs = ProgramsOf(setting);
    struct Taken {
      int64_t sent = 0;
      EngineMemory memory;
    };
    const auto taken = OnRanks<Taken>(setting.ranks(), [&](Communicator& world) {
      const Sevens text;
      ParameterStore store;
      const auto gpt = *Decoder::Create(kModel, store);
      auto engine = *Engine::Create(world, store, PlanOf(setting), gpt->Units(), kSize);
      auto reader = *engine->Read(text, kSize);
      EXPECT_THAT(engine->Step(*reader), IsOk());
      const int64_t before = engine->bytes_sent();
      EXPECT_THAT(engine->Step(*reader), IsOk());
      return Taken{engine->bytes_sent() - before, engine->memory()};
    });
    for (int rank = 0; rank < setting.ranks(); ++rank) {
      const plan::StepFigures figures = plan::FiguresOf(programs[rank]);
      const auto sent = static_cast<double>(figures.sent_total());
      EXPECT_NEAR(static_cast<double>(taken[rank].sent), sent, 0.01 * sent)
          << Name(setting) << ", rank " << rank;
      const auto planned = static_cast<double>(plan::TotalOf(figures.peak));
      EXPECT_NEAR(static_cast<double>(taken[rank].memory.total()), planned, 0.1 * planned)
          << Name(setting) << ", rank " << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, EverySchedule,
                         ::testing::Values("gpipe", "1f1b", "interleaved", "zb-h1", "zbv",
                                           "dualpipev"),
                         [](const auto& schedule) {
                           std::string name = schedule.param;
                           name.erase(std::remove(name.begin(), name.end(), '-'), name.end());
                           return name;
                         });

TEST(Schedules, HaveTheBitsOfOneProcessWithThreeStagesPerRank) {
  const std::string one = Trained({}, 3).hash;
  for (const int replicas : {1, 2}) {
    const Setting setting = {
        .schedule = "interleaved", .places = 2, .replicas = replicas, .stages_per_rank = 3};
    EXPECT_EQ(Trained(setting, 3).hash, one) << Name(setting);
  }
}

TEST(Schedules, AreRefusedWithTheNearestThatWorks) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(Refusal({.schedule = "1f1b", .places = 2, .stages_per_rank = 2}),
              StatusIs(kInvalid, HasSubstr("interleaved has several")));
  EXPECT_THAT(Refusal({.schedule = "interleaved", .places = 2, .stages_per_rank = 5}),
              StatusIs(kInvalid, HasSubstr("it has 8 units, and there are to be 10 stages")));
}

}  // namespace
}  // namespace muster::testing
