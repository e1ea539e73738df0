// Heads turned by their positions.
#include "worker_runtime/kernels/rotary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/unit/worker_runtime/numbers.h"

namespace muster::kernels {
namespace {

using ::muster::testing::RandomNumbers;
using ::muster::testing::RelativeError;
using ::muster::testing::SameBits;
using ::muster::testing::SupportedIsas;

RotaryFrequencies Frequencies(int64_t head_width, double base = 10000) {
  RotaryFrequencies frequencies;
  for (int64_t i = 0; i < head_width / 2; ++i) {
    frequencies.of_pair[i] = std::pow(base, -2.0 * static_cast<double>(i) / head_width);
  }
  return frequencies;
}

// Word for word what rotary.h says, with cos and sin of the system.
std::vector<double> Expected(const RotaryShape& shape, const std::vector<double>& x) {
  const RotaryFrequencies frequencies = Frequencies(shape.head_width);
  std::vector<double> turned = x;
  for (int64_t line = 0; line < shape.batch * shape.sequence; ++line) {
    const auto position = static_cast<double>(shape.first_position + line % shape.sequence);
    for (int64_t head = 0; head < shape.heads; ++head) {
      const int64_t begin = line * shape.line + head * shape.head_width;
      for (int64_t i = 0; i < shape.head_width / 2; ++i) {
        const double angle = position * frequencies.of_pair[i];
        const int64_t a = begin + i, b = a + shape.head_width / 2;
        const double sine = shape.inverse ? -std::sin(angle) : std::sin(angle);
        turned[a] = x[a] * std::cos(angle) - x[b] * sine;
        turned[b] = x[b] * std::cos(angle) + x[a] * sine;
      }
    }
  }
  return turned;
}

template <typename T>
std::vector<T> Rotated(const RotaryKernels<T>& kernels, const RotaryShape& shape) {
  auto x = RandomNumbers<T>(shape.batch * shape.sequence * shape.line, "x");
  kernels.rotate(shape, Frequencies(shape.head_width).of_pair.data(), x.data());
  return x;
}

std::vector<RotaryShape> Shapes() {
  std::vector<RotaryShape> shapes;
  for (const int64_t width : {2, 6, 64, 80, 96, 128, 256}) {
    for (const int64_t first : {0, 131071}) {
      shapes.push_back({.batch = 2,
                        .sequence = 7,
                        .heads = 3,
                        .head_width = width,
                        .line = 4 * width + 5,
                        .first_position = first,
                        .inverse = first != 0});
    }
  }
  return shapes;
}

TEST(Rotary, EqualsItsFormula) {
  for (const RotaryShape& shape : Shapes()) {
    const auto x = RandomNumbers<double>(shape.batch * shape.sequence * shape.line, "x");
    const auto expected = Expected(shape, x);
    EXPECT_LT(RelativeError(Rotated(Rotary<double>(), shape), expected), 1e-15) << shape.head_width;
    EXPECT_LT(RelativeError(Rotated(Rotary<float>(), shape), expected), 2e-7) << shape.head_width;
  }
}

// Angles near whole quarters of a turn and large ones among them: x is (1, 0).
TEST(Rotary, HasTheCosAndSinOfEveryAngle) {
  constexpr RotaryShape kShape = {
      .batch = 1, .sequence = 1, .heads = 1, .head_width = 256, .line = 256, .first_position = 1};
  double largest = 0;
  for (int64_t round = 0; round < 200; ++round) {
    RotaryFrequencies angles;
    for (int64_t i = 0; i < kRotaryPairsMax; ++i) {
      const auto number = static_cast<double>(round * kRotaryPairsMax + i);
      const double quarter = number * M_PI_2;
      angles.of_pair[i] = i % 4 == 0   ? quarter
                          : i % 4 == 1 ? std::nextafter(quarter, 1e9)
                          : i % 4 == 2 ? number / 1000
                                       : std::ldexp(1 + number / 25600, static_cast<int>(i / 4));
    }
    std::vector<double> x(256);
    std::fill_n(x.begin(), 128, 1.0);
    Rotary<double>().rotate(kShape, angles.of_pair.data(), x.data());
    for (int64_t i = 0; i < kRotaryPairsMax; ++i) {
      largest = std::max(largest, std::fabs(x[i] - std::cos(angles.of_pair[i])));
      largest = std::max(largest, std::fabs(x[128 + i] - std::sin(angles.of_pair[i])));
    }
  }
  EXPECT_LT(largest, 3e-16);
}

TEST(Rotary, TurnsBackAndLeavesWhatIsBehindTheHeads) {
  RotaryShape shape = {
      .batch = 2, .sequence = 5, .heads = 2, .head_width = 24, .line = 80, .first_position = 40000};
  const auto x = RandomNumbers<double>(800, "x");
  const auto frequencies = Frequencies(24);
  auto y = x;
  Rotary<double>().rotate(shape, frequencies.of_pair.data(), y.data());
  EXPECT_GT(RelativeError(y, x), 0.1);
  for (int i = 0; i < 800; ++i) {
    if (i % 80 < 48) continue;
    EXPECT_EQ(y[i], x[i]);
  }
  shape.inverse = true;
  Rotary<double>().rotate(shape, frequencies.of_pair.data(), y.data());
  EXPECT_LT(RelativeError(y, x), 1e-15);
}

// Texts are continued token by token.
TEST(Rotary, OfAPositionIsTheSameAloneAndInASequence) {
  const RotaryShape shape = {
      .batch = 1, .sequence = 6, .heads = 2, .head_width = 10, .line = 25, .first_position = 2};
  const auto x = RandomNumbers<float>(6 * 25, "x");
  const auto frequencies = Frequencies(10);
  auto together = x, alone = x;
  Rotary<float>().rotate(shape, frequencies.of_pair.data(), together.data());
  for (int64_t t = 0; t < 6; ++t) {
    RotaryShape one = shape;
    one.sequence = 1, one.first_position += t;
    Rotary<float>().rotate(one, frequencies.of_pair.data(), alone.data() + t * 25);
  }
  EXPECT_TRUE(SameBits(together, alone));
}

TEST(Rotary, HasTheSameBitsUnderEveryInstructionSet) {
  for (const RotaryShape& shape : Shapes()) {
    const auto expected = Rotated(MakeRotary<Isa::kBaseline, float>(), shape);
    for (const Isa isa : SupportedIsas()) {
      const auto kernels = ForIsa(isa, [](auto set) { return MakeRotary<set(), float>(); });
      EXPECT_TRUE(SameBits(Rotated(kernels, shape), expected)) << ToString(isa);
    }
  }
}

TEST(Rotary, TakesHeadsOfWholePairsWithinTheirLines) {
  EXPECT_TRUE(CanRotate({.heads = 2, .head_width = 256, .line = 512}));
  EXPECT_FALSE(CanRotate({.heads = 2, .head_width = 256, .line = 511}));
  EXPECT_FALSE(CanRotate({.heads = 1, .head_width = 5, .line = 8}));
  EXPECT_FALSE(CanRotate({.heads = 1, .head_width = 258, .line = 512}));
}

}  // namespace
}  // namespace muster::kernels
