// Pipelines of a model that hands several activations from stage to stage, of different shapes and
// not always as many: bits, memory, bytes, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/engine.h"
#include "muster/layers.h"
#include "muster/pipeline.h"
#include "muster/rng.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/engine/training_ranks.h"
#include "tests/unit/worker_runtime/engine/two_streams.h"
#include "worker_runtime/engine/cut_model.h"
#include "worker_runtime/engine/meta_run.h"
#include "worker_runtime/nn/operations.h"
#include "worker_runtime/plan/compile_program.h"
#include "worker_runtime/plan/prove_program.h"
#include "worker_runtime/plan/stage_order.h"

namespace muster::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kWide = TwoStreams::kWidth;
constexpr int64_t kNarrow = TwoStreams::kWidth / 2;
constexpr int kUnits = TwoStreams::kUnits;
constexpr Engine::BatchSize kSize = {.batch = 1, .sequence = 16};
constexpr int64_t kMicroBatches = 8;  // of a step
const Shape kMemory = {kSize.batch, kSize.sequence, kWide};
const Shape kStream = {kSize.batch, kSize.sequence, kNarrow};

struct Setting {
  std::string schedule = "1f1b";
  int64_t places = 1;
  int replicas = 1;
  std::string preset = "ddp";
  DType dtype = DType::kF32;
  SumMode mode = SumMode::kOrdered;
  int64_t decoder_width = kNarrow;
  int begins_with = 0;  // the first unit of the second of two stages; 0: where they take alike long

  int ranks() const { return static_cast<int>(places) * replicas; }
};

std::string Name(const Setting& setting) {
  return absl::StrCat(setting.schedule, " over ", setting.places, " places of ", setting.replicas,
                      " under ", setting.preset, " in ", ToString(setting.dtype), " from unit ",
                      setting.begins_with);
}

Plan PlanOf(const Setting& setting) {
  Plan plan = Under(setting.preset, Plan(), setting.replicas);
  plan.stages = setting.places;
  plan.schedule = setting.schedule;
  plan.mode = setting.mode;
  plan.accumulation = kMicroBatches / setting.replicas;
  plan.learning_rate = {.peak = 3e-3};
  plan.buckets.bytes_max = 2'000;
  if (setting.begins_with > 0) plan.unit_costs = TwoStreams::CostsForACutAt(setting.begins_with);
  return plan;
}

struct Trained {
  absl::Status status;
  std::string hash;
  int64_t sent = 0;  // in the last step
  EngineMemory memory;
};

Trained TrainRank(Communicator& world, const Setting& setting, int steps) {
  const SmallText text;
  ParameterStore store(setting.dtype);
  const TwoStreams model(store, setting.decoder_width);
  auto engine = Engine::Create(world, store, PlanOf(setting), model.Units(), kSize);
  if (!engine.ok()) return {engine.status()};
  auto reader = *(*engine)->Read(text, kSize);
  Trained trained;
  for (int i = 0; i < steps && trained.status.ok(); ++i) {
    const int64_t before = (*engine)->bytes_sent();
    trained.status = (*engine)->Step(*reader).status();
    trained.sent = (*engine)->bytes_sent() - before;
  }
  if (!trained.status.ok()) return trained;
  trained.memory = (*engine)->memory();
  const auto hash = (*engine)->ParameterHash();
  trained.status = hash.status();
  trained.hash = hash.value_or("none");
  return trained;
}

std::string HashOf(const Setting& setting) {
  const auto ranks = OnRanks<Trained>(
      setting.ranks(), [&](Communicator& world) { return TrainRank(world, setting, 3); });
  for (const Trained& rank : ranks) {
    EXPECT_THAT(rank.status, IsOk()) << Name(setting);
    EXPECT_EQ(rank.hash, ranks[0].hash) << Name(setting);
  }
  return ranks[0].hash;
}

TEST(SeveralActivations, HaveTheBitsOfOneProcessWhereverTheModelIsCut) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const std::string one = HashOf({.dtype = dtype});
    for (int unit = 1; unit < kUnits; ++unit) {
      const Setting setting = {.places = 2, .dtype = dtype, .begins_with = unit};
      EXPECT_EQ(HashOf(setting), one) << Name(setting);
    }
  }
}

