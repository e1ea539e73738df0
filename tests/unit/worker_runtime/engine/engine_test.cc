// What the engine promises about numbers: worker_runtime/engine/README.md, "Decisions".
#include "muster/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/io/sha256.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/engine/training_ranks.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/checkpoint/new_checkpoint.h"
#include "worker_runtime/checkpoint/slice_file.h"
#include "worker_runtime/engine/meta_run.h"
#include "worker_runtime/kernels/isa.h"
#include "worker_runtime/plan/plan_text.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Le;

std::vector<float> ElementsOf(const checkpoint::Checkpoint& saved,
                              const checkpoint::SlicedArrays& arrays, const std::string& name) {
  std::vector<float> elements(arrays.at(name).num_elements());
  EXPECT_THAT(saved.Read(arrays, name, 0, BufferOf(elements)), IsOk());
  return elements;
}

// Writes the checkpoint again without one of the optimizer's arrays.
void RemoveArray(const std::string& path, const std::string& name) {
  const auto saved = checkpoint::Checkpoint::Open(path);
  ASSERT_THAT(saved, IsOk());
  const checkpoint::Manifest& manifest = saved->manifest();
  ASSERT_TRUE(manifest.optimizer.contains(name));
  std::vector<checkpoint::ArrayToWrite> arrays;
  std::vector<std::vector<float>> contents;
  std::vector<checkpoint::Slice> slices;
  for (const bool is_of_model : {true, false}) {
    const checkpoint::SlicedArrays& those = is_of_model ? manifest.model : manifest.optimizer;
    for (const auto& [key, array] : those) {
      if (!is_of_model && key == name) continue;
      contents.push_back(ElementsOf(*saved, those, key));
      slices.push_back({arrays.size(), 0, array.num_elements()});
      arrays.push_back({key, array.dtype, array.shape, is_of_model});
    }
  }
  auto made = checkpoint::NewCheckpoint::Begin(path, saved->state());
  ASSERT_THAT(made, IsOk());
  const auto file = checkpoint::WriteSlices(
      made->hidden(), checkpoint::NameOfSlices(0), arrays, slices,
      [&](size_t array, int64_t first, int64_t count) -> absl::StatusOr<absl::string_view> {
        return absl::string_view(reinterpret_cast<const char*>(contents[array].data() + first),
                                 count * sizeof(float));
      });
  ASSERT_THAT(file, IsOk());
  const auto rewritten = checkpoint::ManifestOf(saved->state(), arrays, {*file});
  ASSERT_THAT(rewritten, IsOk());
  ASSERT_THAT(made->Publish(*rewritten), IsOk());
}

TEST(Engine, LearnsAndReportsALossThatFalls) {
  const Outcome outcome = Train(2, SmallPlan(SumMode::kFast, 1), 60);
  EXPECT_NEAR(outcome.losses.front(), std::log(kSmallGpt.vocabulary), 0.3);
  EXPECT_LT(outcome.losses.back(), 1.0);
}

TEST(Engine, GivesTheSameBitsInOrderedModeHoweverTheRanksCutTheStep) {
  const Outcome one = Train(1, SmallPlan(SumMode::kOrdered, 4), 12);
  const Outcome two = Train(2, SmallPlan(SumMode::kOrdered, 2), 12);
  const Outcome four = Train(4, SmallPlan(SumMode::kOrdered, 1), 12);
  EXPECT_EQ(two.hash, one.hash);
  EXPECT_EQ(four.hash, one.hash);
  EXPECT_EQ(two.losses, one.losses);
  EXPECT_EQ(four.losses, one.losses);
}

TEST(Engine, GivesTheSameBitsInOrderedModeForNumbersThatAreNoPowersOfTwo) {
  const Outcome one = Train(1, SmallPlan(SumMode::kOrdered, 6), 6);
  EXPECT_EQ(Train(2, SmallPlan(SumMode::kOrdered, 3), 6).hash, one.hash);
  EXPECT_EQ(Train(3, SmallPlan(SumMode::kOrdered, 2), 6).hash, one.hash);
  EXPECT_EQ(Train(6, SmallPlan(SumMode::kOrdered, 1), 6).hash, one.hash);
}

