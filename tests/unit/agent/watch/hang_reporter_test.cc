#include "agent/watch/hang_reporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/support/files.h"
#include "tests/support/subprocess.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

class HangReporterTest : public ::testing::Test {
 protected:
  HangReporterTest() { StartRound(3); }
  void StartRound(int round) {
    reporter_.StartRound({.round = Round(round), .restart_count = round - 3});
  }
  static hangs::SayVerdict Verdict(std::vector<int> to_end) {
    hangs::SayVerdict say{
        .question = 9, .reason = "nothing has moved", .to_end = std::move(to_end)};
    say.diagnosis = {.finding = hangs::Finding::kSilent, .culprits = {0, 1}};
    say.since_detected = absl::Seconds(20);
    say.since_decided = absl::Seconds(5);
    return say;
  }
  // Once it has `milestone`, or any.
  nlohmann::json Report(const std::string& milestone = "detected") const {
    nlohmann::json report;
    testing::WaitUntil([&] {
      report = nlohmann::json::parse(testing::ReadFile(directory_.File("hang_0_1.json")), nullptr,
                                     /*allow_exceptions=*/false);
      return report.is_object() && report["timeline_ms"].contains(milestone);
    });
    return report;
  }

  testing::TemporaryDirectory directory_;
  std::vector<std::pair<WatchEvent, std::string>> said_;
  HangReporter reporter_{
      "job", "node1", directory_.path(),
      [this](WatchEvent event, const std::string& text) { said_.emplace_back(event, text); }};
};

TEST_F(HangReporterTest, StandsByANoticeUntilItGoesOn) {
  EXPECT_EQ(reporter_.standing().kind, hangs::StandingKind::kNone);
  reporter_.SayNotice("rank 1 is late", hangs::Finding::kNotCalled);
  EXPECT_EQ(reporter_.standing().kind, hangs::StandingKind::kNotice);
  EXPECT_EQ(reporter_.standing().text, "rank 1 is late");
  reporter_.SayRecovery("it goes on");
  EXPECT_EQ(reporter_.standing().kind, hangs::StandingKind::kNone);
  reporter_.SayRecovery("it goes on");
  EXPECT_THAT(said_, ElementsAre(Pair(WatchEvent::kNotice, "rank 1 is late"),
                                 Pair(WatchEvent::kGoesOn, "it goes on")))
      << "once";
  EXPECT_FALSE(reporter_.HasWritten());
}

TEST_F(HangReporterTest, WritesOfAVerdictWhatFollowsUntilRanksStepAgain) {
  const std::string why = reporter_.SayVerdict(Verdict(/*to_end=*/{1}));
  EXPECT_EQ(why,
            "hang: " + reporter_.standing().text + "; see " + directory_.File("hang_0_1.json"));
  EXPECT_EQ(reporter_.standing().kind, hangs::StandingKind::kVerdict);
  nlohmann::json report = Report();
  EXPECT_EQ(report["timeline_ms"]["decided"], 15000);
  EXPECT_EQ(report["timeline_ms"]["reported"], 20000);
  reporter_.OnStep();
  reporter_.AddMilestone(kStopped);
  StartRound(4);
  reporter_.OnStep();
  report = Report("first_step");
  EXPECT_TRUE(report["timeline_ms"].contains("stopped"));
  EXPECT_GE(report["timeline_ms"]["first_step"], report["timeline_ms"]["stopped"]);
}

TEST_F(HangReporterTest, WritesNothingOfWhatComesAfterAVerdictThatIsOnlySaid) {
  reporter_.SayVerdict(Verdict(/*to_end=*/{}));
  reporter_.AddMilestone(kStopped);
  EXPECT_FALSE(Report()["timeline_ms"].contains("stopped"));
  EXPECT_TRUE(reporter_.HasWritten());
}

TEST_F(HangReporterTest, WritesWhatRanksCalledLast) {
  hangs::AbortReport report;
  report.aborted = {1};
  report.last = {{.label = "world", .operation = {}, .ranks = {0}, .age = {}}};
  reporter_.SayAborts(report);
  ASSERT_THAT(said_, ElementsAre(Pair(WatchEvent::kAbort, hangs::InWords(report))));
  EXPECT_TRUE(
      testing::WaitUntil([&] { return testing::FileExists(directory_.File("abort_0_1.json")); }));
}

TEST_F(HangReporterTest, SaysNothingOfQuietRanksInTheDiary) {
  reporter_.SayQuiet(/*is_over=*/false, "rank 1 is quiet");
  EXPECT_THAT(said_, IsEmpty());
}

}  // namespace
}  // namespace muster::agent
