// Pipelines that the engine cuts from a model in units: bits, checkpoints, memory, bytes, and what
// is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/decoder.h"
#include "muster/engine.h"
#include "muster/pipeline.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/engine/training_ranks.h"
#include "worker_runtime/engine/cut_model.h"
#include "worker_runtime/engine/meta_run.h"
#include "worker_runtime/plan/compile_program.h"
#include "worker_runtime/plan/prove_program.h"

namespace muster::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr DecoderConfig kModel = {
    .layers = 4, .heads = 2, .hidden_size = 32, .context = 16, .vocabulary = 24};
constexpr Engine::BatchSize kSize = {.batch = 2, .sequence = 16};
constexpr int64_t kMicroBatches = 8;  // of a step

// A text that can be learned.
class SmallText final : public TokenSource {
 public:
  int64_t num_tokens() const override { return 4000; }
  int64_t vocabulary() const override { return kModel.vocabulary; }
  std::string Describe() const override { return "a small text"; }
  absl::Status Read(int64_t first, absl::Span<int32_t> out) const override {
    for (int32_t& token : out) token = static_cast<int32_t>(first++ * 7 % 23);
    return absl::OkStatus();
  }
};

struct Setting {
  int ranks = 1;
  int64_t stages = 1;
  std::string preset = "ddp";
  SumMode mode = SumMode::kOrdered;
  DType dtype = DType::kF32;
  std::string frozen;
  Recompute recompute;
  std::vector<UnitCost> unit_costs;
};

Plan PlanOf(const Setting& setting) {
  const int replicas = setting.ranks / static_cast<int>(setting.stages);
  Plan plan = Under(setting.preset, Plan(), replicas);
  plan.stages = setting.stages;
  plan.mode = setting.mode;
  plan.accumulation = kMicroBatches / replicas;
  plan.learning_rate = {.peak = 3e-3};
  plan.buckets.bytes_max = 30'000;
  plan.recompute = setting.recompute;
  plan.unit_costs = setting.unit_costs;
  if (!setting.frozen.empty()) plan.groups = {{.parameters = setting.frozen, .frozen = true}};
  return plan;
}

struct Rank {
  SmallText text;
  ParameterStore store;
  std::unique_ptr<Decoder> gpt;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<BatchReader> reader;

  explicit Rank(DType dtype) : store(dtype) {}

  static absl::StatusOr<std::unique_ptr<Rank>> Create(Communicator& world, const Plan& plan,
                                                      DType dtype, const std::string& load = "") {
    auto rank = std::make_unique<Rank>(dtype);
    MUSTER_ASSIGN_OR_RETURN(rank->gpt, Decoder::Create(kModel, rank->store));
    MUSTER_ASSIGN_OR_RETURN(rank->engine,
                            Engine::Create(world, rank->store, plan, rank->gpt->Units(), kSize));
    if (!load.empty()) MUSTER_RETURN_IF_ERROR(rank->engine->Load(load).status());
    MUSTER_ASSIGN_OR_RETURN(rank->reader, rank->engine->Read(rank->text, kSize));
    return rank;
  }
};

Outcome TrainStages(Communicator& world, const Setting& setting, int steps,
                    const std::string& load = "", const std::string& save = "") {
  auto rank = Rank::Create(world, PlanOf(setting), setting.dtype, load);
  if (!rank.ok()) return {rank.status()};
  Engine& engine = *(*rank)->engine;
  Outcome outcome;
  for (int i = 0; i < steps; ++i) {
    const auto step = engine.Step(*(*rank)->reader);
    if (!step.ok()) return {step.status()};
    outcome.losses.push_back(step->loss);
  }
  if (!save.empty()) outcome.status = engine.Save(save, {});
  const auto hash = engine.ParameterHash();
  outcome.status.Update(hash.status());
  outcome.hash = hash.value_or("none");
  return outcome;
}