// Frozen: what changes it changes every training in ordered mode, and needs a reason. In double,
// whose products are our own, the bits are those of every instruction set; ctest runs it with each
// that the machine has (CMakeLists.txt).
TEST(Engine, HasTheBitsOfOrderedModeThatItAlwaysHad) {
  EXPECT_EQ(Train(2, SmallPlan(SumMode::kOrdered, 2), 5, DType::kF64).hash,
            "9086652fdeca1c6a1b7c725ed60e6a97e64f2351948e7ceab0b41259ab4c4a6c")
      << "with kernels of " << kernels::ToString(kernels::BestIsa());
}

TEST(Engine, StaysWithinOneHundredThousandthOfOneProcessInFastMode) {
  const Outcome one = Train(1, SmallPlan(SumMode::kFast, 4), 100);
  EXPECT_LE(
      LargestRelativeDifference(Train(2, SmallPlan(SumMode::kFast, 2), 100).losses, one.losses),
      1e-5);
  EXPECT_LE(
      LargestRelativeDifference(Train(4, SmallPlan(SumMode::kFast, 1), 100).losses, one.losses),
      1e-5);
}

TEST(Engine, NamesTheParameterWhoseGradientIsNotFiniteOnWhicheverRankOwnsIt) {
  Plan plan = SmallPlan(SumMode::kFast, 1);
  plan.optimizer.placement = Placement::kShard;
  const auto statuses = OnRanks<absl::Status>(3, [&](Communicator& world) {
    auto training = SmallTraining::Create(world, plan);
    float* gradient = (*training)->store().Find("h.1.ln_2.bias")->gradient().data<float>();
    if (world.rank() == 1) {
      (*training)->within_backward = [gradient] {
        gradient[3] = std::numeric_limits<float>::quiet_NaN();
      };
    }
    return (*training)->Steps(1).status();
  });
  EXPECT_THAT(statuses,
              Each(StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("h.1.ln_2.bias"))));
}

// --- data ---------------------------------------------------------------------------------------

// 0, 1, 2, … modulo the vocabulary.
class CountingTokens final : public TokenSource {
 public:
  int64_t num_tokens() const override { return 500; }
  int64_t vocabulary() const override { return kSmallGpt.vocabulary; }
  std::string Describe() const override { return "numbers"; }
  absl::Status Read(int64_t first, absl::Span<int32_t> out) const override {
    for (size_t i = 0; i < out.size(); ++i) out[i] = (first + i) % vocabulary();
    return absl::OkStatus();
  }
};

// What rank, ranks, micro-batches, seed and step are is said once, to the engine.
TEST(Engine, ReadsEachMicroBatchOfEachStepOnce) {
  const CountingTokens tokens;
  const auto seen = OnRanks<std::vector<std::string>>(2, [&](Communicator& world) {
    ParameterStore store;
    auto gpt = Decoder::Create(kSmallGpt, store);
    auto engine = Engine::Create(world, store, SmallPlan(SumMode::kOrdered, 2));
    auto reader = (*engine)->Read(tokens, {.batch = 2, .sequence = kSmallGpt.context});
    std::vector<std::string> batches;
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT(
          (*engine)->Step(**reader,
                          [&](Tape& tape, const Batch& batch) -> absl::StatusOr<Loss> {
                            batches.push_back(absl::StrCat(batch.step, ".", batch.micro_batch));
                            return (*gpt)->ComputeLoss(tape, batch.tokens(), batch.targets);
                          }),
          IsOk());
    }
    return batches;
  });
  EXPECT_THAT(seen[0], ElementsAre("0.0", "0.1", "1.0", "1.1"));
  EXPECT_THAT(seen[1], ElementsAre("0.2", "0.3", "1.2", "1.3"));
}

TEST(Engine, RefusesAReaderThatCountsMicroBatchesAnotherWay) {
  const CountingTokens tokens;
  const auto statuses = OnRanks<absl::Status>(1, [&](Communicator& world) {
    ParameterStore store;
    auto gpt = Decoder::Create(kSmallGpt, store);
    auto engine = Engine::Create(world, store, SmallPlan(SumMode::kFast, 2));
    auto reader =
        BatchReader::Create(tokens, {.accumulation = 3, .batch = 2, .sequence = kSmallGpt.context});
    return (*engine)
        ->Step(**reader,
               [&](Tape& tape, const Batch& batch) -> absl::StatusOr<Loss> {
                 return (*gpt)->ComputeLoss(tape, batch.tokens(), batch.targets);
               })
        .status();
  });
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kInvalidArgument,
                                    HasSubstr("accumulation is 3 and the engine's 2")));
}

