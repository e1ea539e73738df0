#include "worker_runtime/train/figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::train {
namespace {

TEST(ShortCount, KeepsThreeDigitsAndNamesThousands) {
  EXPECT_EQ(ShortCount(0), "0");
  EXPECT_EQ(ShortCount(812), "812");
  EXPECT_EQ(ShortCount(1210), "1.21k");
  EXPECT_EQ(ShortCount(38'160), "38.2k");
  EXPECT_EQ(ShortCount(3'199'000), "3.20M");
  EXPECT_EQ(ShortCount(1.558e9), "1.56G");
}

TEST(ShortCount, GoesOnToTheNextUnitWhereRoundingWouldGiveAThousand) {
  EXPECT_EQ(ShortCount(999), "999");
  EXPECT_EQ(ShortCount(999'499), "999k");
  EXPECT_EQ(ShortCount(999'500), "1.00M");
  EXPECT_EQ(ShortCount(9'999), "10.0k");
}

TEST(ShortBytes, AreInUnitsOfAThousand) {
  EXPECT_EQ(ShortBytes(812), "812 B");
  EXPECT_EQ(ShortBytes(237'310), "237 kB");
  EXPECT_EQ(ShortBytes(4'520'000), "4.52 MB");
}

TEST(ShortDuration, ChoosesTheUnitThatFits) {
  EXPECT_EQ(ShortDuration(absl::Microseconds(7.3)), "7.30 us");
  EXPECT_EQ(ShortDuration(absl::Milliseconds(12.1)), "12.1 ms");
  EXPECT_EQ(ShortDuration(absl::Seconds(0.25)), "250 ms");
  EXPECT_EQ(ShortDuration(absl::Seconds(125)), "125 s");
}

TEST(ClockTime, ShowsMinutesAndSecondsAndHoursAndDaysWhereThereAreAny) {
  EXPECT_EQ(ClockTime(absl::Seconds(7)), "0:07");
  EXPECT_EQ(ClockTime(absl::Seconds(758)), "12:38");
  EXPECT_EQ(ClockTime(absl::Seconds(3 * 3600 + 130)), "3:02:10");
  EXPECT_EQ(ClockTime(absl::Hours(51) + absl::Seconds(130)), "2d 3:02:10");
}

TEST(ClockTime, RoundsToWholeSeconds) {
  EXPECT_EQ(ClockTime(absl::Seconds(59.6)), "1:00");
  EXPECT_EQ(ClockTime(absl::Seconds(0.4)), "0:00");
}

TEST(Percent, HasOneDigitBehindThePointBelowTen) {
  EXPECT_EQ(Percent(73, 1000), "7.3%");
  EXPECT_EQ(Percent(98, 100), "98%");
}

TEST(Percent, OfNothingIsNotShown) { EXPECT_EQ(Percent(0, 0), "-"); }

TEST(Counted, HasAPluralBeyondOne) {
  EXPECT_EQ(Counted(1, "rank"), "1 rank");
  EXPECT_EQ(Counted(2, "rank"), "2 ranks");
}

}  // namespace
}  // namespace muster::train