// Ends alike on all ranks.
Outcome Trained(const Setting& setting, int steps, const std::string& load = "",
                const std::string& save = "") {
  const auto outcomes = OnRanks<Outcome>(setting.ranks, [&](Communicator& world) {
    return TrainStages(world, setting, steps, load, save);
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_THAT(outcome.status, IsOk());
    EXPECT_EQ(outcome.hash, outcomes[0].hash);
    EXPECT_EQ(outcome.losses, outcomes[0].losses);
  }
  return outcomes[0];
}

TEST(Stages, HaveTheBitsOfOneProcess) {
  const Outcome one = Trained({}, 8);
  EXPECT_LT(one.losses.back(), one.losses.front());
  for (const int64_t stages : {2, 3, 4, 6}) {
    for (const int replicas : {1, 2}) {
      const Setting setting = {.ranks = static_cast<int>(stages) * replicas, .stages = stages};
      const Outcome outcome = Trained(setting, 8);
      EXPECT_EQ(outcome.hash, one.hash) << stages << " stages of " << replicas;
      EXPECT_EQ(outcome.losses, one.losses) << stages << " stages of " << replicas;
    }
  }
  EXPECT_EQ(Trained({.ranks = 8, .stages = 2}, 8).hash, one.hash);
}

TEST(Stages, HaveTheBitsOfOneProcessWhateverTheirRanksShard) {
  const std::string one = Trained({}, 4).hash;
  for (const std::string& preset : DataParallelPresets()) {
    EXPECT_EQ(Trained({.ranks = 4, .stages = 2, .preset = preset}, 4).hash, one) << preset;
  }
}

TEST(Stages, HaveTheBitsOfOneProcessIn16BitsWithFrozenParametersAndRecomputing) {
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    const std::string one = Trained({.dtype = dtype}, 4).hash;
    EXPECT_EQ(Trained({.ranks = 3, .stages = 3, .dtype = dtype}, 4).hash, one) << ToString(dtype);
    EXPECT_EQ(Trained({.ranks = 4, .stages = 2, .preset = "zero-1", .dtype = dtype}, 4).hash, one)
        << ToString(dtype);
  }
  for (const char* frozen : {"wte.weight", "h.1.*", "w*", "h.*"}) {
    const std::string one = Trained({.frozen = frozen}, 4).hash;
    for (const char* preset : {"ddp", "zero-1", "zero-2", "full-shard"}) {
      const Setting setting = {.ranks = 4, .stages = 2, .preset = preset, .frozen = frozen};
      EXPECT_EQ(Trained(setting, 4).hash, one) << frozen << " under " << preset;
    }
    EXPECT_EQ(Trained({.ranks = 2, .stages = 2, .frozen = frozen}, 4).hash, one) << frozen;
  }
  const Recompute recompute = {.kind = Recompute::Kind::kFull, .layers = 2};
  EXPECT_EQ(Trained({.ranks = 3, .stages = 3, .recompute = recompute}, 4).hash,
            Trained({}, 4).hash);
}

TEST(Stages, StayWithinOneHundredThousandthOfOneProcessInFastMode) {
  const Outcome one = Trained({.mode = SumMode::kFast}, 30);
  for (const char* preset : {"ddp", "zero-1"}) {
    const Outcome outcome =
        Trained({.ranks = 6, .stages = 3, .preset = preset, .mode = SumMode::kFast}, 30);
    EXPECT_LE(LargestRelativeDifference(outcome.losses, one.losses), 1e-5) << preset;
  }
}