// The micro-batches have different numbers of tokens; a mean of means would differ, in the loss and
// in the gradient.
TEST(Engine, WeighsMicroBatchesByTheirTokens) {
  const auto results = OnRanks<StepResult>(2, [](Communicator& world) {
    auto training = SmallTraining::Create(world, SmallPlan(SumMode::kFast, 2));
    return *(*training)->Step();
  });
  ParameterStore store;
  auto gpt = Decoder::Create(kSmallGpt, store);
  store.BindToOwnBuffers();
  store.Initialize(Plan().seed);
  TensorPool pool;
  double sum = 0;
  int64_t num_tokens = 0;
  for (int64_t index = 0; index < 4; ++index) {
    Tape tape(pool);
    const SmallBatch batch(0, index);
    const Loss loss = (*gpt)->ComputeLoss(tape, batch.tokens(), batch.targets);
    sum += loss.sum;
    num_tokens += loss.num_tokens;
    tape.Backward(loss.output);
  }
  double squares = 0;
  for (const float g : store.flat_gradients().span<float>()) squares += double{g} * g;
  for (const StepResult& result : results) {
    EXPECT_NEAR(result.loss, sum / num_tokens, 1e-6);
    EXPECT_NEAR(result.gradient_norm * num_tokens, std::sqrt(squares), 1e-5 * std::sqrt(squares));
  }
}

TEST(Engine, ClipsTheWholeGradientToItsBound) {
  // With a first step of AdamW only the direction counts, so compare what a huge and a tiny bound
  // leave in the second moments: the clipped gradient's squares.
  Plan plan = SmallPlan(SumMode::kFast, 1);
  plan.max_gradient_norm = 1e-3;
  const auto sums = OnRanks<double>(1, [&](Communicator& world) {
    auto training = SmallTraining::Create(world, plan);
    const auto result = (*training)->Step();
    EXPECT_GT(result->gradient_norm, 0.1);
    TemporaryDirectory directory;
    EXPECT_THAT((*training)->engine().Save(directory.path(), {}), IsOk());
    const auto saved = checkpoint::Checkpoint::Open(directory.File("step_00000001"));
    EXPECT_THAT(saved, IsOk());
    double sum = 0;
    for (const auto& [name, array] : saved->manifest().optimizer) {
      if (name.rfind("second_moment.", 0) != 0) continue;
      for (float moment : ElementsOf(*saved, saved->manifest().optimizer, name)) sum += moment;
    }
    return sum;
  });
  // v = (1 - beta2) g^2 after one step, so the sum is (1 - beta2) |g|^2.
  EXPECT_NEAR(std::sqrt(sums[0] / (1 - plan.update.beta2)), 1e-3, 1e-6);
}

TEST(Engine, FollowsTheLearningRateSchedule) {
  Plan plan = SmallPlan(SumMode::kFast, 1);
  plan.learning_rate = {.kind = LearningRateSchedule::Kind::kLinear,
                        .peak = 1e-2,
                        .floor = 0,
                        .warmup_steps = 2,
                        .total_steps = 10};
  OnRanks<int>(1, [&](Communicator& world) {
    auto training = SmallTraining::Create(world, plan);
    for (int64_t step = 0; step < 5; ++step) {
      EXPECT_EQ((*training)->Step()->learning_rate, LearningRate(plan.learning_rate, step));
    }
    return 0;
  });
}

// The text is made as in launcher/commands/plan_command.cc, whose model has no memory.
TEST(Engine, HasThePlanHashThatMusterPlanPrints) {
  const Plan plan = SmallPlan(SumMode::kOrdered, 2);
  ParameterStore store;
  const auto gpt = Decoder::Create(kSmallGpt, store);
  const std::string text = plan::CanonicalText(plan, engine::InfoOf(store));
  const auto hashes = OnRanks<std::string>(2, [&](Communicator& world) {
    return (*SmallTraining::Create(world, plan))->engine().PlanHash();
  });
  EXPECT_THAT(hashes, Each(Sha256().Add(text).Finish()));
}

