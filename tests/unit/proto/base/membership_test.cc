#include "proto/base/membership.h"

#include <csignal>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

TEST(ExitCodeOf, IsTheWorkersOwnCode) { EXPECT_EQ(ExitCodeOf({.exit_code = 85}), 85); }

TEST(ExitCodeOf, IsWhatAShellShowsForASignal) {
  EXPECT_EQ(ExitCodeOf({.exit_code = 3, .signal = SIGKILL}), 137);
}

TEST(ExitCodeOf, IsNeverSuccess) { EXPECT_EQ(ExitCodeOf({.exit_code = 0}), 1); }

TEST(AgentPhaseToString, NamesEachPhaseDifferently) {
  std::vector<absl::string_view> names;
  for (int i = 0; i <= static_cast<int>(AgentPhase::kLeaving); ++i) {
    names.push_back(ToString(static_cast<AgentPhase>(i)));
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

TEST(AgentReportToString, NamesFailuresAndDeparture) {
  AgentReport report;
  report.sequence = 4;
  report.phase = AgentPhase::kFailed;
  report.node.name = "node2";
  report.failures = {{.rank = Rank(5), .node_name = "node2", .exit_code = 7}};
  report.departure = Departure{.reason = "SIGTERM"};
  const std::string text = ToString(report);
  EXPECT_THAT(text, HasSubstr("seq=4 phase=failed"));
  EXPECT_THAT(text, HasSubstr("failure{rank=5 node=node2 exit_code=7}"));
  EXPECT_THAT(text, HasSubstr("departure=\"SIGTERM\""));
}

TEST(DirectiveToString, SaysWhichRanksARoundGives) {
  Assignment assignment;
  assignment.round = Round(3);
  assignment.first_rank = Rank(4);
  assignment.local_world_size = 2;
  assignment.world_size = 8;
  EXPECT_THAT(ToString(DirectiveBody(RunRound{assignment})),
              HasSubstr("round=3 node_rank=0 ranks=4-5 world_size=8"));
}

TEST(DirectiveToString, SaysWhyARoundStops) {
  EXPECT_EQ(ToString(DirectiveBody(StopRound{Round(1), StopCause::kJobFailed, "rank 5 failed"})),
            "stop round=1 cause=job_failed reason=\"rank 5 failed\"");
}

}  // namespace
}  // namespace muster
