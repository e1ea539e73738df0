#include "agent/sight/job_diary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_join.h"

namespace muster::agent {
namespace {

using status::DiaryEntry;
using status::Spent;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class JobDiaryTest : public ::testing::Test {
 protected:
  Instant At(double seconds) const {
    return {start_ + absl::Seconds(seconds), static_cast<int64_t>(1000000 + seconds * 1000)};
  }
  std::vector<DiaryEntry> Entries() const {
    return status::ParseDiary(absl::StrJoin(lines_, "")).value();
  }
  double SpentOn(Spent spent, double now) const {
    return absl::ToDoubleSeconds(diary_.SpentOn(spent, At(now).mono));
  }

  const MonoTime start_ = MonoNow();
  std::vector<std::string> lines_;
  JobDiary diary_{[this](std::string line) { lines_.push_back(std::move(line)); }};
};

TEST_F(JobDiaryTest, CountsAllTimeAsSpentOnOneThing) {
  diary_.Begin({.run_id = "job"}, At(0));
  EXPECT_TRUE(diary_.TurnTo(Spent::kRunning, At(2)));
  EXPECT_FALSE(diary_.TurnTo(Spent::kRunning, At(3)));
  EXPECT_TRUE(diary_.TurnTo(Spent::kHung, At(12)));
  EXPECT_TRUE(diary_.TurnTo(Spent::kRunning, At(13)));
  EXPECT_DOUBLE_EQ(SpentOn(Spent::kForming, 20), 2);
  EXPECT_DOUBLE_EQ(SpentOn(Spent::kRunning, 20), 17);
  EXPECT_DOUBLE_EQ(SpentOn(Spent::kHung, 20), 1);
  diary_.End({.exit_code = 0}, At(20));
  EXPECT_DOUBLE_EQ(SpentOn(Spent::kRunning, 100), 17) << "no time is spent after the end";
}

TEST_F(JobDiaryTest, BeginsWithWhoseItIsAndEndsWithTheEnd) {
  diary_.Begin({.run_id = "job", .node = "node1"}, At(0));
  diary_.Note({.what = status::kFailure, .rank = 1}, At(3));
  diary_.End({.exit_code = 7, .text = "rank 1 failed"}, At(4));
  diary_.Note({.what = status::kFailure, .rank = 2}, At(5));
  const std::vector<DiaryEntry> entries = Entries();
  ASSERT_THAT(entries, SizeIs(4));
  EXPECT_EQ(entries[0].what, status::kBegan);
  EXPECT_EQ(entries[0].run_id, "job");
  EXPECT_EQ(entries[1].spent, "forming");
  EXPECT_EQ(entries[2].after_seconds, 3);
  EXPECT_EQ(entries[2].unix_millis, 1003000);
  EXPECT_EQ(entries[3].what, status::kEnd);
  EXPECT_EQ(entries[3].exit_code, 7);
}

TEST_F(JobDiaryTest, HasABoundAndSaysWhatItLeftOut) {
  diary_.Begin({.run_id = "job"}, At(0));
  for (size_t i = 0; i < status::kDiaryLinesMax + 100; ++i) {
    diary_.Note({.what = status::kSaid, .text = std::string(5000, 'x')}, At(1));
  }
  diary_.End({.exit_code = 1, .text = "over"}, At(2));
  EXPECT_THAT(lines_, SizeIs(status::kDiaryLinesMax + 1));
  EXPECT_LT(lines_[10].size(), 1200u);
  EXPECT_THAT(lines_.back(), HasSubstr("over; 102 entries before this one were left out"));
}

TEST_F(JobDiaryTest, CountsWhatMetricsTell) {
  diary_.Begin({}, At(0));
  diary_.Note({.what = status::kRound}, At(1));
  diary_.Note({.what = status::kRound}, At(2));
  diary_.Note({.what = status::kFailure}, At(2));
  diary_.Note({.what = status::kNotice}, At(2));
  diary_.Note({.what = status::kVerdict}, At(2));
  EXPECT_EQ(diary_.counts().rounds, 2);
  EXPECT_EQ(diary_.counts().failures, 1);
  EXPECT_EQ(diary_.counts().notices, 1);
  EXPECT_EQ(diary_.counts().verdicts, 1);
}

TEST_F(JobDiaryTest, TellsStepsOftenAtFirstAndByTheShareOfItsTimeLater) {
  diary_.Begin({}, At(0));
  EXPECT_EQ(diary_.PauseBetweenSteps(At(5).mono), absl::Seconds(10));
  EXPECT_EQ(diary_.PauseBetweenSteps(At(6000).mono), absl::Seconds(100));
}

TEST_F(JobDiaryTest, SaysNothingBeforeItBegins) {
  EXPECT_FALSE(diary_.TurnTo(Spent::kRunning, At(0)));
  diary_.Note({.what = status::kSaid}, At(0));
  diary_.End({}, At(1));
  EXPECT_TRUE(lines_.empty());
}

}  // namespace
}  // namespace muster::agent