TEST(Engine, SaysWhichPhaseBegins) {
  OnRanks<int>(1, [](Communicator& world) {
    auto training = SmallTraining::Create(world, SmallPlan(SumMode::kFast, 2));
    std::vector<std::string> phases;
    (*training)->engine().OnPhase([&](int64_t step, Phase phase) {
      phases.push_back(absl::StrCat(step, " ", ToString(phase)));
    });
    EXPECT_THAT((*training)->Steps(1), IsOk());
    EXPECT_THAT(phases, ElementsAre("0 forward", "0 backward", "0 forward", "0 backward",
                                    "0 reduce", "0 update", "1 idle"));
    return 0;
  });
}

// The board tells a large checkpoint from a disk that hangs.
TEST(Engine, MarksSavingAndLoadingAgainAfterEachPiece) {
  const TemporaryDirectory directory;
  OnRanks<int>(2, [&](Communicator& world) {
    auto training = SmallTraining::Create(world, SmallPlan(SumMode::kFast, 1));
    int num_saving = 0, num_loading = 0;
    (*training)->engine().OnPhase([&](int64_t, Phase phase) {
      num_saving += phase == Phase::kSave ? 1 : 0;
      num_loading += phase == Phase::kLoad ? 1 : 0;
    });
    EXPECT_THAT((*training)->engine().Save(directory.path(), {}), IsOk());
    EXPECT_THAT((*training)->engine().Load(directory.path()), IsOk());
    // Each rank writes half of the arrays, and reads all.
    const int num_parameters = static_cast<int>((*training)->store().parameters().size());
    EXPECT_GT(num_saving, 3 * num_parameters / 2);
    EXPECT_GT(num_loading, 3 * num_parameters);
    return 0;
  });
}

// --- failures -----------------------------------------------------------------------------------

TEST(Engine, NamesTheRankAndTheSettingThatDiffer) {
  const auto statuses = OnRanks<absl::Status>(3, [](Communicator& world) {
    Plan plan = SmallPlan(SumMode::kFast, 1);
    if (world.rank() == 2) plan.learning_rate.peak = 0.25;
    return SmallTraining::Create(world, plan).status();
  });
  EXPECT_THAT(statuses,
              Each(StatusIs(absl::StatusCode::kInvalidArgument,
                            AllOf(HasSubstr("0.25 on rank 2"), HasSubstr("0.003 on rank 0")))));
}

TEST(Engine, NamesTheParameterThatDiffersBetweenRanks) {
  const auto statuses = OnRanks<absl::Status>(2, [](Communicator& world) {
    ParameterStore store;
    DecoderConfig config = kSmallGpt;
    if (world.rank() == 1) config.hidden_size = 16;
    const auto gpt = Decoder::Create(config, store);
    return Engine::Create(world, store, Plan()).status();
  });
  EXPECT_THAT(
      statuses,
      Each(StatusIs(absl::StatusCode::kInvalidArgument,
                    AllOf(HasSubstr("wte.weight [24, 32]"), HasSubstr("wte.weight [24, 16]")))));
}

TEST(Engine, RefusesAResidencyThatThisVersionHasNot) {
  Plan plan;
  plan.optimizer.residency = Residency::kCpu;
  const auto statuses = OnRanks<absl::Status>(
      1, [&](Communicator& world) { return SmallTraining::Create(world, plan).status(); });
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kUnimplemented,
                                    AllOf(HasSubstr("optimizer"), HasSubstr("cpu"))));
}

TEST(Engine, WantsASampleWhereItMustKnowTheOrderOfUse) {
  const auto statuses = OnRanks<absl::Status>(2, [&](Communicator& world) {
    ParameterStore store;
    const auto gpt = Decoder::Create(kSmallGpt, store);
    return Engine::Create(world, store, *PlanPreset("fsdp")).status();
  });
  EXPECT_THAT(statuses,
              Each(StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("as a sample"))));
}

TEST(Engine, RefusesGroupsThatDoNotDivideTheRanks) {
  const auto statuses = OnRanks<absl::Status>(3, [&](Communicator& world) {
    Plan plan = *PlanPreset("hybrid_shard");
    plan.shard_ranks = 2;
    return SmallTraining::Create(world, plan).status();
  });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("shard_ranks is 2, which does not divide"))));
}

