#include "worker_runtime/train/loss_curve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "absl/strings/str_split.h"

namespace muster::train {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr LossCurveOptions kAscii = {.columns = 20, .rows = 5, .unicode = false};

std::vector<LossPoint> StraightLine(int64_t first, int64_t last, double from, double to) {
  std::vector<LossPoint> points;
  for (int64_t step = first; step <= last; ++step) {
    const double place = static_cast<double>(step - first) / static_cast<double>(last - first);
    points.push_back({step, from + place * (to - from)});
  }
  return points;
}

std::vector<std::string> Lines(const std::string& text) {
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

TEST(DrawLossCurve, DrawsAFallingLineFromTheTopLeftToTheBottomRight) {
  EXPECT_EQ(DrawLossCurve(StraightLine(0, 100, 5, 1), kAscii),
            "      |***\n"
            "  4.0 |   *****\n"
            "      |        ****\n"
            "  2.0 |            *****\n"
            "      |                 ***\n"
            "      ++------------------+\n"
            "       0                  100  step\n");
}

TEST(DrawLossCurve, IsBrailleWhereTheTerminalCanShowIt) {
  const std::string drawing = DrawLossCurve(StraightLine(1, 100, 5, 1), {.columns = 20, .rows = 5});
  EXPECT_THAT(drawing, HasSubstr("\u2809"));
  EXPECT_THAT(drawing, HasSubstr("┤"));
}

TEST(DrawLossCurve, HasNothingBeyondAsciiWhereItIsAskedFor) {
  for (const char c : DrawLossCurve(StraightLine(1, 100, 5, 1), kAscii)) EXPECT_GT(c, 0);
}

TEST(DrawLossCurve, KeepsToItsSizeHoweverManyPointsThereAre) {
  const std::vector<std::string> lines =
      Lines(DrawLossCurve(StraightLine(1, 5000, 11, 0.5), kAscii));
  EXPECT_THAT(lines, SizeIs(kAscii.rows + 2));
  for (const std::string& line : lines) EXPECT_LE(line.size(), 40u);
}

TEST(DrawLossCurve, ConnectsPointsThatAreFarApart) {
  const std::vector<LossPoint> points = {{1, 4}, {100, 2}};
  const std::vector<std::string> lines = Lines(DrawLossCurve(points, kAscii));
  size_t stars = 0;
  for (const std::string& line : lines) stars += std::count(line.begin(), line.end(), '*');
  EXPECT_GE(stars, 20u);
}

TEST(DrawLossCurve, PutsAConstantLossIntoTheMiddle) {
  const std::vector<LossPoint> points = {{1, 2}, {2, 2}, {3, 2}};
  EXPECT_THAT(Lines(DrawLossCurve(points, kAscii))[2], StartsWith("  2.0 |****"));
}

TEST(DrawLossCurve, IsEmptyWithoutTwoPoints) {
  EXPECT_THAT(DrawLossCurve({}, kAscii), IsEmpty());
  EXPECT_THAT(DrawLossCurve({{1, 2.0}}, kAscii), IsEmpty());
}

TEST(DrawLossCurve, LeavesOutWhatIsNotFinite) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(DrawLossCurve({{1, 2.0}, {2, nan}}, kAscii), IsEmpty());
  EXPECT_THAT(DrawLossCurve({{1, 2.0}, {2, nan}, {3, 1.0}}, kAscii), Not(HasSubstr("nan")));
}

TEST(DrawLossCurve, LabelsTinyDifferencesWithEnoughDigits) {
  EXPECT_THAT(DrawLossCurve(StraightLine(1, 50, 2.004, 2.001), kAscii), HasSubstr("2.002 |"));
}

TEST(LossHistory, KeepsAShortRunPointByPoint) {
  LossHistory history;
  history.Add(7, 3.0);
  history.Add(8, 2.0);
  ASSERT_THAT(history.points(), SizeIs(2));
  EXPECT_EQ(history.points()[0].step, 7);
  EXPECT_EQ(history.points()[1].loss, 2.0);
}

TEST(LossHistory, MergesALongRunIntoMeansThatStillCoverIt) {
  LossHistory history;
  constexpr int64_t kSteps = 1'000'003;
  for (int64_t step = 1; step <= kSteps; ++step) history.Add(step, static_cast<double>(step));
  const std::vector<LossPoint> points = history.points();
  EXPECT_THAT(points.size(), Le(4096u));
  EXPECT_GE(points.size(), 2048u);
  EXPECT_EQ(points.back().step, kSteps);
  for (const LossPoint& point : points) {
    EXPECT_LE(point.loss, static_cast<double>(point.step));
    EXPECT_GE(point.loss, static_cast<double>(point.step) - 512);
  }
}

std::vector<int64_t> StepsOf(const LossHistory& history) {
  std::vector<int64_t> steps;
  for (const LossPoint& point : history.points()) steps.push_back(point.step);
  return steps;
}

TEST(LossHistory, ForgetsStepsThatAreMadeAgain) {
  LossHistory history;
  for (int64_t step = 1; step <= 7; ++step) history.Add(step, 2);
  history.ForgetAfter(7);
  EXPECT_THAT(StepsOf(history), ElementsAre(1, 2, 3, 4, 5, 6, 7));
  history.ForgetAfter(4);
  history.Add(5, 1);
  EXPECT_THAT(StepsOf(history), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(history.points().back().loss, 1);
}

TEST(LossHistory, StaysInTheOrderOfStepsWhereWhatItForgetsWasMerged) {
  LossHistory history;
  for (int64_t step = 1; step <= 10'001; ++step) history.Add(step, 2);
  history.ForgetAfter(9'998);
  for (int64_t step = 9'999; step <= 10'050; ++step) history.Add(step, 1);
  const std::vector<int64_t> steps = StepsOf(history);
  for (size_t i = 1; i < steps.size(); ++i) EXPECT_LT(steps[i - 1], steps[i]);
  EXPECT_EQ(steps.back(), 10'050);
}

}  // namespace
}  // namespace muster::train