class SeveralActivationsUnder : public ::testing::TestWithParam<const char*> {};

TEST_P(SeveralActivationsUnder, HaveTheBitsOfOneProcessWhateverRanksShard) {
  const std::string one = HashOf({});
  for (const int64_t places : {2, 4}) {
    for (const std::string& preset : DataParallelPresets()) {
      const Setting setting = {
          .schedule = GetParam(), .places = places, .replicas = 2, .preset = preset};
      EXPECT_EQ(HashOf(setting), one) << Name(setting);
    }
  }
}

TEST_P(SeveralActivationsUnder, SendAndReserveWhatProgramsSay) {
  // Both have one width here: memory of one size serves no other.
  const Setting setting = {
      .schedule = GetParam(), .places = 4, .mode = SumMode::kFast, .decoder_width = kWide};
  const Plan plan = PlanOf(setting);
  const auto taken = OnRanks<Trained>(
      setting.ranks(), [&](Communicator& world) { return TrainRank(world, setting, 2); });
  ParameterStore store;
  const TwoStreams model(store, setting.decoder_width);
  const ModelInput sample = engine::SampleInput(kSize.batch, kSize.sequence);
  const int places = static_cast<int>(setting.places);
  const PipelineCut cut =
      *engine::CutModel(store, plan, plan::StagesOver(plan, places), model.Units(), sample);
  const auto traces = *engine::RecordStages(store, plan, cut, model.Units(), sample);
  const auto parameters = engine::InfoOf(store);
  for (int rank = 0; rank < setting.ranks(); ++rank) {
    EXPECT_THAT(taken[rank].status, IsOk());
    const plan::StepFigures figures = plan::FiguresOf(plan::CompileProgram(
        {.plan = plan,
         .parameters = parameters,
         .types = plan::TypesOf(plan, DType::kF32),
         .mesh = *plan::MeshOf(plan, places, places),
         .stages = engine::StagesOf(store, plan::PlanBlockLayout(parameters), cut, traces)},
        rank));
    const auto sent = static_cast<double>(figures.sent_total());
    EXPECT_NEAR(static_cast<double>(taken[rank].sent), sent, 0.01 * sent)
        << Name(setting) << ", rank " << rank;
    const auto planned = static_cast<double>(plan::TotalOf(figures.peak));
    const auto held = static_cast<double>(taken[rank].memory.total());
    EXPECT_LE(held, 1.02 * planned) << Name(setting) << ", rank " << rank;
    EXPECT_GE(held, 0.85 * planned) << Name(setting) << ", rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, SeveralActivationsUnder,
                         ::testing::Values("gpipe", "1f1b", "interleaved", "zb-h1", "zbv",
                                           "dualpipev"),
                         [](const auto& schedule) {
                           std::string name = schedule.param;
                           name.erase(std::remove(name.begin(), name.end(), '-'), name.end());
                           return name;
                         });

// Units that pass on lists drawn by a seed: of what they received some as it is, in another order
// or not at all, sums of two, constants, and what their own map makes. All are of one shape.
class DrawnStreams : private EmbeddingAndMaps {
 public:
  DrawnStreams(ParameterStore& store, int64_t seed)
      : EmbeddingAndMaps(store,
                         [](int unit) -> Linear::Options {
                           return {.inputs = kWidth,
                                   .outputs = unit + 1 == kUnits ? kVocabulary : kWidth,
                                   .initial_std = 0.3};
                         }),
        rng_(seed, "drawn streams") {}

  UnitModel Units() const {
    return [this](Tape& tape, UnitRange units, const ModelInput& input,
                  absl::Span<const Activation> received) -> absl::StatusOr<StageOutput> {
      std::vector<Activation> all(received.begin(), received.end());
      for (int u = units.first; u < units.end; ++u) {
        if (u + 1 == kUnits) {
          Activation sum = all[0];
          for (size_t i = 1; i < all.size(); i += 2) sum = Add(tape, sum, all[i]);
          const Activation logits = maps[u]->Forward(tape, sum);
          return StageOutput{.loss = CrossEntropy(tape, logits, input.targets)};
        }
        all = u == 0 ? std::vector<Activation>{embedding->Forward(tape, input.tokens)}
                     : Forward(tape, u, all);
      }
      return StageOutput{.passed_on = std::move(all)};
    };
  }

 private:
  std::vector<Activation> Forward(Tape& tape, int unit, const std::vector<Activation>& in) const {
    int64_t draw = 0;
    const auto below = [&](size_t end) {
      return static_cast<size_t>(rng_.Below(static_cast<int64_t>(end), unit, draw++));
    };
    std::vector<Activation> out = {maps[unit]->Forward(tape, in[below(in.size())])};
    std::set<size_t> passed_on;
    for (size_t left = below(4); left > 0; --left) {
      const size_t source = below(in.size());
      const Activation& one = in[source];
      switch (below(4)) {
        case 0:
          out.push_back(Add(tape, one, in[below(in.size())]));
          break;
        case 1: {
          const Tensor constant = tape.pool().Allocate(one.value.dtype(), one.value.shape());
          tape.operations(constant.dtype()).fill(tape.queue(), 0.25, constant);
          out.push_back({.value = constant});
          break;
        }
        default:
          if (passed_on.insert(source).second) out.push_back(one);
      }
    }
    std::swap(out[0], out[below(out.size())]);
    return out;
  }

  const Rng rng_;
};

TEST(SeveralActivations, HaveTheBitsOfOneProcessHoweverUnitsPassThemOn) {
  for (int64_t seed = 1; seed <= 12; ++seed) {
    const auto hash_of = [&](const Setting& setting) {
      const auto hashes = OnRanks<std::string>(setting.ranks(), [&](Communicator& world) {
        const SmallText text;
        ParameterStore store(setting.dtype);
        const DrawnStreams model(store, seed);
        auto engine = Engine::Create(world, store, PlanOf(setting), model.Units(), kSize);
        EXPECT_THAT(engine, IsOk()) << Name(setting) << ", seed " << seed;
        auto reader = *(*engine)->Read(text, kSize);
        for (int i = 0; i < 3; ++i) EXPECT_THAT((*engine)->Step(*reader), IsOk());
        return *(*engine)->ParameterHash();
      });
      EXPECT_THAT(hashes, Each(hashes[0]));
      return hashes[0];
    };
    const std::string one = hash_of({});
    for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipev"}) {
      const Setting setting = {.schedule = schedule, .places = seed % 2 == 0 ? 4 : 2};
      EXPECT_EQ(hash_of(setting), one) << Name(setting) << ", seed " << seed;
    }
  }
}