TEST(Engine, TellsEveryRankOfAnErrorInOneForwardPass) {
  const auto statuses = OnRanks<absl::Status>(3, [](Communicator& world) {
    auto training = SmallTraining::Create(world, SmallPlan(SumMode::kFast, 2));
    (*training)->before_forward = [&](int64_t index) {
      return world.rank() == 1 && index == 1 ? absl::UnavailableError("cannot read b.txt")
                                             : absl::OkStatus();
    };
    return (*training)->Steps(3).status();
  });
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kUnavailable, HasSubstr("b.txt")));
  for (int rank : {0, 2}) {
    EXPECT_THAT(statuses[rank], StatusIs(absl::StatusCode::kAborted,
                                         AllOf(HasSubstr("rank 1"), HasSubstr("b.txt"))));
  }
}

// Poisons one parameter's value on one rank, as a broken memory would.
TEST(Engine, NamesTheRankWhoseLossIsNotFiniteAndLeavesTheParameters) {
  const auto hashes = OnRanks<std::string>(2, [](Communicator& world) {
    auto training = SmallTraining::Create(world, SmallPlan(SumMode::kFast, 1));
    EXPECT_THAT((*training)->Steps(1), IsOk());
    float* bias = (*training)->store().Find("ln_f.bias")->value().data<float>();
    const float before = bias[0];
    if (world.rank() == 1) bias[0] = std::numeric_limits<float>::infinity();
    EXPECT_THAT((*training)->Steps(1), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                AllOf(HasSubstr("step 2"), HasSubstr("rank 1"))));
    bias[0] = before;
    EXPECT_EQ((*training)->engine().step(), 1);
    const std::string hash = (*training)->engine().ParameterHash().value_or("none");
    EXPECT_THAT((*training)->Steps(1), IsOk()) << "the step that failed can be made again";
    return hash + (*training)->engine().ParameterHash().value_or("none");
  });
  EXPECT_EQ(hashes[0], hashes[1]);
  const Plan plan = SmallPlan(SumMode::kFast, 1);
  EXPECT_EQ(hashes[0], Train(2, plan, 1).hash + Train(2, plan, 2).hash);
}

TEST(Engine, SaysWhichShapeDoesNotFitOnEveryRank) {
  const auto statuses = OnRanks<std::vector<absl::Status>>(2, [](Communicator& world) {
    ParameterStore store;
    const auto gpt = *Decoder::Create(kSmallGpt, store);
    const std::vector<int32_t> tokens(2 * kSmallGpt.context, 1);
    const auto forward = [&](Tape& tape, int64_t) -> absl::StatusOr<Loss> {
      const auto targets = absl::MakeConstSpan(tokens);
      return gpt->ComputeLoss(tape, {tokens, 1, 2 * kSmallGpt.context}, targets);
    };
    const absl::Status planned = Engine::PlanMemory(store, Plan(), {2}, forward).status();
    auto engine = Engine::Create(world, store, Plan());
    return std::vector<absl::Status>{planned, (*engine)->Step(forward).status()};
  });
  for (const auto& both : statuses) {
    for (const absl::Status& status : both) {
      EXPECT_THAT(status.message(),
                  HasSubstr("embedding: a sequence of 32 tokens is longer than the context of 16"));
    }
  }
}

TEST(Engine, RefusesIdsAndTargetsOutsideTheVocabularyOfAProgramsOwnBatch) {
  const std::vector<int32_t> good(kRows * kSmallGpt.context, 1);
  std::vector<int32_t> bad = good;
  bad[kSmallGpt.context + 3] = 1'000'000'000;
  const auto step = [&](const std::vector<int32_t>& inputs, const std::vector<int32_t>& targets) {
    return OnRanks<absl::Status>(1, [&](Communicator& world) {
      ParameterStore store;
      auto gpt = Decoder::Create(kSmallGpt, store);
      auto engine = Engine::Create(world, store, SmallPlan(SumMode::kFast, 1));
      return (*engine)
          ->Step([&](Tape& tape, int64_t) -> absl::StatusOr<Loss> {
            return (*gpt)->ComputeLoss(
                tape, {.tokens = inputs, .batch = kRows, .sequence = kSmallGpt.context}, targets);
          })
          .status();
    })[0];
  };
  EXPECT_THAT(step(good, good), IsOk());
  EXPECT_THAT(step(bad, good),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("wte.weight: token 1000000000 at position 3 of sequence 1 is "
                                 "outside the vocabulary of 24")));
  EXPECT_THAT(step(good, bad),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("of the targets, token 1000000000 at position 3 of sequence 1")));
  bad[kSmallGpt.context + 3] = -2;
  EXPECT_THAT(step(bad, good), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(step(good, bad), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(Engine, RefusesAStoreThatAnotherEngineTrains) {
  for (const char* preset : {"ddp", "full-shard"}) {
    const Plan plan = Under(preset, SmallPlan(SumMode::kFast, 1), 2);
    const auto statuses = OnRanks<absl::Status>(2, [&](Communicator& world) {
      auto first = SmallTraining::Create(world, plan);
      const auto sample = [&](Tape& tape) { return (*first)->Sample(tape); };
      const absl::Status second = Engine::Create(world, (*first)->store(), plan, sample).status();
      EXPECT_THAT((*first)->Steps(1), IsOk()) << "the first one goes on";
      return second;
    });
    EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                                        HasSubstr("needs its own ParameterStore"))));
  }
  const absl::Status planned = OnRanks<absl::Status>(1, [&](Communicator& world) {
    auto first = SmallTraining::Create(world, SmallPlan(SumMode::kFast, 1));
    return Engine::PlanMemory((*first)->store(), (*first)->engine().plan(), {.world_size = 1},
                              [&](Tape& tape, int64_t) { return (*first)->Sample(tape); })
        .status();
  })[0];
  EXPECT_THAT(planned, StatusIs(absl::StatusCode::kFailedPrecondition));
}

