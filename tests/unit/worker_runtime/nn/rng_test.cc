#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "muster/rng.h"

namespace muster {
namespace {

// Source: known-answer vectors published with the paper's library (Random123, philox4x32 with ten
// rounds).
TEST(Philox, GivesThePublishedWords) {
  EXPECT_EQ(PhiloxBlock({0, 0}, {0, 0}),
            (PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(PhiloxBlock({0xffffffff, 0xffffffff}, {~uint64_t{0}, ~uint64_t{0}}),
            (PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(PhiloxBlock({0xa4093822, 0x299f31d0}, {0x85a308d3243f6a88, 0x0370734413198a2e}),
            (PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Rng, DependsOnSeedPurposeStepAndIndexAlone) {
  const Rng rng(1, "a");
  EXPECT_EQ(rng.Word(2, 3), Rng(1, "a").Word(2, 3));
  EXPECT_NE(rng.Word(2, 3), Rng(2, "a").Word(2, 3));
  EXPECT_NE(rng.Word(2, 3), Rng(1, "b").Word(2, 3));
  EXPECT_NE(rng.Word(2, 3), rng.Word(1, 3));
  EXPECT_NE(rng.Word(2, 3), rng.Word(2, 4));
}

TEST(Rng, DrawsBelowABoundEvenly) {
  const Rng rng(1, "below");
  std::vector<int> counts(7);
  for (int i = 0; i < 7000; ++i) ++counts[rng.Below(7, 0, i)];
  for (const int count : counts) EXPECT_NEAR(count, 1000, 5 * std::sqrt(1000.0));
}

TEST(Rng, NormalNumbersHaveMeanZeroAndDeviationOne) {
  const Rng rng(1, "normal");
  double sum = 0, squares = 0, fourth = 0;
  constexpr int kCount = 100000;
  for (int i = 0; i < kCount; ++i) {
    const double x = rng.Normal(0, i);
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.016);
  EXPECT_NEAR(squares / kCount, 1, 0.023);
  EXPECT_NEAR(fourth / kCount, 3, 0.16);
}

TEST(NormalQuantile, InvertsTheNormalDistribution) {
  for (const double p :
       {0x1p-33, 1e-9, 1e-5, 0.01, 0.0749, 0.0751, 0.3, 0.5, 0.7, 0.99, 1 - 1e-7}) {
    const double x = NormalQuantile(p);
    const double back =
        p < 0.5 ? 0.5 * std::erfc(-x / std::sqrt(2.0)) : 1 - 0.5 * std::erfc(x / std::sqrt(2.0));
    EXPECT_NEAR(back / p, 1, 1e-13) << p;
  }
}

TEST(Rng, FillsWithTheNumbersThatItDrawsOneByOne) {
  const Rng rng(3, "fill");
  for (const uint64_t first : {0, 1, 2, 3, 1000}) {
    std::vector<double> filled(11);
    rng.FillNormal(7, first, absl::MakeSpan(filled));
    for (size_t i = 0; i < filled.size(); ++i) EXPECT_EQ(filled[i], rng.Normal(7, first + i)) << i;
  }
}

}  // namespace
}  // namespace muster
