// Kernels over flat arrays beside their host twins: sums, casts, GELU, norms, the update.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "muster/sum_tree.h"
#include "tests/unit/worker_runtime/kernels/kernel_numbers.h"
#include "worker_runtime/kernels/adamw.h"
#include "worker_runtime/kernels/cuda_kernels.h"
#include "worker_runtime/kernels/elementwise.h"
#include "worker_runtime/kernels/gelu.h"
#include "worker_runtime/kernels/sgd.h"
#include "worker_runtime/kernels/sum_of_squares.h"
#include "worker_runtime/nn/rounding.h"

namespace muster::kernels {
namespace {

using ::muster::testing::ForEverySchedule;
using ::muster::testing::KernelArray;
using ::muster::testing::KernelNumbers;
using ::muster::testing::KernelTest;
using ::muster::testing::KernelTypeNames;
using ::muster::testing::kKernelTolerance;
using ::muster::testing::Narrowed;
using ::muster::testing::RandomNumbers;
using ::muster::testing::RelativeError;
using ::muster::testing::SameBits;
using ::muster::testing::Widened;

// Around a vector, a block of threads, and more than one of those.
const std::vector<int64_t> kFlatSizes = {1, 7, 16, 129, 1025, 2500};

template <typename T>
class FlatKernels : public KernelTest<T> {};
// f16 is the types' own, which cuda_kernels_rows_test looks at.
using FlatTypes = ::testing::Types<float, uint16_t>;
TYPED_TEST_SUITE(FlatKernels, FlatTypes, KernelTypeNames);

TYPED_TEST(FlatKernels, AddAndScaleAsTheHostDoes) {
  for (const int64_t n : kFlatSizes) {
    const auto a = KernelNumbers<TypeParam>(n, "a");
    const auto b = KernelNumbers<TypeParam>(n, "b");
    const auto factor = KernelNumbers<TypeParam>(1, "factor");
    std::vector<float> sum(n), scaled(n);
    Elementwise<float>().add(Widened(a).data(), Widened(b).data(), sum.data(), n);
    Elementwise<float>().scale(Widened(factor)[0], Widened(a).data(), scaled.data(), n);
    const KernelArray<TypeParam> on_a(a), on_b(b), on_factor(factor);
    const auto out = KernelArray<TypeParam>::Poisoned(n);
    ASSERT_EQ(cuda::Add(nullptr, on_a.data(), on_b.data(), out.data(), n), nullptr);
    EXPECT_LE(RelativeError(Widened(out.Read()), sum), kKernelTolerance<TypeParam>) << n;
    ASSERT_EQ(cuda::Scale(nullptr, on_factor.data(), on_a.data(), out.data(), n), nullptr);
    EXPECT_LE(RelativeError(Widened(out.Read()), scaled), kKernelTolerance<TypeParam>) << n;
  }
}

TYPED_TEST(FlatKernels, FillsWholeArraysAndNothingBesideThem) {
  for (const int64_t n : kFlatSizes) {
    const KernelArray<TypeParam> x(KernelNumbers<TypeParam>(n + 1, "x"));
    const auto before = x.Read();
    ASSERT_EQ(cuda::Fill(nullptr, -0.75f, x.data(), n), nullptr);
    auto expected = std::vector<float>(n, -0.75f);
    expected.push_back(Widened(before)[n]);
    EXPECT_EQ(Widened(x.Read()), expected) << n;
  }
}

TYPED_TEST(FlatKernels, GeluHasTheHostsGradient) {
  for (const int64_t n : kFlatSizes) {
    auto x = KernelNumbers<TypeParam>(n, "x", 3);
    if (n > 2) {
      // The first two are where exp(-2u) overflows, and where it vanishes.
      const auto far = KernelNumbers<TypeParam>(2, "far", 40);
      x[0] = far[0];
      x[1] = far[1];
    }
    const auto dy = KernelNumbers<TypeParam>(n, "dy");
    std::vector<float> dx(n);
    Gelu<float>().backward(Widened(x).data(), Widened(dy).data(), dx.data(), n);
    const KernelArray<TypeParam> on_x(x), on_dy(dy);
    const auto out = KernelArray<TypeParam>::Poisoned(n);
    ASSERT_EQ(cuda::GeluBackward(nullptr, on_x.data(), on_dy.data(), out.data(), n), nullptr);
    EXPECT_LE(RelativeError(Widened(out.Read()), dx), kKernelTolerance<TypeParam>) << n;
  }
}

TYPED_TEST(FlatKernels, SquaresByBlockHaveTheHostsBits) {
  for (const int64_t n : {1, 1023, 1024, 1025, 5000, 17000}) {
    const auto x = KernelNumbers<TypeParam>(n, "x");
    std::vector<double> expected(NumNormBlocks(n));
    SumOfSquares<float>().blocks(Widened(x).data(), n, expected.data());
    const KernelArray<TypeParam> on_x(x);
    ForEverySchedule([&] {
      const auto partials = KernelArray<double>::Poisoned(expected.size());
      ASSERT_EQ(cuda::SquaresByBlock(nullptr, on_x.data(), n, partials.data()), nullptr);
      EXPECT_TRUE(SameBits(partials.Read(), expected)) << n;
    });
  }
}

class FlatKernel : public KernelTest<float> {};

TEST_F(FlatKernel, GradientDescentHasTheHostsBitsAndKeepsToTheDecision) {
  const SgdStep plain = {.learning_rate = 0.3, .weight_decay = 0.1};
  const SgdStep heavy = {.learning_rate = 0.3, .momentum = 0.9};
  const SgdStep nesterov = {.learning_rate = 0.3, .momentum = 0.9, .nesterov = true};
  for (const SgdStep& step : {plain, heavy, nesterov}) {
    for (const int64_t n : kFlatSizes) {
      const auto gradient = RandomNumbers<float>(n, "gradient");
      auto value = RandomNumbers<float>(n, "value");
      auto buffer = RandomNumbers<float>(n, "buffer");
      const KernelArray<float> on_gradient(gradient), on_value(value), on_buffer(buffer);
      const bool has_buffer = step.momentum != 0;
      const auto update = [&](cuda::UpdateDecision decision) {
        decision.decay = static_cast<float>(step.weight_decay);
        const KernelArray<cuda::UpdateDecision> on_decision(std::vector{decision});
        const cuda::UpdateRun all = {.end = n};
        EXPECT_EQ(
            cuda::SgdUpdate(
                nullptr, {.momentum = static_cast<float>(step.momentum), .nesterov = step.nesterov},
                {&all, 1}, on_decision.data(),
                {on_gradient.data(), on_value.data(), has_buffer ? on_buffer.data() : nullptr}),
            nullptr);
        EXPECT_TRUE(SameBits(on_value.Read(), value)) << n;
        EXPECT_TRUE(SameBits(on_buffer.Read(), buffer)) << n;
      };
      update({.gradient_scale = 0.7, .skipped = 1});
      SgdStep decided = step;
      decided.gradient_scale = 0.7;
      Sgd<float>().update(decided, gradient.data(), value.data(),
                          has_buffer ? buffer.data() : nullptr, n);
      update({.gradient_scale = 0.7, .learning_rate = step.learning_rate});
    }
  }
}

TEST_F(FlatKernel, CastsHaveTheHostsBits) {
  auto x = RandomNumbers<float>(1029, "x", 1e3);
  x[0] = std::numeric_limits<float>::quiet_NaN();
  x[1] = -std::numeric_limits<float>::infinity();
  x[2] = std::numeric_limits<float>::max();  // becomes infinity
  x[3] = std::numeric_limits<float>::denorm_min();
  x[4] = 1 + 1.0f / 256;  // ties to even
  x[5] = 1 + 3.0f / 256;
  const auto n = static_cast<int64_t>(x.size());
  std::vector<uint16_t> narrow(n);
  std::vector<float> wide(n);
  Cast().f32_to_bf16(x.data(), narrow.data(), n);
  Cast().bf16_to_f32(narrow.data(), wide.data(), n);
  const KernelArray<float> on_x(x);
  const auto on_narrow = KernelArray<uint16_t>::Poisoned(n);
  const auto on_wide = KernelArray<float>::Poisoned(n);
  ASSERT_EQ(cuda::CastToBf16(nullptr, on_x.data(), on_narrow.data(), n), nullptr);
  ASSERT_EQ(cuda::CastToFloat(nullptr, on_narrow.data(), on_wide.data(), n), nullptr);
  auto got = on_narrow.Read();
  auto got_wide = on_wide.Read();
  // The bits of what is not a number are the device's choice.
  EXPECT_TRUE(std::isnan(FromBf16(got[0])));
  EXPECT_TRUE(std::isnan(got_wide[0]));
  got[0] = narrow[0];
  got_wide[0] = wide[0];
  EXPECT_TRUE(SameBits(got, narrow));
  EXPECT_TRUE(SameBits(got_wide, wide));
}

TEST_F(FlatKernel, TheSumOfATreeHasTheHostsBits) {
  for (const int64_t n : {0, 1, 2, 3, 7, 300, 1024, 1025, 2049, 5000}) {
    const auto values = RandomNumbers<double>(n, "values");
    const KernelArray<double> on_values(values);
    ForEverySchedule([&] {
      const auto scratch = KernelArray<double>::Poisoned(cuda::TreeScratch(n));
      const auto sum = KernelArray<double>::Poisoned(1);
      ASSERT_EQ(cuda::TreeSum(nullptr, on_values.data(), n, scratch.data(), sum.data()), nullptr);
      EXPECT_EQ(sum.Read()[0], TreeSum(values)) << n;
    });
  }
}

// A step's inputs, on the host and where kernels see them.
struct DecidedUpdate {
  explicit DecidedUpdate(cuda::UpdateSettings with, double squares = 9, double tokens = 2,
                         double loss_scale = 4, cuda::UpdateDecision before = {.updates = 6})
      : settings(with),
        squares(std::vector{squares}),
        tokens(std::vector{tokens}),
        loss_scale(std::vector{loss_scale}),
        decision(std::vector{before}) {}