// A loss that is finite, and a gradient that is not: a square root at zero, say.
TEST(Engine, NamesTheParameterWhoseGradientIsNotFinite) {
  const auto statuses = OnRanks<absl::Status>(2, [](Communicator& world) {
    auto training = SmallTraining::Create(world, SmallPlan(SumMode::kFast, 1));
    float* gradient = (*training)->store().Find("h.1.ln_2.bias")->gradient().data<float>();
    if (world.rank() == 1) {
      // Called before each block's backward pass: before that of block 0, block 1 has written its
      // gradients; the model is one bucket, which is not under way yet.
      (*training)->within_backward = [gradient] {
        gradient[3] = std::numeric_limits<float>::quiet_NaN();
      };
    }
    return (*training)->Steps(1).status();
  });
  EXPECT_THAT(statuses,
              Each(StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("h.1.ln_2.bias"))));
}

// The table's gradient is begun by the head and ends the backward pass, so its bucket is the last
// to travel; the others have been there for long. No update may have begun before it is known.
TEST(Engine, ChangesNothingWhereTheBucketThatIsReducedLastIsNotFinite) {
  for (const char* preset : {"ddp", "zero-1", "zero-2", "full-shard"}) {
    for (const double max_norm : {0.0, 1.0}) {
      Plan plan = Under(preset, SmallPlan(SumMode::kFast, 1), 2);
      plan.buckets.bytes_max = 4096;
      plan.buckets.first_bytes = 1024;
      plan.max_gradient_norm = max_norm;
      const auto ends = OnRanks<absl::Status>(2, [&](Communicator& world) {
        auto training = SmallTraining::Create(world, plan, DType::kF32, nullptr,
                                              {.waits_before_updates = true});  // as with --survive
        EXPECT_THAT((*training)->Steps(2), IsOk());
        const TemporaryDirectory before, after;
        EXPECT_THAT((*training)->engine().Save(before.path(), {}), IsOk());
        if (world.rank() == 1) {
          (*training)->within_backward = [&] {
            Tensor gradient = (*training)->store().Find("wte.weight")->gradient();
            ASSERT_FALSE(gradient.empty());
            gradient.data<float>()[7] = std::numeric_limits<float>::quiet_NaN();
          };
        }
        const absl::Status status = (*training)->Step().status();
        EXPECT_EQ((*training)->engine().step(), 2);
        EXPECT_THAT((*training)->engine().Save(after.path(), {}), IsOk());
        if (world.rank() == 0) {
          for (const std::string& file : FilesBelow(before.path())) {
            EXPECT_EQ(ReadFile(after.File(file)), ReadFile(before.File(file))) << preset;
          }
        }
        return status;
      });
      EXPECT_THAT(ends, Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                                      HasSubstr("first in wte.weight"))))
          << preset << " clipped to " << max_norm;
    }
  }
}

