// Adapters of f32 over a frozen model in 16 bits, under every plan.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "muster/decoder.h"
#include "muster/engine.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/engine/training_ranks.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

constexpr Engine::BatchSize kSize = {.batch = kRows, .sequence = kSmallGpt.context};
constexpr int kMicroBatches = 4;  // of a step

struct Setting {
  std::string preset = "ddp";
  int stages = 1;
  int replicas = 1;
  DType model = DType::kBf16;
  DType adapters = DType::kF32;
  SumMode mode = SumMode::kOrdered;
};

DecoderAdapters AdaptersOf(const Setting& setting) {
  return {.rank = 2, .beside = "h.*.c_*.weight", .dtype = setting.adapters};
}

Plan PlanOf(const Setting& setting) {
  Plan plan = Under(setting.preset, SmallPlan(setting.mode, kMicroBatches / setting.replicas),
                    setting.replicas);
  plan.gathering.persistence_threshold = 0;
  plan.stages = setting.stages;
  return plan;
}

struct TypesOutcome : Outcome {
  EngineMemory memory = {};
};

// The rank that needs most holds what was planned for it.
void ExpectPlannedMemory(const Setting& setting, const std::vector<TypesOutcome>& outcomes) {
  ParameterStore store(setting.model);
  const auto gpt = *Decoder::Create(kSmallGpt, store, AdaptersOf(setting));
  const auto planned = Engine::PlanMemory(store, PlanOf(setting),
                                          {setting.stages * setting.replicas}, gpt->Units(), kSize);
  ASSERT_THAT(planned, IsOk());
  const auto holds_it = [&](const TypesOutcome& outcome) {
    const EngineMemory& held = outcome.memory;
    return held.parameters == planned->parameters && held.gathered == planned->gathered &&
           held.gradients == planned->gradients && held.optimizer == planned->optimizer;
  };
  EXPECT_TRUE(std::any_of(outcomes.begin(), outcomes.end(), holds_it))
      << setting.preset << " over " << setting.stages << " stages of " << setting.replicas;
}

TypesOutcome TrainRank(Communicator& world, const Setting& setting, const std::string& load,
                       const std::string& save) {
  const SmallText text;
  ParameterStore store(setting.model);
  const auto gpt = *Decoder::Create(kSmallGpt, store, AdaptersOf(setting));
  auto engine = Engine::Create(world, store, PlanOf(setting), gpt->Units(), kSize);
  TypesOutcome outcome;
  outcome.status = engine.status();
  if (!engine.ok()) return outcome;
  outcome.memory = (*engine)->memory();
  if (!load.empty()) outcome.status = (*engine)->Load(load).status();
  auto reader = *(*engine)->Read(text, kSize);
  for (int i = 0; i < 4 && outcome.status.ok(); ++i) {
    const auto step = (*engine)->Step(*reader);
    outcome.status = step.status();
    if (step.ok()) outcome.losses.push_back(step->loss);
  }
  if (!outcome.status.ok()) return outcome;
  if (!save.empty()) outcome.status = (*engine)->Save(save, {});
  outcome.hash = (*engine)->ParameterHash().value_or("none");
  return outcome;
}

Outcome Trained(const Setting& setting, const std::string& load = "",
                const std::string& save = "") {
  const int ranks = setting.stages * setting.replicas;
  const auto outcomes = OnRanks<TypesOutcome>(
      ranks, [&](Communicator& world) { return TrainRank(world, setting, load, save); });
  for (const TypesOutcome& outcome : outcomes) {
    EXPECT_THAT(outcome.status, IsOk()) << setting.preset << " on " << ranks;
    EXPECT_EQ(outcome.hash, outcomes[0].hash) << setting.preset << " on " << ranks;
  }
  ExpectPlannedMemory(setting, outcomes);
  return outcomes[0];
}

TEST(AdaptersOfF32, HaveTheBitsOfOneProcessAndThePlannedMemoryUnderEveryPlan) {
  for (const DType model : {DType::kBf16, DType::kF16}) {
    const Outcome one = Trained({.model = model});
    EXPECT_LT(one.losses.back(), one.losses.front());
    EXPECT_NE(one.hash, Trained({.model = model, .adapters = model}).hash);
    for (const std::string& preset : DataParallelPresets()) {
      for (const int replicas : {2, 4}) {
        const Setting setting = {.preset = preset, .replicas = replicas, .model = model};
        EXPECT_EQ(Trained(setting).hash, one.hash) << preset << " on " << replicas;
      }
    }
  }
}

