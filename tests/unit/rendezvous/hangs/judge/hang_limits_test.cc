#include "rendezvous/hangs/judge/hang_limits.h"

#include <gtest/gtest.h>

namespace muster::hangs {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(10);

TEST(HangLimits, AreTheDefaultsBeforeAnythingWasLearned) {
  const HangLimits limits(kTimeout);
  EXPECT_EQ(limits.Soft(WatchPhase::kStep), HangLimits::kSoftMin);
  EXPECT_EQ(limits.Hard(WatchPhase::kStep), kTimeout);
  EXPECT_EQ(limits.Soft(WatchPhase::kCheckpoint), absl::Minutes(1));
  EXPECT_EQ(limits.Hard(WatchPhase::kCheckpoint), 3 * kTimeout);
  EXPECT_EQ(limits.Soft(WatchPhase::kEnd), absl::Minutes(1));
  EXPECT_EQ(limits.Hard(WatchPhase::kEnd), 3 * kTimeout);
  EXPECT_EQ(limits.Hard(WatchPhase::kFirstStep), 3 * kTimeout);
}

TEST(HangLimits, GrowWithWhatIsUsual) {
  HangLimits limits(kTimeout);
  for (int i = 0; i < 100; ++i) limits.history().Learn(WatchPhase::kStep, absl::Seconds(20));
  EXPECT_GE(limits.Soft(WatchPhase::kStep), absl::Seconds(60));
  EXPECT_LE(limits.Soft(WatchPhase::kStep), absl::Seconds(60 * 1.25));
  EXPECT_EQ(limits.Soft(WatchPhase::kFirstStep), HangLimits::kSoftMin) << "each phase for itself";
}

TEST(HangLimits, AreNotMovedByAFewSamplesOrByOneInThousands) {
  HangLimits limits(kTimeout);
  for (int i = 0; i < 29; ++i) limits.history().Learn(WatchPhase::kStep, absl::Seconds(100));
  EXPECT_EQ(limits.Soft(WatchPhase::kStep), HangLimits::kSoftMin);
  HangLimits many(kTimeout);
  for (int i = 0; i < 2000; ++i) many.history().Learn(WatchPhase::kStep, absl::Milliseconds(200));
  many.history().Learn(WatchPhase::kStep, absl::Seconds(100));
  EXPECT_EQ(many.Soft(WatchPhase::kStep), HangLimits::kSoftMin);
}

TEST(HangLimits, QuickStepsDoNotShortenTheHardOne) {
  HangLimits limits(kTimeout);
  for (int i = 0; i < 10000; ++i) limits.history().Learn(WatchPhase::kStep, absl::Milliseconds(1));
  EXPECT_EQ(limits.Hard(WatchPhase::kStep), kTimeout);
}

TEST(HangLimits, TheLongestSilenceThatEndedWellLengthensTheHardOne) {
  HangLimits limits(absl::Seconds(30));
  limits.history().Learn(WatchPhase::kStep, absl::Seconds(25));
  EXPECT_EQ(limits.Hard(WatchPhase::kStep), absl::Seconds(125));
}

}  // namespace
}  // namespace muster::hangs