TEST(Engine, TreatsParametersThatNoOperationUsesAsUntouched) {
  const auto values = OnRanks<std::vector<float>>(2, [](Communicator& world) {
    ParameterStore store;
    auto gpt = Decoder::Create(kSmallGpt, store);
    Parameter& unused =
        store.Declare({.name = "unused", .shape = {5}, .initializer = Initializer::Constant(0.5)});
    auto engine = Engine::Create(world, store, SmallPlan(SumMode::kOrdered, 2));
    EXPECT_THAT(engine, IsOk());
    for (int step = 0; step < 3; ++step) {
      std::unique_ptr<SmallBatch> batch;
      EXPECT_THAT((*engine)->Step([&](Tape& tape, int64_t index) -> absl::StatusOr<Loss> {
        batch = std::make_unique<SmallBatch>(step, 2 * world.rank() + index);
        return (*gpt)->ComputeLoss(tape, batch->tokens(), batch->targets);
      }),
                  IsOk());
    }
    const auto span = unused.value().span<float>();
    return std::vector<float>(span.begin(), span.end());
  });
  EXPECT_THAT(values, Each(Each(0.5f)));
}

// --- checkpoints --------------------------------------------------------------------------------

TEST(Engine, ContinuesFromACheckpointAsIfItHadNeverStopped) {
  const Plan plan = SmallPlan(SumMode::kOrdered, 2);
  const Outcome whole = Train(2, plan, 8);
  TemporaryDirectory directory;
  OnRanks<int>(2, [&](Communicator& world) {
    auto training = SmallTraining::Create(world, plan);
    EXPECT_THAT((*training)->Steps(5), IsOk());
    EXPECT_THAT((*training)->engine().Save(directory.path(), {{"note", "of the caller"}}), IsOk());
    return 0;
  });
  // Another number of ranks, the same micro-batches.
  const auto hashes = OnRanks<std::string>(4, [&](Communicator& world) {
    Plan other = SmallPlan(SumMode::kOrdered, 1);
    other.seed = 99;
    auto training = SmallTraining::Create(world, other);
    const auto loaded = (*training)->engine().Load(directory.path());
    EXPECT_THAT(loaded, IsOk());
    EXPECT_TRUE(loaded->metadata.contains("note"));
    EXPECT_EQ(loaded->plan.at("seed"), "1");
    EXPECT_EQ((*training)->engine().step(), 5);
    EXPECT_THAT((*training)->Steps(3), IsOk());
    return (*training)->engine().ParameterHash().value_or("none");
  });
  EXPECT_THAT(hashes, Each(whole.hash));
}

TEST(Engine, HoldsAShardOfTheOptimizerForZeroOne) {
  Plan plan = SmallPlan(SumMode::kFast, 1);
  plan.optimizer.placement = Placement::kShard;
  OnRanks<int>(4, [&](Communicator& world) {
    auto training = SmallTraining::Create(world, plan);
    const EngineMemory memory = (*training)->engine().memory();
    EXPECT_NEAR(memory.optimizer, memory.parameters / 2, 2 * 4096 * 2);
    return 0;
  });
}

TEST(Engine, RefusesTheCheckpointOfAnotherModelOnEveryRank) {
  TemporaryDirectory directory;
  OnRanks<int>(1, [&](Communicator& world) {
    ParameterStore store;
    DecoderConfig config = kSmallGpt;
    config.layers = 3;
    auto gpt = Decoder::Create(config, store);
    EXPECT_THAT((*Engine::Create(world, store, Plan()))->Save(directory.path(), {}), IsOk());
    return 0;
  });
  const auto statuses = OnRanks<absl::Status>(2, [&](Communicator& world) {
    auto training = SmallTraining::Create(world, Plan());
    return (*training)->engine().Load(directory.path()).status();
  });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("h.2."))));
}

// What is missing is found before anything is touched; and it is no absence of a checkpoint, over
// from which a program would start over.
TEST(Engine, RefusesACheckpointThatLacksAnOptimizerArrayAndStaysAsItWas) {
  TemporaryDirectory directory;
  OnRanks<int>(1, [&](Communicator& world) {
    auto training = SmallTraining::Create(world, SmallPlan(SumMode::kFast, 1));
    EXPECT_THAT((*training)->Steps(2), IsOk());
    EXPECT_THAT((*training)->engine().Save(directory.path(), {}), IsOk());
    return 0;
  });
  RemoveArray(directory.File("step_00000002"), "second_moment.h.1.ln_2.bias");
  OnRanks<int>(2, [&](Communicator& world) {
    auto training = SmallTraining::Create(world, SmallPlan(SumMode::kFast, 1));
    const std::string before = (*training)->engine().ParameterHash().value_or("none");
    EXPECT_THAT(
        (*training)->engine().Load(directory.path()),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("second_moment.h.1.ln_2.bias")));
    EXPECT_EQ((*training)->engine().ParameterHash().value_or("none"), before);
    EXPECT_EQ((*training)->engine().step(), 0);
    return 0;
  });
}

