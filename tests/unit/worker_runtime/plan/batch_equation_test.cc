#include "worker_runtime/plan/batch_equation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace muster::plan {
namespace {

using ::muster::testing::IsOkAndHolds;
using ::muster::testing::StatusIs;
using ::testing::HasSubstr;

TEST(SolveBatch, FillsInWhatIsNotSaid) {
  EXPECT_THAT(SolveBatch({.train = 64}, 4), IsOkAndHolds(BatchSizes{64, 16, 1}));
  EXPECT_THAT(SolveBatch({.train = 64, .micro = 2}, 4), IsOkAndHolds(BatchSizes{64, 2, 8}));
  EXPECT_THAT(SolveBatch({.train = 64, .accumulation = 4}, 4), IsOkAndHolds(BatchSizes{64, 4, 4}));
  EXPECT_THAT(SolveBatch({64, 4, 4}, 4), IsOkAndHolds(BatchSizes{64, 4, 4}));
}

TEST(SolveBatch, PrintsTheEquationThatDoesNotHoldWithTheNearestThatDo) {
  EXPECT_THAT(SolveBatch({64, 4, 4}, 2),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("64 is not 4 x 4 x 2; the nearest that fit: a train_batch_size of "
                                 "32, or 4 ranks that work on different sequences, or an "
                                 "accumulation of 8, or a micro-batch of 8")));
  EXPECT_THAT(SolveBatch({.train = 64, .accumulation = 4}, 3),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("a train_batch_size of 60 or 72, or 2 or 4 ranks")));
  EXPECT_THAT(SolveBatch({.train = 2}, 4),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a train_batch_size of 4")));
}

// Every solution is one, and a refusal's nearest sizes are solutions.
TEST(SolveBatch, SolvesExactlyWhatCanBeSolved) {
  for (int64_t train = 1; train <= 48; ++train) {
    for (int64_t replicas = 1; replicas <= 6; ++replicas) {
      for (int64_t micro = 0; micro <= 4; ++micro) {
        for (int64_t accumulation = 0; accumulation <= 4; ++accumulation) {
          const auto solved = SolveBatch({train, micro, accumulation}, replicas);
          const int64_t known = std::max<int64_t>(micro, 1) * std::max<int64_t>(accumulation, 1);
          const bool is_fixed = micro != 0 && accumulation != 0;
          const bool can = is_fixed ? train == known * replicas : train % (known * replicas) == 0;
          ASSERT_EQ(solved.ok(), can) << train << " " << micro << " " << accumulation;
          if (!can) continue;
          EXPECT_EQ(solved->train, solved->micro * solved->accumulation * replicas);
          EXPECT_TRUE(micro == 0 || solved->micro == micro);
          EXPECT_TRUE(accumulation == 0 || solved->accumulation == accumulation);
        }
      }
    }
  }
}

}  // namespace
}  // namespace muster::plan