  cuda::UpdateDecision Decide() {
    EXPECT_EQ(
        cuda::DecideUpdate(nullptr, settings, {squares.data(), tokens.data(), loss_scale.data()},
                           decision.data()),
        nullptr);
    return decision.Read()[0];
  }

  cuda::UpdateSettings settings;
  KernelArray<double> squares, tokens, loss_scale;
  KernelArray<cuda::UpdateDecision> decision;
};

const AdamWStep kUpdate = {.learning_rate = 3e-3, .beta2 = 0.95, .weight_decay = 0.1};

TEST_F(FlatKernel, AStepIsDecidedFromTheNorm) {
  const auto free = DecidedUpdate({.update = kUpdate}).Decide();
  EXPECT_EQ(free.norm, 3.0 / 8);
  EXPECT_EQ(free.skipped, 0);
  EXPECT_EQ(free.updates, 7);
  EXPECT_EQ(free.gradient_scale, 1.0f / 8);
  EXPECT_EQ(free.learning_rate, kUpdate.learning_rate);
  const auto clipped = DecidedUpdate({.update = kUpdate, .max_norm = 0.1}).Decide();
  EXPECT_FLOAT_EQ(clipped.gradient_scale, 0.1 / (3.0 / 8 + 1e-6) / 8);
  const auto below = DecidedUpdate({.update = kUpdate, .max_norm = 0.5}).Decide();
  EXPECT_EQ(below.gradient_scale, 1.0f / 8);
}

TEST_F(FlatKernel, AStepIsDecidedAsTheHostDecidesIt) {
  for (const double sum : {9.0, 1e-12, double{INFINITY}}) {
    for (const double max_norm : {0.0, 0.1}) {
      for (const double loss : {2.5, double{NAN}}) {
        const cuda::UpdateSettings settings = {.update = kUpdate, .max_norm = max_norm};
        // Squares, tokens, scale of the loss, loss, learning rate.
        const std::vector<double> totals = {sum, 3, 4, loss, 0.7};
        cuda::UpdateDecision host = {.updates = 6};
        const auto at = [](const double* x) {
          return cuda::GradientTotals{.squares = x,
                                      .tokens = x + 1,
                                      .loss_scale = x + 2,
                                      .loss = x + 3,
                                      .learning_rate = x + 4};
        };
        DecideUpdate(settings, at(totals.data()), &host);
        const KernelArray<double> there(totals);
        const KernelArray<cuda::UpdateDecision> decision(
            std::vector{cuda::UpdateDecision{.updates = 6}});
        ASSERT_EQ(cuda::DecideUpdate(nullptr, settings, at(there.data()), decision.data()),
                  nullptr);
        const cuda::UpdateDecision late = decision.Read()[0];
        EXPECT_EQ(late.skipped, host.skipped);
        EXPECT_EQ(late.updates, host.updates);
        EXPECT_EQ(late.gradient_scale, host.gradient_scale);
        EXPECT_EQ(late.learning_rate, host.learning_rate);
        EXPECT_TRUE(SameBits(std::vector{late.norm}, std::vector{host.norm}));
      }
    }
  }
}

TEST_F(FlatKernel, AStepWhoseNormIsNotFiniteIsSkippedAndNotCounted) {
  for (const double squares : {double{INFINITY}, double{NAN}}) {
    const auto decision = DecidedUpdate({.update = kUpdate}, squares).Decide();
    EXPECT_EQ(decision.skipped, 1);
    EXPECT_EQ(decision.updates, 6);
  }
}

// The arrays of parameters, before an update.
struct Parameters {
  explicit Parameters(int64_t n)
      : gradient(RandomNumbers<float>(n, "gradient")),
        master(RandomNumbers<float>(n, "master")),
        first(RandomNumbers<float>(n, "first")),
        second(RandomNumbers<float>(n, "second")) {
    for (float& v : second) v = std::fabs(v);
  }
  std::vector<float> gradient, master, first, second;
};

// The same where kernels see them, from element `begin` on. `value` of bf16 follows.
struct OnGpu {
  explicit OnGpu(const Parameters& all, int64_t begin = 0)
      : gradient(std::vector(all.gradient.begin() + begin, all.gradient.end())),
        master(std::vector(all.master.begin() + begin, all.master.end())),
        first(std::vector(all.first.begin() + begin, all.first.end())),
        second(std::vector(all.second.begin() + begin, all.second.end())),
        value(KernelArray<uint16_t>::Poisoned(all.master.size() - begin)),
        n(static_cast<int64_t>(all.master.size()) - begin) {}