// Each rank compares what it reads; what has been taken by then is of no step.
TEST(Engine, RefusesACheckpointWithAFlippedByteByItsArrayAndTrainsOnNothingOfIt) {
  const TemporaryDirectory directory;
  OnRanks<int>(2, [&](Communicator& world) {
    auto training = SmallTraining::Create(world, Under("zero-2", SmallPlan(SumMode::kFast, 1), 2));
    EXPECT_THAT((*training)->Steps(2), IsOk());
    EXPECT_THAT((*training)->engine().Save(directory.path(), {}), IsOk());
    return 0;
  });
  const std::string path = directory.File("step_00000002");
  const checkpoint::Manifest manifest = checkpoint::Checkpoint::Open(path)->manifest();
  for (const auto& [arrays, name] : {std::pair(&manifest.model, "h.1.mlp.c_fc.weight"),
                                     std::pair(&manifest.optimizer, "second_moment.ln_f.bias")}) {
    const checkpoint::Piece& piece = arrays->at(name).pieces.back();
    const std::string file = manifest.files[piece.file].name;
    const std::string whole = ReadFile(path + "/" + file);
    std::string flipped = whole;
    flipped[piece.offset + 5] ^= 1;
    WriteFile(path + "/" + file, flipped);
    OnRanks<int>(2, [&, name = name](Communicator& world) {
      auto training = SmallTraining::Create(world, SmallPlan(SumMode::kFast, 1));
      EXPECT_THAT((*training)->engine().Load(directory.path()),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           AllOf(HasSubstr(file), HasSubstr(name), HasSubstr("SHA-256"))));
      EXPECT_THAT((*training)->Step(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                HasSubstr("the state is of no step")));
      return 0;
    });
    WriteFile(path + "/" + file, whole);
  }
}

TEST(Engine, SaysOnEveryRankThatThereIsNoCheckpoint) {
  TemporaryDirectory directory;
  const auto statuses = OnRanks<absl::Status>(2, [&](Communicator& world) {
    auto training = SmallTraining::Create(world, Plan());
    return (*training)->engine().Load(directory.File("nothing")).status();
  });
  EXPECT_THAT(statuses, Each(HasStatusCode(absl::StatusCode::kNotFound)));
}

TEST(Engine, EvaluatesWithoutTouchingAnything) {
  OnRanks<int>(2, [](Communicator& world) {
    auto training = SmallTraining::Create(world, SmallPlan(SumMode::kFast, 2));
    const auto evaluated = (*training)->Evaluate(2);
    EXPECT_THAT(evaluated, IsOk());
    const std::string hash = (*training)->engine().ParameterHash().value_or("none");
    const absl::StatusOr<StepResult> step = (*training)->Step();
    EXPECT_NEAR(evaluated->loss, step->loss, 1e-6);
    EXPECT_EQ(evaluated->num_tokens, step->num_tokens);
    EXPECT_NE((*training)->engine().ParameterHash().value_or("none"), hash);
    return 0;
  });
}

TEST(Engine, CountsItsMemory) {
  OnRanks<int>(1, [](Communicator& world) {
    auto training = SmallTraining::Create(world, SmallPlan(SumMode::kFast, 1));
    EXPECT_THAT((*training)->Steps(1), IsOk());
    const EngineMemory memory = (*training)->engine().memory();
    const int64_t elements = kSmallGpt.num_parameters();
    EXPECT_GE(memory.parameters, 4 * elements);
    // Each of four units is filled up to a block.
    EXPECT_THAT(memory.parameters, Le(4 * elements * 105 / 100 + 4 * 4 * 1024));
    EXPECT_EQ(memory.gradients, memory.parameters);
    EXPECT_EQ(memory.optimizer, 2 * memory.parameters);
    EXPECT_GT(memory.activations_peak, 0);
    return 0;
  });
}

}  // namespace
}  // namespace muster::testing