// Checkpoints go from any cut to any other, and to none.
TEST(Stages, GoOnFromTheCheckpointsOfOthers) {
  const std::vector<Setting> settings = {
      {},
      {.ranks = 2, .stages = 2},
      {.ranks = 4, .stages = 2, .preset = "zero-1"},
      {.ranks = 3, .stages = 3},
      {.ranks = 4, .stages = 2, .preset = "full-shard"},
      {.ranks = 2, .preset = "zero-3"},
  };
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const std::string whole = Trained({.dtype = dtype}, 6).hash;
    for (Setting from : settings) {
      const TemporaryDirectory directory;
      from.dtype = dtype;
      Trained(from, 3, "", directory.path());
      for (Setting to : settings) {
        to.dtype = dtype;
        const bool is_usual = dtype == DType::kF32 || to.stages != from.stages;
        if (!is_usual) continue;
        EXPECT_EQ(Trained(to, 3, directory.path()).hash, whole)
            << from.preset << " in " << from.stages << " stages, then " << to.preset << " in "
            << to.stages << ", " << ToString(dtype);
      }
    }
  }
}

TEST(Stages, GoOnFromTheCheckpointsOfOthersWithFrozenParameters) {
  const std::vector<Setting> settings = {
      {},
      {.ranks = 4, .stages = 2, .preset = "full-shard"},
      {.ranks = 2, .preset = "zero-3"},
  };
  for (const char* frozen : {"wte.weight", "h.1.*"}) {
    const std::string whole = Trained({.frozen = frozen}, 6).hash;
    for (Setting from : settings) {
      const TemporaryDirectory directory;
      from.frozen = frozen;
      Trained(from, 3, "", directory.path());
      for (Setting to : settings) {
        to.frozen = frozen;
        EXPECT_EQ(Trained(to, 3, directory.path()).hash, whole)
            << frozen << " from " << from.preset << " in " << from.stages << " stages to "
            << to.preset << " in " << to.stages;
      }
    }
  }
}

// Each rank may use the whole model between steps: a unit comes from the stage that holds it.
TEST(Stages, EvaluateAsOneProcessDoes) {
  const auto evaluate = [](const Setting& setting) {
    return OnRanks<double>(setting.ranks, [&](Communicator& world) {
      auto rank = *Rank::Create(world, PlanOf(setting), DType::kF32);
      EXPECT_THAT(rank->engine->Step(*rank->reader), IsOk());
      Batch batch;
      const BatchOptions options = {.batch = kSize.batch, .sequence = kSize.sequence};
      EXPECT_THAT(FillBatch(rank->text, options, 9, 0, batch), IsOk());
      const auto loss = [&](Tape& tape, int64_t) -> absl::StatusOr<Loss> {
        return rank->gpt->ComputeLoss(tape, batch.tokens(), batch.targets);
      };
      const auto evaluated = rank->engine->Evaluate(1, loss);
      EXPECT_THAT(evaluated, IsOk());
      // What was borrowed is back: the next step has the bits of one process.
      EXPECT_THAT(rank->engine->Step(*rank->reader), IsOk());
      const auto again = rank->engine->Evaluate(1, loss);
      return evaluated->loss + again->loss;
    });
  };
  const double one = evaluate({})[0];
  for (const char* preset : {"ddp", "full-shard"}) {
    for (const double loss : evaluate({.ranks = 4, .stages = 2, .preset = preset})) {
      EXPECT_DOUBLE_EQ(loss, one) << preset;
    }
  }
}

// The programs of all ranks, from the model on the meta device.
std::vector<plan::Program> ProgramsOf(const Setting& setting) {
  ParameterStore store;
  const auto gpt = *Decoder::Create(kModel, store);
  const Plan plan = PlanOf(setting);
  const ModelInput sample = engine::SampleInput(kSize.batch, kSize.sequence);
  const PipelineCut cut =
      *engine::CutModel(store, plan, static_cast<int>(setting.stages), gpt->Units(), sample);
  const auto traces = *engine::RecordStages(store, plan, cut, gpt->Units(), sample);
  const auto parameters = engine::InfoOf(store);
  const auto stages = engine::StagesOf(store, plan::PlanBlockLayout(parameters), cut, traces);
  std::vector<plan::Program> programs;
  for (int rank = 0; rank < setting.ranks; ++rank) {
    programs.push_back(
        plan::CompileProgram({.plan = plan,
                              .parameters = parameters,
                              .types = plan::TypesOf(plan, DType::kF32),
                              .mesh = *plan::MeshOf(plan, cut.stages(), setting.ranks),
                              .stages = stages},
                             rank));
  }
  return programs;
}

