#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <new>
#include <vector>

#include "muster/decoder.h"
#include "tests/unit/worker_runtime/numbers.h"

namespace muster {
namespace {

using ::muster::testing::RandomTokens;
using ::muster::testing::SameBits;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr DecoderConfig kTiny = {
    .layers = 2, .heads = 2, .hidden_size = 16, .context = 8, .vocabulary = 11};

// A bound tiny GPT with a batch.
struct TinyGpt {
  ParameterStore store;
  std::unique_ptr<Decoder> gpt = *Decoder::Create(kTiny, store);
  TensorPool pool;
  std::vector<int32_t> tokens = RandomTokens(2 * 8 + 1, kTiny.vocabulary);

  TinyGpt() {
    store.BindToOwnBuffers();
    store.Initialize(1);
  }
  Loss Forward(Tape& tape) {
    const absl::Span<const int32_t> all(tokens);
    return gpt->ComputeLoss(tape, {all.first(16), 2, 8}, all.subspan(1, 16));
  }
  std::vector<float> Gradients() {
    const auto span = store.flat_gradients().span<float>();
    return {span.begin(), span.end()};
  }
};

TEST(Tape, HasTheSameGradientsInputsFirstAsInOneGo) {
  TinyGpt tiny;
  Tape tape(tiny.pool);
  tape.Backward(tiny.Forward(tape).output);
  const auto together = tiny.Gradients();
  tiny.store.ForgetGradients();
  for (float& g : tiny.store.flat_gradients().span<float>()) g = NAN;
  tape.BackwardInputs(tiny.Forward(tape).output);
  EXPECT_TRUE(std::isnan(tiny.Gradients()[0]));
  tape.BackwardWeights();
  EXPECT_TRUE(SameBits(tiny.Gradients(), together));
}

TEST(Tape, HasTheSameBitsRunAfterRun) {
  TinyGpt tiny;
  Tape tape(tiny.pool);
  const Loss first = tiny.Forward(tape);
  tape.Backward(first.output);
  const auto gradients = tiny.Gradients();
  tiny.store.ForgetGradients();
  const Loss second = tiny.Forward(tape);
  tape.Backward(second.output);
  EXPECT_EQ(first.sum, second.sum);
  EXPECT_TRUE(SameBits(tiny.Gradients(), gradients));
}

TEST(Tape, AddsTheGradientsOfSeveralMicroBatches) {
  TinyGpt tiny;
  Tape tape(tiny.pool);
  tape.Backward(tiny.Forward(tape).output);
  const auto once = tiny.Gradients();
  tape.Backward(tiny.Forward(tape).output);
  const auto twice = tiny.Gradients();
  for (size_t i = 0; i < once.size(); ++i) EXPECT_NEAR(twice[i], 2 * once[i], 1e-5);
}

TEST(WeightUses, TellOfTheLastUseOfEachWeightThatIsNotFrozen) {
  ParameterStore store;
  const Scope scope(store);
  Parameter& a = scope.Declare({.name = "a", .shape = {1}});
  Parameter& b = scope.Declare({.name = "b", .shape = {1}});
  Parameter& frozen = scope.Declare({.name = "frozen", .shape = {1}});
  frozen.Freeze();
  internal::WeightUses uses;
  std::vector<Parameter*> ended;
  uses.OnLast([&](Parameter& weight) { ended.push_back(&weight); });
  Parameter *const first[] = {&a, &frozen}, *const second[] = {&b, &a};
  uses.Add(first);
  const auto range = uses.Add(second);
  EXPECT_THAT(uses.weights(range), ElementsAre(&b, &a));
  uses.Release(b);
  uses.Release(a);
  EXPECT_THAT(ended, ElementsAre(&b));
  uses.Release(a);
  EXPECT_THAT(ended, ElementsAre(&b, &a));
  uses.Clear();
  uses.Add(second);
  uses.Release(a);
  EXPECT_THAT(ended, ElementsAre(&b, &a, &a));
}

TEST(Tape, AnnouncesEachGradientOnceAfterItsLastUse) {
  TinyGpt tiny;
  Tape tape(tiny.pool);
  const auto expected = [&] {
    tape.Backward(tiny.Forward(tape).output);
    return tiny.Gradients();
  }();
  tiny.store.ForgetGradients();
  std::vector<std::string> names;
  tape.OnGradientReady([&](Parameter& parameter) {
    names.push_back(parameter.name());
    const auto final = parameter.gradient().span<float>();
    const size_t first = final.data() - tiny.store.flat_gradients().data<float>();
    EXPECT_TRUE(SameBits(final, absl::MakeConstSpan(expected).subspan(first, final.size())))
        << parameter.name();
  });
  tape.Backward(tiny.Forward(tape).output);
  ASSERT_EQ(names.size(), tiny.store.parameters().size());
  EXPECT_EQ(names[0], "ln_f.weight");  // before the tied table, which the embedding uses again
  EXPECT_EQ(names[names.size() - 2], "wte.weight");
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
}

TEST(Tape, AnnouncesNothingBeforeWeightGradientsRun) {
  TinyGpt tiny;
  Tape tape(tiny.pool);
  int announced = 0;
  tape.OnGradientReady([&](Parameter&) { ++announced; });
  tape.BackwardInputs(tiny.Forward(tape).output);
  EXPECT_EQ(announced, 0);
  tape.BackwardWeights();
  EXPECT_EQ(announced, static_cast<int>(tiny.store.parameters().size()));
}

TEST(Tape, CutIntoStagesGivesTheGradientsOfTheWhole) {
  TinyGpt tiny;
  Tape whole(tiny.pool);
  whole.Backward(tiny.Forward(whole).output);
  const auto expected = tiny.Gradients();
  tiny.store.ForgetGradients();

  const absl::Span<const int32_t> all(tiny.tokens);
  Tape first(tiny.pool);
  Activation sent = tiny.gpt->Embed(first, {all.first(16), 2, 8});
  sent = tiny.gpt->blocks()[0]->Forward(first, sent);
  Tape second(tiny.pool);
  const Activation received = second.Watch(sent.value);
  const Activation x = tiny.gpt->blocks()[1]->Forward(second, received);
  const Loss loss = CrossEntropy(second, tiny.gpt->Head(second, x), all.subspan(1, 16));
  second.Backward(loss.output);
  first.Backward(sent, second.TakeGradient(received));
  EXPECT_TRUE(SameBits(tiny.Gradients(), expected));
}

TEST(Tape, BeginsWithSeveralOutputsOfWhichOneWasReceivedAndOneIsAConstant) {
  TensorPool pool;
  Tape tape(pool);
  const auto filled = [&](float value) {
    const Tensor tensor = pool.Allocate(DType::kF32, {2});
    std::fill(tensor.span<float>().begin(), tensor.span<float>().end(), value);
    return tensor;
  };
  const Activation x = tape.Watch(filled(1));
  const Activation y = tape.Watch(filled(2));
  const Activation sum = Add(tape, x, y);
  const std::vector<Activation> outputs = {sum, y, {.value = filled(3)}};
  std::vector<Tape::Seed> seeds;
  for (const Activation& output : outputs) {
    seeds.push_back({.output = output, .gradient = filled(10 + seeds.size())});
  }
  tape.Backward(absl::MakeSpan(seeds));
  EXPECT_THAT(tape.TakeGradient(x).span<float>(), ElementsAre(10, 10));
  EXPECT_THAT(tape.TakeGradient(y).span<float>(), ElementsAre(21, 21));
  for (const Tape::Seed& seed : seeds) EXPECT_TRUE(seed.gradient.empty()) << "was taken";
}

TEST(Tape, DropsWhatItKeptOnceReplayed) {
  TinyGpt tiny;
  Tape tape(tiny.pool);
  {
    const Loss loss = tiny.Forward(tape);
    EXPECT_GT(tape.num_records(), 0);
    tape.Backward(loss.output);
  }
  EXPECT_EQ(tape.num_records(), 0);
  EXPECT_EQ(tiny.pool.usage().bytes_in_use, 0u);
}

TEST(Tape, ClearDropsAForwardPassThatIsNotReplayed) {
  TinyGpt tiny;
  Tape tape(tiny.pool);
  tiny.Forward(tape);
  tape.Clear();
  EXPECT_EQ(tiny.pool.usage().bytes_in_use, 0u);
  int announced = 0;
  tape.OnGradientReady([&](Parameter&) { ++announced; });
  tape.Backward(tiny.Forward(tape).output);
  EXPECT_EQ(announced, static_cast<int>(tiny.store.parameters().size()));
}

// Each of these would lose a gradient without a word.
TEST(TapeDeathTest, RefusesASecondMicroBatchBetweenTheHalvesOfTheFirst) {
  TinyGpt tiny;
  Tape tape(tiny.pool);
  const Loss first = tiny.Forward(tape);
  tape.BackwardInputs(first.output);
  EXPECT_DEATH(tiny.Forward(tape), "kWeightsAreDue");
  EXPECT_DEATH(tape.Backward(first.output), "kForward");
}

TEST(TapeDeathTest, RefusesToReplayAForwardPassTwice) {
  TinyGpt tiny;
  Tape tape(tiny.pool);
  const Loss loss = tiny.Forward(tape);
  tape.Backward(loss.output);
  EXPECT_DEATH(tape.Backward(loss.output), "kForward");
  EXPECT_DEATH(tape.BackwardWeights(), "kWeightsAreDue");
}

TEST(Tape, KeepsMicroBatchesApartOnTapesOfTheirOwn) {
  TinyGpt tiny;
  Tape one(tiny.pool);
  Tape other(tiny.pool);
  one.Backward(tiny.Forward(one).output);
  one.Backward(tiny.Forward(one).output);
  const auto expected = tiny.Gradients();
  tiny.store.ForgetGradients();
  one.BackwardInputs(tiny.Forward(one).output);
  other.BackwardInputs(tiny.Forward(other).output);
  one.BackwardWeights();
  other.BackwardWeights();
  EXPECT_TRUE(SameBits(tiny.Gradients(), expected));
}

TEST(Tape, RecordsNothingForInference) {
  TinyGpt tiny;
  Tape tape(tiny.pool, Tape::Mode::kInference);
  const Loss loss = tiny.Forward(tape);
  EXPECT_EQ(tape.num_records(), 0);
  EXPECT_FALSE(loss.output.needs_gradient());
  Tape training(tiny.pool);
  EXPECT_EQ(loss.sum, tiny.Forward(training).sum);
}

// As what an operation of a program's own may keep: a table, say.
TEST(Tape, KeepsFunctionsOfAnySize) {
  TensorPool pool;
  Tape tape(pool);
  for (int step = 0; step < 2; ++step) {
    std::vector<int> replayed;
    const auto record = [&]<size_t kSize>(const std::array<int, kSize>& kept, const Activation& x) {
      return tape.Record(
          x.value, {},
          [&replayed, kept, slot = x.slot](Tape& on, const Tensor& dy) {
            replayed.push_back(kept.back());
            on.AddGradient(slot, dy);
          },
          NoGradientFunction());
    };
    Activation x = tape.Watch(pool.Allocate(DType::kF32, {1}));
    for (const int number : {1, 2}) {
      std::array<int, 3> small{};
      std::array<int, 20'000> large{};
      small.back() = number;
      large.back() = 10 * number;
      x = record(large, record(small, x));
    }
    tape.Backward(x);
    EXPECT_THAT(replayed, ElementsAre(20, 2, 10, 1));
  }
}

TEST(Tape, TakesNoMemoryFromTheSystemInASteadyStep) {
  TinyGpt tiny;
  Tape tape(tiny.pool);
  const auto step = [&] { tape.Backward(tiny.Forward(tape).output); };
  step();
  const int64_t before = tiny.pool.usage().system_allocations;
  for (int i = 0; i < 3; ++i) step();
  EXPECT_EQ(tiny.pool.usage().system_allocations, before);
}

}  // namespace
}  // namespace muster
