#include "worker_runtime/train/progress_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace muster::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Optional;

MonoTime At(double seconds) { return MonoTime::At(absl::Seconds(seconds)); }

StepResult Result(int64_t step, double loss, int64_t num_tokens = 1000) {
  return {.step = step,
          .loss = loss,
          .num_tokens = num_tokens,
          .gradient_norm = 0.714,
          .learning_rate = 3e-4};
}

// The steps that get a line in a run with one step per `seconds`.
std::vector<int64_t> StepsWithLine(const ProgressOptions& options, double seconds) {
  ProgressLine progress(options, At(0));
  std::vector<int64_t> steps;
  for (int64_t step = options.first_step + 1; step <= options.total_steps; ++step) {
    const double now = seconds * static_cast<double>(step - options.first_step);
    if (progress.Add(Result(step, 1), At(now)).has_value()) steps.push_back(step);
  }
  return steps;
}

TEST(StepsPerLine, IsARoundNumberThatGivesTwentyToFortyLines) {
  EXPECT_EQ(StepsPerLine(10), 1);
  EXPECT_EQ(StepsPerLine(40), 1);
  EXPECT_EQ(StepsPerLine(60), 2);
  EXPECT_EQ(StepsPerLine(200), 5);
  EXPECT_EQ(StepsPerLine(300), 10);
  EXPECT_EQ(StepsPerLine(1'000'000), 50'000);
}

TEST(ProgressLine, SaysTheLossScaleAndCountsSkippedStepsWithoutTheirLoss) {
  ProgressLine progress({.total_steps = 200, .log_every = 3}, At(0));
  StepResult skipped = Result(2, std::numeric_limits<double>::quiet_NaN());
  skipped.skipped = true;
  StepResult scaled = Result(3, 1.5);
  scaled.loss_scale = 32768;
  progress.Add(Result(1, 9), At(1));
  progress.Add(skipped, At(2));
  EXPECT_THAT(progress.Add(scaled, At(3)),
              Optional(AllOf(HasSubstr("loss 1.5000"), HasSubstr("  scale 32768  skipped 1"))));
}

TEST(ProgressLine, SaysSkippedInsteadOfANormThatIsNoNumber) {
  ProgressLine progress({.total_steps = 200, .log_every = 1}, At(0));
  StepResult skipped = Result(1, 2);
  skipped.skipped = true;
  skipped.gradient_norm = -std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(progress.Add(skipped, At(1)), Optional(HasSubstr("loss 2.0000  norm skipped  lr")));
}

TEST(ProgressLine, SaysLossNormRateSpeedAndTimeLeft) {
  ProgressLine progress({.total_steps = 200, .log_every = 40}, At(0));
  progress.Add(Result(1, 5), At(1));
  std::optional<std::string> line;
  for (int step = 2; step <= 40; ++step)
    line = progress.Add(Result(step, 2.43126), At(step * 0.25));
  // 39 steps of 1000 tokens in 9 seconds; 160 steps are left.
  EXPECT_THAT(line, Optional(std::string("step  40/200  loss 2.4313  norm  0.71  lr 3.0e-04  "
                                         "4.33k tok/s   231 ms/step  left 0:37")));
}

TEST(ProgressLine, SaysTheShareOfWhatTheDevicesCouldDoWhereThatIsKnown) {
  ProgressLine progress({.total_steps = 200, .log_every = 1, .tokens_peak = 4000}, At(0));
  EXPECT_THAT(progress.Add(Result(1, 5), At(1)), Optional(HasSubstr("  MFU 25.0%")));
}

TEST(ProgressLine, ShowsTheMeanLossSinceTheLineBeforeWeighedByTokens) {
  ProgressLine progress({.total_steps = 10, .log_every = 2}, At(0));
  EXPECT_THAT(progress.Add(Result(1, 9), At(1)), Optional(HasSubstr("loss 9.0000")));
  EXPECT_THAT(progress.Add(Result(2, 4), At(2)), Optional(HasSubstr("loss 4.0000")));
  progress.Add(Result(3, 4, 100), At(3));
  EXPECT_THAT(progress.Add(Result(4, 2, 300), At(4)), Optional(HasSubstr("loss 2.5000")));
}

TEST(ProgressLine, ComesAfterTheFirstAndTheLastStepAndAtMultiples) {
  EXPECT_THAT(StepsWithLine({.total_steps = 11, .log_every = 4}, 0.1), ElementsAre(1, 4, 8, 11));
}

TEST(ProgressLine, CountsTheStepsOfTheJobThatIsResumed) {
  EXPECT_THAT(StepsWithLine({.first_step = 5, .total_steps = 11, .log_every = 4}, 0.1),
              ElementsAre(6, 8, 11));
}

TEST(ProgressLine, ComesEarlierWhereStepsTakeLong) {
  EXPECT_THAT(
      StepsWithLine({.total_steps = 8, .log_every = 100, .longest_silence = absl::Seconds(10)}, 5),
      ElementsAre(1, 3, 5, 7, 8));
}

TEST(ProgressLine, HasNoTimeLeftAfterTheLastStep) {
  ProgressLine progress({.total_steps = 1}, At(0));
  EXPECT_THAT(progress.Add(Result(1, 5), At(0.5)),
              Optional(AllOf(HasSubstr("step 1/1"), HasSubstr("left 0:00"))));
}

TEST(ProgressLine, SurvivesAClockThatDoesNotAdvance) {
  ProgressLine progress({.total_steps = 1}, At(3));
  EXPECT_THAT(progress.Add(Result(1, 5), At(3)), Optional(HasSubstr(" 0 tok/s")));
}

}  // namespace
}  // namespace muster::train
