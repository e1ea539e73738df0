#include "launcher/bench/scaling.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::launcher {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Two ranks that do a step a second, the second of them half a second later.
std::vector<RankAt> TwoRanksAt(double at) {
  const auto step = static_cast<int64_t>(at);
  const auto later = static_cast<int64_t>(at - 0.5);
  return {{.step = step, .waited_seconds = at / 4, .cpus = 1},
          {.step = later, .waited_seconds = at / 2, .cpus = 0.5}};
}

TEST(ScalingMeter, MeasuresBetweenChangesOfTheSlowestRanksStep) {
  ScalingMeter meter;
  for (double at = 0.5; at < 3.4; at += 0.25) meter.Look(at, TwoRanksAt(at));
  EXPECT_EQ(meter.measured(), 0) << "two whole steps are for warming up";
  EXPECT_FALSE(meter.Row().has_value());
  for (double at = 3.5; at < 9.4; at += 0.25) meter.Look(at, TwoRanksAt(at));
  EXPECT_DOUBLE_EQ(meter.measured(), 5);
  EXPECT_DOUBLE_EQ(meter.changed_at(), 8.5);
  const ScalingRow row = *meter.Row();
  EXPECT_EQ(row.ranks, 2);
  EXPECT_DOUBLE_EQ(row.steps_per_second, 1);
  EXPECT_DOUBLE_EQ(row.waiting, 0.375);
  EXPECT_DOUBLE_EQ(row.cpus, 0.75);
}

TEST(ScalingMeter, KnowsNoWaitingOfAProgramThatTellsNone) {
  ScalingMeter meter;
  for (int step = 0; step < 9; ++step) meter.Look(step, {{.step = step}});
  EXPECT_EQ(meter.Row()->waiting, -1);
  EXPECT_EQ(meter.Row()->cpus, -1);
}

TEST(ScalingMeter, HasNoStepsBeforeAllRanksTellThem) {
  ScalingMeter meter;
  meter.Look(1, {{.step = 3}, {.step = -1}});
  EXPECT_FALSE(meter.has_steps());
  meter.Look(2, {{.step = 3}, {.step = 0}});
  EXPECT_TRUE(meter.has_steps());
}

const std::vector<ScalingRow> kRows = {
    {.ranks = 1, .steps_per_second = 10, .waiting = 0, .cpus = 1},
    {.ranks = 4, .steps_per_second = 8, .waiting = 0.15, .cpus = 0.85}};

TEST(ScalingText, SaysWhereTheRestWent) {
  const std::string text = ScalingText(kRows, {.cpus = 8});
  EXPECT_THAT(text, HasSubstr("     1          10       100 %       0 %           1.00\n"));
  EXPECT_THAT(text, HasSubstr("     4           8        80 %      15 %           0.85\n"));
  EXPECT_THAT(text, HasSubstr("At 4 ranks 20 % is lost: 15 % to waiting for other ranks, 5 % to "
                              "slower work of each rank.\n"));
}

TEST(ScalingText, ExpectsMoreStepsWhereTheRanksShareTheBatch) {
  EXPECT_DOUBLE_EQ(EfficiencyOf(kRows[1], kRows[0], true), 0.2);
  EXPECT_DOUBLE_EQ(EfficiencyOf(kRows[1], kRows[0], false), 0.8);
}

TEST(ScalingText, SaysThatRanksTakeTurnsOnlyWhereTheyComputeOnCpus) {
  EXPECT_THAT(ScalingText(kRows, {.cpus = 2}), HasSubstr("4 ranks take turns on 2 CPUs"));
  EXPECT_THAT(ScalingText(kRows, {.cpus = 2, .on_gpus = true}), Not(HasSubstr("take turns")));
}

TEST(ScalingText, SaysWhatIsNotKnown) {
  const std::vector<ScalingRow> rows = {{.ranks = 1, .steps_per_second = 10},
                                        {.ranks = 2, .steps_per_second = 5},
                                        {.ranks = 4, .steps_per_second = 10}};
  EXPECT_THAT(ScalingText(rows, {.cpus = 8}),
              AllOf(HasSubstr("At 2 ranks 50 % is lost; what to is not known"),
                    HasSubstr("At 4 ranks nothing is lost.")));
}

}  // namespace
}  // namespace muster::launcher