TEST(AdaptersOf16Bits, HaveTheBitsOfOneProcessBesideAModelOfF32) {
  const Setting one = {.model = DType::kF32, .adapters = DType::kBf16};
  for (const char* preset : {"zero-2", "full-shard"}) {
    Setting setting = one;
    setting.preset = preset;
    setting.replicas = 2;
    EXPECT_EQ(Trained(setting).hash, Trained(one).hash) << preset;
  }
}

TEST(AdaptersOfF32, HaveTheBitsOfOneProcessInTheStagesOfAPipeline) {
  const Outcome one = Trained({});
  for (const char* preset : {"ddp", "zero-2", "full-shard"}) {
    const Setting setting = {.preset = preset, .stages = 2, .replicas = 2};
    EXPECT_EQ(Trained(setting).hash, one.hash) << preset;
  }
}

// Two bytes of a frozen parameter, and sixteen of one that learns, in its value, gradient and
// moments. Adapters in 16 bits take eighteen: they have masters.
TEST(AdaptersOfF32, TakeLessThanThoseOf16BitsThatHaveMasters) {
  const auto memory = [](DType adapters) {
    ParameterStore store(DType::kBf16);
    const Setting setting = {.adapters = adapters, .mode = SumMode::kFast};
    const auto gpt = *Decoder::Create(kSmallGpt, store, AdaptersOf(setting));
    return *Engine::PlanMemory(store, PlanOf(setting), {}, gpt->Units(), kSize);
  };
  const EngineMemory wide = memory(DType::kF32);
  const EngineMemory narrow = memory(DType::kBf16);
  const int64_t learned = wide.parameters - narrow.parameters;  // 2 bytes more of each
  EXPECT_EQ(wide.optimizer, 4 * learned);
  EXPECT_EQ(narrow.optimizer, 6 * learned);
  EXPECT_EQ(wide.gradients, 2 * learned);
}

// Checkpoints hold everything in f32, so the type of adapters may change between two of them.
TEST(AdaptersOfF32, GoOnFromWhatAnyPlanAndTypeHasSaved) {
  const TemporaryDirectory folder;
  const std::string whole = folder.File("whole");
  const std::string sharded = folder.File("sharded");
  const std::string narrow = folder.File("narrow");
  EXPECT_EQ(Trained({}, "", whole).hash,
            Trained({.preset = "full-shard", .replicas = 4}, "", sharded).hash);
  const Outcome gone_on = Trained({}, sharded);
  EXPECT_EQ(Trained({.preset = "zero-3", .replicas = 2}, whole).hash, gone_on.hash);
  EXPECT_EQ(Trained({.preset = "zero-3", .stages = 2, .replicas = 2}, whole).hash, gone_on.hash);
  Trained({.adapters = DType::kBf16}, whole, narrow);
  Trained({}, narrow);
}

absl::Status Refusal(DType model, DecoderAdapters adapters, bool learns_a_norm,
                     bool draws = false) {
  return OnRanks<absl::Status>(1, [&](Communicator& world) {
    ParameterStore store(model);
    const auto gpt = *Decoder::Create(kSmallGpt, store, adapters);
    if (learns_a_norm) {
      store.BeginUnit("own");
      Scope(store).Declare({.name = "norm", .shape = {8}});
    }
    Plan plan;
    plan.update.stochastic_rounding = draws;
    return Engine::Create(world, store, plan, gpt->Units(), kSize).status();
  })[0];
}

TEST(TypesOfParameters, ThatDoNotGoTogetherAreNamed) {
  const DecoderAdapters wide = {.rank = 2, .dtype = DType::kF32};
  EXPECT_THAT(Refusal(DType::kBf16, wide, true),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "h.0.attn.c_attn.lora.down is in f32 and norm in bf16: all parameters that "
                       "learn must have one type; those that are frozen may have another"));
  EXPECT_THAT(
      Refusal(DType::kF64, wide, false),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("wte.weight is frozen in f64, and h.0.attn.c_attn.lora.down learns "
                         "in f32: f64 stands beside no other type")));
  EXPECT_THAT(Refusal(DType::kBf16, wide, false, true),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("stochastic_rounding")));
}

}  // namespace
}  // namespace muster::testing