TEST(Stages, SendAndReserveWhatTheirProgramsSay) {
  for (const char* preset : {"ddp", "zero-1"}) {
    const Setting setting = {.ranks = 6, .stages = 3, .preset = preset, .mode = SumMode::kFast};
    const std::vector<plan::Program> programs = ProgramsOf(setting);
    struct Taken {
      int64_t sent = 0;
      EngineMemory memory;
    };
    const auto taken = OnRanks<Taken>(setting.ranks, [&](Communicator& world) {
      auto rank = *Rank::Create(world, PlanOf(setting), DType::kF32);
      EXPECT_THAT(rank->engine->Step(*rank->reader), IsOk());
      const int64_t before = rank->engine->bytes_sent();
      EXPECT_THAT(rank->engine->Step(*rank->reader), IsOk());
      return Taken{rank->engine->bytes_sent() - before, rank->engine->memory()};
    });
    for (int rank = 0; rank < setting.ranks; ++rank) {
      const plan::StepFigures figures = plan::FiguresOf(programs[rank]);
      const auto sent = static_cast<double>(figures.sent_total());
      EXPECT_NEAR(static_cast<double>(taken[rank].sent), sent, 0.01 * sent)
          << preset << " rank " << rank;
      const auto planned = static_cast<double>(plan::TotalOf(figures.peak));
      // What is on its way is more than a twentieth of a stage as small as the last.
      constexpr int64_t kHandedOn = 4 * 2 * 16 * 32;
      EXPECT_NEAR(static_cast<double>(taken[rank].memory.total()), planned,
                  std::max<double>(0.05 * planned, kHandedOn))
          << preset << " rank " << rank;
    }
  }
}

TEST(Stages, AreCutWhereTheyTakeAlikeLong) {
  ParameterStore store;
  const auto gpt = *Decoder::Create(kModel, store);
  const ModelInput sample = engine::SampleInput(kSize.batch, kSize.sequence);
  const auto cut = engine::CutModel(store, Plan(), 2, gpt->Units(), sample);
  ASSERT_THAT(cut, IsOk());
  // The embedding multiplies nothing, the head does little here: two blocks each.
  EXPECT_THAT(cut->first_units, ElementsAre(0, 3));
  EXPECT_THAT(cut->borrowed[1], ElementsAre(store.Find("wte.weight")));
  const Shape x = {kSize.batch, kSize.sequence, kModel.hidden_size};
  EXPECT_THAT(cut->received, ElementsAre(IsEmpty(), ElementsAre(x)));
}