TEST(SeveralActivations, AreFoundOutOfEachCut) {
  ParameterStore store;
  const TwoStreams model(store, kNarrow);
  const ModelInput sample = engine::SampleInput(kSize.batch, kSize.sequence);
  const auto cut = engine::CutModel(store, Plan(), kUnits, model.Units(), sample);
  ASSERT_THAT(cut, IsOk());
  EXPECT_THAT(
      cut->received,
      ElementsAre(IsEmpty(), ElementsAre(kMemory), ElementsAre(kMemory), ElementsAre(kMemory),
                  ElementsAre(kStream, kMemory), ElementsAre(kStream, kMemory),
                  ElementsAre(kStream, kMemory), ElementsAre(kStream, kMemory, kStream)));
}

TEST(SeveralActivations, AreRefusedWhereThereIsNoneOrOneHasNoValue) {
  ParameterStore store;
  const TwoStreams model(store, kNarrow);
  const ModelInput sample = engine::SampleInput(kSize.batch, kSize.sequence);
  const auto refusal = [&](const std::vector<Activation>& of_unit_1) {
    const UnitModel units =
        [&](Tape& tape, UnitRange range, const ModelInput& input,
            absl::Span<const Activation> received) -> absl::StatusOr<StageOutput> {
      if (range.first == 1) return StageOutput{.passed_on = of_unit_1};
      return model.Units()(tape, range, input, received);
    };
    return engine::CutModel(store, Plan(), 2, units, sample).status();
  };
  EXPECT_THAT(refusal({}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("unit u1 passes nothing on")));
  EXPECT_THAT(refusal({Activation()}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("unit u1 passes on an activation without a value")));
}