  void Update(DecidedUpdate& run, bool follows, RoundingDraws draws = {}) {
    Update({{.end = n}}, run.decision, follows, draws);
  }
  void Update(const std::vector<cuda::UpdateRun>& runs,
              const KernelArray<cuda::UpdateDecision>& decisions, bool follows,
              RoundingDraws draws = {}) {
    ASSERT_EQ(cuda::AdamWUpdate(nullptr, {runs.data(), runs.size()}, decisions.data(),
                                {.gradient = gradient.data(),
                                 .master = master.data(),
                                 .first_moment = first.data(),
                                 .second_moment = second.data(),
                                 .value = follows ? value.data() : nullptr},
                                draws),
              nullptr);
  }

  KernelArray<float> gradient, master, first, second;
  KernelArray<uint16_t> value;
  int64_t n;
};

TEST_F(FlatKernel, UpdatesHaveTheHostsBits) {
  AdamWStep adam = kUpdate;
  adam.decays_gradient = true;
  for (const AdamWStep& update : {kUpdate, adam}) {
    for (const int64_t n : {5, 16, 1024, 1541}) {
      Parameters host(n);
      OnGpu gpu(host);
      DecidedUpdate run({.update = update, .max_norm = 0.3});
      const auto decision = run.Decide();
      gpu.Update(run, false);
      AdamWStep step = update;
      step.step = decision.updates;
      step.gradient_scale = decision.gradient_scale;
      AdamW<float>().update(step, host.gradient.data(),
                            {host.master.data(), host.first.data(), host.second.data()}, n);
      EXPECT_TRUE(SameBits(gpu.master.Read(), host.master)) << n;
      EXPECT_TRUE(SameBits(gpu.first.Read(), host.first)) << n;
      EXPECT_TRUE(SameBits(gpu.second.Read(), host.second)) << n;
    }
  }
}

// Runs of any length, more of them than a launch takes, against an update of each run alone.
TEST_F(FlatKernel, GroupsThatLieSideBySideAreEachUpdatedTheirWay) {
  constexpr int kRuns = 300;
  AdamWStep other = kUpdate;
  other.learning_rate = 0.2;
  other.beta1 = 0.5;
  other.epsilon = 1e-3;
  other.decays_gradient = true;
  const RoundingDraws draws = {.key_low = 8, .key_high = 9, .first_element = 4096};
  std::vector<cuda::UpdateRun> runs;
  for (int i = 0; i < kRuns; ++i) {
    const int64_t begin = runs.empty() ? 0 : runs.back().end;
    runs.push_back({.end = begin + 16 * (1 + i * i % 11), .group = i % 3 == 0 ? 1 : 0});
  }
  runs.back().end -= 3;
  const Parameters host(runs.back().end);
  DecidedUpdate groups[] = {DecidedUpdate({.update = kUpdate}), DecidedUpdate({.update = other})};
  const KernelArray<cuda::UpdateDecision> decisions(
      std::vector{groups[0].Decide(), groups[1].Decide()});
  OnGpu together(host);
  together.Update(runs, decisions, true, draws);
  const auto master = together.master.Read(), first = together.first.Read(),
             second = together.second.Read();
  const auto value = together.value.Read();
  int64_t begin = 0;
  for (const cuda::UpdateRun& part : runs) {
    OnGpu alone(host, begin);
    alone.n = part.end - begin;
    RoundingDraws from = draws;
    from.first_element += begin;
    alone.Update(groups[part.group], true, from);
    const auto same = [&](const auto& all, const auto& own) {
      return std::equal(all.begin() + begin, all.begin() + part.end, own.begin());
    };
    ASSERT_TRUE(same(master, alone.master.Read())) << begin;
    ASSERT_TRUE(same(first, alone.first.Read())) << begin;
    ASSERT_TRUE(same(second, alone.second.Read())) << begin;
    ASSERT_TRUE(same(value, alone.value.Read())) << begin;
    begin = part.end;
  }
}

TEST_F(FlatKernel, ASkippedUpdateLeavesEverythingAsItIs) {
  const Parameters host(100);
  OnGpu gpu(host);
  const auto value = gpu.value.Read();
  DecidedUpdate run({.update = kUpdate}, NAN);
  run.Decide();
  gpu.Update(run, true);
  EXPECT_TRUE(SameBits(gpu.master.Read(), host.master));
  EXPECT_TRUE(SameBits(gpu.first.Read(), host.first));
  EXPECT_TRUE(SameBits(gpu.second.Read(), host.second));
  EXPECT_TRUE(SameBits(gpu.value.Read(), value));
}

// Masters [first, first + n) of a model after an update, and the values that follow them.
struct RoundedUpdate {
  std::vector<float> masters;
  std::vector<uint16_t> values;
};
RoundedUpdate RunRounded(int64_t first_element, int64_t n, RoundingDraws draws) {
  const Parameters all(first_element + n);
  OnGpu gpu(all, first_element);
  DecidedUpdate run({.update = kUpdate});
  EXPECT_EQ(run.Decide().updates, 7);
  draws.first_element = first_element;
  gpu.Update(run, true, draws);
  return {gpu.master.Read(), gpu.value.Read()};
}

std::vector<uint16_t> OnTheHost(const std::vector<float>& masters, RoundingDraws draws,
                                int64_t updates) {
  std::vector<uint16_t> values(masters.size());
  RoundByDraws(masters, draws, updates, values.data());
  return values;
}

TEST_F(FlatKernel, ValuesAreRoundedByTheDrawsOfTheirElement) {
  const RoundingDraws draws = {.key_low = 0xdeadbeef, .key_high = 77};
  const auto whole = RunRounded(0, 1045, draws);
  EXPECT_EQ(whole.values, OnTheHost(whole.masters, draws, 7));
  EXPECT_NE(whole.values, OnTheHost(whole.masters, draws, 8));
  EXPECT_NE(whole.values, OnTheHost(whole.masters, {.key_low = 0xdeadbeef, .key_high = 78}, 7));
  // A rank that has the end alone gets the same.
  const auto end = RunRounded(1008, 37, draws);
  EXPECT_EQ(end.values, std::vector(whole.values.begin() + 1008, whole.values.end()));
}

// The masters may come from a checkpoint, or from other rules than AdamW.
TEST_F(FlatKernel, ValuesOfGivenMastersAreThoseThatTheUpdateLeft) {
  for (const int64_t n : kFlatSizes) {
    auto masters = RandomNumbers<float>(n, "masters");
    masters[0] = n % 2 == 0 ? NAN : INFINITY;
    for (const int64_t updates : {0, 1, 1 << 20}) {
      const RoundingDraws draws = {.key_low = 3, .key_high = 4, .first_element = 8 * n};
      const KernelArray<float> on_masters(masters);
      const KernelArray<cuda::UpdateDecision> decision(
          std::vector{cuda::UpdateDecision{.updates = updates}});
      const auto values = KernelArray<uint16_t>::Poisoned(n);
      ASSERT_EQ(
          cuda::RoundByDraws(nullptr, decision.data(), on_masters.data(), values.data(), draws, n),
          nullptr);
      const auto expected = OnTheHost(masters, draws, updates);
      auto got = values.Read();
      // The bits of what is not a number are the device's choice.
      if (n % 2 == 0) {
        EXPECT_TRUE(std::isnan(FromBf16(got[0])));
        got[0] = expected[0];
      }
      EXPECT_EQ(got, expected) << n << " " << updates;
      if (updates == 0) {
        EXPECT_EQ(got, Narrowed<uint16_t>(masters)) << n;
      }
    }
  }
}

TEST_F(FlatKernel, RoundingByDrawsIsRightInTheMean) {
  const auto rounded = RunRounded(0, 8000, {.key_low = 1});
  const auto values = Widened(rounded.values);
  double bias = 0;
  double nearest_bias = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double spacing = std::ldexp(1.0, std::ilogb(rounded.masters[i]) - 7);
    const double error = (values[i] - rounded.masters[i]) / spacing;
    EXPECT_LT(std::fabs(error), 1) << rounded.masters[i];
    bias += error / static_cast<double>(values.size());
    nearest_bias += std::fabs(error) > 0.5 ? 1 : 0;
  }
  EXPECT_LT(std::fabs(bias), 0.02);  // of 8000 draws: 0.4 / sqrt(8000) = 0.005
  EXPECT_GT(nearest_bias, 1000);     // a fourth of all goes to the farther neighbour
}

}  // namespace
}  // namespace muster::kernels
