#include "muster/tensor_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "absl/strings/str_cat.h"
#include "muster/layers.h"
#include "tests/support/status_matchers.h"

namespace muster {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kRefused = absl::StatusCode::kInvalidArgument;

// The numbers in the whole of the elements that a rank has.
std::vector<int64_t> NumbersOf(const ParameterPart& part) {
  std::vector<int64_t> numbers(part.num_elements(), -1);
  part.ForEachRun(0, part.num_elements(), [&](const ElementRun& run) {
    std::iota(numbers.begin() + run.first, numbers.begin() + run.first + run.count,
              run.first_in_whole);
  });
  return numbers;
}

TEST(ParameterPart, CutsEachSectionByItself) {
  const std::vector<int64_t> whole = {8, 2};
  const ParameterCut cut = {.axis = 0, .sections = {4, 2, 2}};
  EXPECT_THAT(NumbersOf({whole, cut, {.rank = 1, .size = 2}}),
              ElementsAre(4, 5, 6, 7, 10, 11, 14, 15));
  EXPECT_EQ(ParameterPart(whole, cut, {.rank = 1, .size = 2}).first_among_parts(), 8);
}

TEST(ParameterPart, CutsColumns) {
  const ParameterPart part(std::vector<int64_t>{2, 6}, ParameterCut{.axis = 1},
                           {.rank = 2, .size = 3});
  EXPECT_THAT(NumbersOf(part), ElementsAre(4, 5, 10, 11));
}

TEST(ParameterPart, IsTheWholeOfOneRankOrWithoutACut) {
  const std::vector<int64_t> whole = {3};
  for (const ParameterPart& part :
       {ParameterPart(whole, ParameterCut{}, {}), ParameterPart(whole, {}, {1, 3})}) {
    EXPECT_FALSE(part.is_cut());
    EXPECT_THAT(NumbersOf(part), ElementsAre(0, 1, 2));
    EXPECT_EQ(part.CountBefore(2), 2);
    EXPECT_EQ(part.first_among_parts(), 0);
  }
}

// Each element is one rank's, runs of any range are those of the whole range, and counts agree.
TEST(ParameterPart, CoversTheWholeOnceWhateverTheCut) {
  const std::vector<int64_t> whole = {4, 12, 3};
  const ParameterCut cuts[] = {{.axis = 0},
                               {.axis = 1},
                               {.axis = 1, .sections = {6, 2, 4}},
                               {.axis = 1, .sections = {0, 12}}};
  for (const ParameterCut& cut : cuts) {
    std::vector<int> seen(4 * 12 * 3);
    for (int rank = 0; rank < 2; ++rank) {
      const ParameterPart part(whole, cut, {.rank = rank, .size = 2});
      const std::vector<int64_t> numbers = NumbersOf(part);
      for (const int64_t number : numbers) ++seen[number];
      for (int64_t first = 0; first < part.num_elements(); ++first) {
        part.ForEachRun(
            first, std::min<int64_t>(7, part.num_elements() - first), [&](const ElementRun& run) {
              EXPECT_EQ(run.first_in_whole, numbers[run.first]);
              EXPECT_EQ(run.first_in_whole + run.count - 1, numbers[run.first + run.count - 1]);
            });
      }
      for (int64_t number = 0; number <= 4 * 12 * 3; ++number) {
        EXPECT_EQ(part.CountBefore(number),
                  std::count_if(numbers.begin(), numbers.end(),
                                [&](int64_t other) { return other < number; }));
      }
    }
    EXPECT_THAT(seen, ::testing::Each(1));
  }
}

TEST(ParameterPart, RefusesWhatDoesNotDivide) {
  const std::vector<int64_t> whole = {6, 4};
  EXPECT_THAT(ParameterPart::Check(whole, {.axis = 0}, 3), IsOk());
  EXPECT_THAT(ParameterPart::Check(whole, {.axis = 0}, 4),
              StatusIs(kRefused, HasSubstr("its shape is [6, 4], and 4 tensor ranks do not divide "
                                           "the 6 that they cut; 3 would")));
  EXPECT_THAT(ParameterPart::Check(whole, {.axis = 0, .sections = {3, 3}}, 2),
              StatusIs(kRefused, HasSubstr("do not divide the 3")));
  EXPECT_THAT(ParameterPart::Check(whole, {.axis = 2}, 2),
              StatusIs(kRefused, HasSubstr("no axis 2")));
  EXPECT_THAT(ParameterPart::Check(whole, {.axis = -1}, 2),
              StatusIs(kRefused, HasSubstr("no axis -1")));
  EXPECT_THAT(ParameterPart::Check(whole, {.axis = 0, .sections = {2, 2}}, 2),
              StatusIs(kRefused, HasSubstr("shorter")));
  EXPECT_THAT(ParameterPart::Check(whole, {.axis = 0, .sections = {4, 4}}, 2),
              StatusIs(kRefused, HasSubstr("longer")));
}

TEST(ParameterStore, KeepsWhatItsRanksDoNotDivideWhole) {
  ParameterStore store(DType::kF32, {.rank = 1, .size = 2});
  const Parameter& odd = store.Declare({.name = "odd", .shape = {3}, .cut = ParameterCut{}});
  const Parameter& even = store.Declare({.name = "even", .shape = {4}, .cut = ParameterCut{}});
  EXPECT_EQ(odd.shape(), Shape({3}));
  EXPECT_EQ(even.shape(), Shape({2}));
  EXPECT_EQ(even.spec().shape, Shape({4}));
  EXPECT_THAT(store.status(), StatusIs(kRefused, HasSubstr("odd: its shape is [3]")));
}

TEST(ParameterStore, InitializesAPartLikeTheWhole) {
  const ParameterSpec spec = {.name = "w",
                              .shape = {40, 50},
                              .initializer = Initializer::Normal(0.5),
                              .cut = ParameterCut{.axis = 1, .sections = {20, 30}}};
  ParameterStore whole;
  whole.Declare(spec);
  whole.BindToOwnBuffers();
  whole.Initialize(3);
  for (int rank = 0; rank < 5; ++rank) {
    ParameterStore store(DType::kF32, {.rank = rank, .size = 5});
    const Parameter& w = store.Declare(spec);
    store.BindToOwnBuffers();
    store.Initialize(3);
    const std::vector<int64_t> numbers = NumbersOf(w.part());
    for (int64_t i = 0; i < w.num_elements(); ++i) {
      EXPECT_EQ(w.value().span<float>()[i], whole.flat_values().span<float>()[numbers[i]]);
    }
  }
}

// The sum of both ranks is made by hand: each layer is called in turn with the other's part.
TEST(Linear, OfPartsGivesTheSumAndItsGradientToEachRank) {
  const auto forward = [](int rank, int size, int& sums) {
    ParameterStore store(DType::kF64, {.rank = rank, .size = size});
    const Linear wide(Scope(store) / "wide",
                      {.inputs = 3, .outputs = 4, .cut = Linear::Cut::kOutputs});
    const Linear narrow(Scope(store) / "narrow",
                        {.inputs = 4, .outputs = 3, .cut = Linear::Cut::kInputs});
    store.BindToOwnBuffers();
    store.Initialize(7);
    store.OnAddUp([&sums](const Tensor&) { ++sums; });
    TensorPool pool;
    Tape tape(pool);
    const Tensor x = pool.Allocate(DType::kF64, {2, 3});
    std::iota(x.data<double>(), x.data<double>() + 6, 1);
    const Activation input = tape.Watch(x);
    const Activation y = narrow.ForwardOnto(tape, input, wide.Forward(tape, input));
    const Tensor dy = pool.Allocate(DType::kF64, {2, 3});
    std::fill_n(dy.data<double>(), 6, 1.0);
    tape.Backward(y, dy);
    const auto of = [](const Tensor& t) {
      return std::vector<double>(t.data<double>(), t.data<double>() + t.num_elements());
    };
    return std::pair(of(y.value), of(tape.TakeGradient(input)));
  };
  int sums = 0;
  const auto [whole, whole_gradient] = forward(0, 1, sums);
  EXPECT_EQ(sums, 0);
  const auto [first, first_gradient] = forward(0, 2, sums);
  EXPECT_EQ(sums, 2) << "one in the forward pass, one in the backward pass";
  const auto [second, second_gradient] = forward(1, 2, sums);
  for (size_t i = 0; i < whole.size(); ++i) {
    EXPECT_NEAR(first[i] + second[i], whole[i], 1e-14);
    // The residual's gradient is whole on each of them.
    EXPECT_NEAR(first_gradient[i] + second_gradient[i] - 1, whole_gradient[i], 1e-14);
  }
}

}  // namespace
}  // namespace muster