TEST(SeveralActivations, AreNotWantedOfTheLastUnit) {
  ParameterStore store;
  const TwoStreams model(store, kNarrow);
  const UnitModel units = [&](Tape& tape, UnitRange range, const ModelInput& input,
                              absl::Span<const Activation> received) {
    auto output = model.Units()(tape, range, input, received);
    if (range.end == kUnits) output->passed_on = {output->loss.output};
    return output;
  };
  const auto uses =
      engine::UsesOfUnits(store, Plan(), units, engine::SampleInput(kSize.batch, kSize.sequence));
  ASSERT_THAT(uses, IsOk());
  EXPECT_THAT(uses->back().passed_on, IsEmpty());
}

// A program calls its stages itself, and the first one passes on others from the second step on.
TEST(SeveralActivations, ThatAStageDidNotDeclareAreRefused) {
  struct Case {
    std::function<std::vector<Activation>(Tape&, Activation x)> passed_on;
    std::string why;
  };
  const std::vector<Case> cases = {
      {[](Tape&, Activation x) { return std::vector<Activation>{std::move(x)}; },
       "stage 0 passes on [1, 16, 32], and the next receives [1, 16, 32] and [1, 16, 32]"},
      {[](Tape&, Activation x) {
         return std::vector<Activation>{x, {.value = x.value.Reshaped({16, 32}), .slot = x.slot}};
       },
       "stage 0 passes on [1, 16, 32] and [16, 32], and the next receives"},
      {[](Tape&, const Activation& x) {
         return std::vector<Activation>{x, x};
       },
       "stage 0 passes on one activation twice"},
      {[](Tape&, const Activation& x) {
         return std::vector<Activation>{{.value = x.value}, {.value = x.value}};
       },
       "stage 0 passes on nothing that an operation of its tape has made"},
      {[](Tape& tape, const Activation& x) {
         const Tensor narrow = tape.pool().Allocate(DType::kBf16, kMemory);
         return std::vector<Activation>{x, {.value = narrow}};
       },
       "stage 0 passes on bf16, and the parameters are f32"},
  };
  for (const Case& wrong : cases) {
    const auto errors = OnRanks<absl::Status>(2, [&](Communicator& world) {
      ParameterStore store;
      std::vector<std::unique_ptr<Linear>> maps;
      for (const char* unit : {"u0", "u1"}) {
        store.BeginUnit(unit);
        maps.push_back(std::make_unique<Linear>(
            Scope(store) / unit, Linear::Options{.inputs = kWide, .outputs = kWide}));
      }
      const PipelineCut cut = {
          .first_units = {0, 1}, .borrowed = {{}, {}}, .received = {{}, {kMemory, kMemory}}};
      const std::vector<int32_t> targets(kSize.sequence, 1);
      bool is_wrong = false;
      const auto compute = [&](Tape& tape, absl::Span<const Activation> received) -> StageOutput {
        if (world.rank() == 1) {
          const Activation x = maps[1]->Forward(tape, Add(tape, received[0], received[1]));
          return {.loss = CrossEntropy(tape, x, targets)};
        }
        const Tensor ones = tape.pool().Allocate(DType::kF32, kMemory);
        tape.operations(DType::kF32).fill(tape.queue(), 1, ones);
        Activation x = maps[0]->Forward(tape, {.value = ones});
        if (is_wrong) return {.passed_on = wrong.passed_on(tape, x)};
        return {.passed_on = {x, Nonlinear(Nonlinearity::kGelu).Forward(tape, x)}};
      };
      auto engine = *Engine::CreateStage(
          world, store, Plan(), cut,
          [&](Tape& tape, absl::Span<const Activation> received) -> absl::StatusOr<StageOutput> {
            return compute(tape, received);
          });
      const auto forward = [&](Tape& tape, int64_t, absl::Span<const Activation> received)
          -> absl::StatusOr<StageOutput> { return compute(tape, received); };
      EXPECT_THAT(engine->StepStage(forward), IsOk());
      is_wrong = true;
      return engine->StepStage(forward).status();
    });
    EXPECT_THAT(errors[0], StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(wrong.why)));
    EXPECT_THAT(errors[1], StatusIs(absl::StatusCode::kAborted, HasSubstr(wrong.why)));
  }
}

}  // namespace
}  // namespace muster::testing