TEST(Stages, AreCutByTheCostsThatTheirUnitsAreGiven) {
  ParameterStore store;
  const auto gpt = *Decoder::Create(kModel, store);
  const ModelInput sample = engine::SampleInput(kSize.batch, kSize.sequence);
  Plan plan = {.stages = 2, .unit_costs = {{"embedding", 1}, {"h.*", 1}, {"head", 4}}};
  EXPECT_THAT(engine::CutModel(store, plan, 2, gpt->Units(), sample)->first_units,
              ElementsAre(0, 5));
  plan.unit_costs[0].cost = 100;
  EXPECT_THAT(engine::CutModel(store, plan, 2, gpt->Units(), sample)->first_units,
              ElementsAre(0, 1));
  plan.unit_costs.pop_back();
  EXPECT_THAT(engine::CutModel(store, plan, 2, gpt->Units(), sample).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no cost for unit head")));
}

TEST(Stages, HaveTheBitsOfOneProcessWhereverTheyAreCut) {
  Setting setting = {.ranks = 4, .stages = 2, .preset = "full-shard"};
  setting.unit_costs = {{"embedding", 100}, {"*", 1}};
  const Outcome cut = Trained(setting, 3);
  EXPECT_THAT(cut.status, IsOk());
  EXPECT_EQ(cut.hash, Trained({}, 3).hash);
}

TEST(UnitCosts, AreMeasuredOnceForEachKindAndTakeNothingAlong) {
  ParameterStore store;
  const auto gpt = *Decoder::Create(kModel, store);
  Plan plan = {.stages = 2};
  plan.groups = {{.parameters = "wpe.*", .frozen = true}};
  int runs = 0;
  const UnitModel counted = [&](Tape& tape, UnitRange units, const ModelInput& input,
                                absl::Span<const Activation> received) {
    if (tape.pool().device().has_elements()) ++runs;
    return gpt->Units()(tape, units, input, received);
  };
  const auto costs = MeasureUnitCosts(store, plan, counted, kSize.batch, kSize.sequence);
  ASSERT_THAT(costs, IsOk());
  EXPECT_EQ(runs, 3 * 4) << "an embedding, a block and a head, four times each";
  ASSERT_THAT(*costs, SizeIs(3));
  EXPECT_EQ((*costs)[0].units, "embedding");
  EXPECT_EQ((*costs)[1].units, "h.*");
  EXPECT_EQ((*costs)[2].units, "head");
  for (const UnitCost& cost : *costs) EXPECT_GT(cost.cost, 0) << cost.units;
  // The store is free for an engine.
  for (const auto& parameter : store.parameters()) EXPECT_TRUE(parameter->value().empty());
  plan.unit_costs = *costs;
  const ModelInput sample = engine::SampleInput(kSize.batch, kSize.sequence);
  EXPECT_THAT(engine::CutModel(store, plan, 2, gpt->Units(), sample), IsOk());
}

TEST(UnitCosts, AreMeasuredOfUnitsThatAreFrozen) {
  ParameterStore store;
  const auto gpt = *Decoder::Create(kModel, store, {.rank = 2});
  Plan plan = {.stages = 2};
  plan.groups = {{.parameters = "h.0.*", .frozen = true}};
  const auto costs = MeasureUnitCosts(store, plan, gpt->Units(), kSize.batch, kSize.sequence);
  ASSERT_THAT(costs, IsOk());
  EXPECT_EQ(costs->front().units, "embedding");
  EXPECT_EQ(costs->back().units, "head");
}

absl::Status Refusal(int ranks, const Plan& plan) {
  return OnRanks<absl::Status>(ranks, [&](Communicator& world) {
    return Rank::Create(world, plan, DType::kF32).status();
  })[0];
}

TEST(Stages, AreRefusedInASentence) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  Plan plan;
  plan.stages = 2;
  EXPECT_THAT(Refusal(3, plan),
              StatusIs(kInvalid, HasSubstr("3 ranks cannot be divided into 2 stages")));
  EXPECT_THAT(Refusal(1, plan), StatusIs(kInvalid, HasSubstr("1 ranks cannot be divided")));
  plan.stages = 0;  // one per rank
  EXPECT_THAT(Refusal(7, plan),
              StatusIs(kInvalid, HasSubstr("it has 6 units, and there are to be 7 stages")));
  plan.stages = -1;
  EXPECT_THAT(Refusal(2, plan), StatusIs(kInvalid, HasSubstr("stages")));
  plan.stages = 6;
  plan.groups = {{.parameters = "h.1.*", .frozen = true}};
  EXPECT_THAT(Refusal(6, plan), StatusIs(kInvalid, HasSubstr("h.1 on, would have nothing to")));
}

TEST(Stages, NeedAModelInUnits) {
  const auto statuses = OnRanks<absl::Status>(2, [](Communicator& world) {
    ParameterStore store;
    const auto gpt = *Decoder::Create(kModel, store);
    Plan plan;
    plan.stages = 2;
    return Engine::Create(world, store, plan).status();
  });
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kInvalidArgument,
                                    HasSubstr("give Engine::Create a model in units")));
}

}  // namespace
}  // namespace muster::testing
