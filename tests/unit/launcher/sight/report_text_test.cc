#include "launcher/sight/report_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"
#include "tests/unit/launcher/sight/job_diaries.h"

namespace muster::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

TEST(ReportText, SaysWhatHappenedOnOnePage) {
  const std::string text = ReportText(TwoNodes());
  for (const char* part :
       {"job train ended well after 42s", "2 nodes, 4 ranks", "2023-11-14 22:13:20 UTC",
        "goodput 73.2 %", "lost, of each node: forming 6.0s, hung 4.0s",
        "+4s  round 0: 2 nodes, 4 ranks, ran for 10s, to step 50",
        "(2 kept, 1 forked, 1 fresh because the warm process is not", "back after 5.5s), ran for",
        "+15s  round 0, rank 3 on node2: exit code 7: ValueError: bad <batch>",
        "hang in round 1: rank 1 hangs; cause: it waits for its data; reported only",
        "+28s  rank 1 has not called all_reduce", "+32s  it goes on after all"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  for (const absl::string_view line : absl::StrSplit(text, '\n')) EXPECT_LE(line.size(), 100u);
  EXPECT_THAT(text, Not(HasSubstr("nodes without an end")));
}

TEST(ReportText, SaysWhatTheServerSaidOnce) {
  EXPECT_THAT(EventsOf(TwoNodes(), {status::kNotice}), SizeIs(1));
  EXPECT_THAT(EventsOf(TwoNodes(), {status::kFailure}), SizeIs(1));
}

TEST(ReportText, NamesALongListsRest) {
  JobHistory job = TwoNodes();
  for (int i = 0; i < 100; ++i) {
    job.rounds.push_back({.round = i + 2, .shape = {.num_nodes = 1, .world_size = 1}});
  }
  EXPECT_THAT(ReportText(job), HasSubstr("  and 90 more\n"));
}

TEST(ReportText, SaysHowAJobFailedAndThatOneHasNoEnd) {
  JobHistory job = TwoNodes();
  job.end->entry.exit_code = 7;
  job.end->entry.text = "rank 3 failed";
  EXPECT_EQ(OutcomeInWords(job), "ended with exit code 7 after 42s: rank 3 failed");
  job.end.reset();
  job.nodes[1].has_end = false;
  EXPECT_THAT(OutcomeInWords(job), HasSubstr("has no end after 42s"));
  EXPECT_THAT(ReportText(job), HasSubstr("node2: its diary breaks off at +42s"));
}

TEST(ReportText, LeavesNoControlCharactersToATerminal) {
  JobHistory job = TwoNodes();
  job.events.push_back({.at = 1, .entry = {.what = status::kSlow, .text = "\x1b[2J"}});
  EXPECT_THAT(ReportText(job), Not(HasSubstr("\x1b")));
}

TEST(LostInWords, NamesTheMostFirst) {
  EXPECT_THAT(LostInWords(TwoNodes()), ElementsAre("forming 6.0s", "hung 4.0s", "stopping 1.0s"));
}

}  // namespace
}  // namespace muster::launcher
