// The screen of `muster status`, and its exit code.
#include "launcher/sight/status_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/base/exit_codes.h"

namespace muster::launcher {
namespace {

using status::StatusPage;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

StatusPage Running() {
  return {.job = "j7",
          .told_by = "the rendezvous",
          .health = {.state = status::kHealthy, .for_seconds = 250},
          .round = {.round = 2,
                    .phase = "running",
                    .num_nodes = 2,
                    .world_size = 16,
                    .for_seconds = 250},
          .nodes = {.min = 2, .max = 4, .running = 2, .joined = 1},
          .restarts = {.used = 1, .max = 3},
          .progress = {.step = 120,
                       .steps_per_second = 3.25,
                       .slowest_rank = 5,
                       .slowest_node = "node1",
                       .lag_steps = 3},
          .members = {{.name = "node1",
                       .node_rank = 0,
                       .first_rank = 0,
                       .num_ranks = 8,
                       .state = "running",
                       .lease_seconds = 5,
                       .step = 117},
                      {.name = "node2",
                       .node_rank = 1,
                       .first_rank = 8,
                       .num_ranks = 8,
                       .state = "running",
                       .lease_seconds = 4.5,
                       .step = 120}}};
}

size_t LongestLine(const std::string& text) {
  size_t longest = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    longest = std::max(longest, line.size());
  }
  return longest;
}

TEST(StatusText, SaysAllOnOneScreen) {
  EXPECT_EQ(StatusText(Running()),
            "job j7: healthy for 4m10s\n"
            "  round 2, running for 4m10s: 2 of 2 nodes run 16 ranks\n"
            "  nodes wanted: 2 to 4, 1 spare; restarts: 1 of 3 used\n"
            "  step 120, 3.25/s; slowest: rank 5 on node1, 3 steps behind\n"
            "  NODE                     RANKS       STATE      LEASE      STEP\n"
            "  node1                    0-7         running       5s       117\n"
            "  node2                    8-15        running     4.5s       120\n");
}

TEST(StatusText, SaysBelowAnUnfitNodeWhyItIs) {
  StatusPage page = Running();
  page.nodes.unfit = 1;
  page.members.push_back(
      {.name = "node3",
       .num_ranks = 8,
       .state = "unfit",
       .lease_seconds = 5,
       .check = absl::StrCat("the node check /opt/site/checks/gpu.sh exited with ",
                             "code 1: GPU 3\x1b[31m has fallen off the bus")});
  const std::string text = StatusText(page);
  EXPECT_THAT(text, HasSubstr("nodes wanted: 2 to 4, 1 spare, 1 unfit;"));
  EXPECT_THAT(text, HasSubstr("  node3                    -           unfit         5s         -\n"
                              "    the node check /opt/site/checks/gpu.sh exited with code 1: GPU\n"
                              "    3<U+001B>[31m has fallen off the bus\n"));
  EXPECT_LE(LongestLine(text), 80u);
}

TEST(StatusText, WrapsALongVerdict) {
  StatusPage page = Running();
  page.health = {.state = status::kHung, .text = std::string(60, 'a') + " " + std::string(60, 'b')};
  EXPECT_LE(LongestLine(StatusText(page)), 80u);
}

TEST(StatusText, OfAThousandNodesShowsThoseOfWhomThereIsMostToSay) {
  StatusPage page = Running();
  page.members.clear();
  for (int i = 0; i < 1000; ++i) {
    page.members.push_back({.name = absl::StrCat("node", i),
                            .first_rank = 8 * i,
                            .num_ranks = 8,
                            .state = i == 77 ? "away" : "running",
                            .step = i == 500 ? 3 : 120});
  }
  const std::string text = StatusText(page);
  EXPECT_THAT(text,
              AllOf(HasSubstr("node77 "), HasSubstr("node500 "), HasSubstr("and 990 nodes more")));
  EXPECT_LT(text.find("node77 "), text.find("node500 "));
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 24);
  EXPECT_LE(LongestLine(text), 80u);
}

TEST(StatusText, SaysWhoTellsWhereItIsNotTheRendezvous) {
  StatusPage page = Running();
  page.told_by = "the agent of node1";
  EXPECT_THAT(StatusText(page), HasSubstr("told by the agent of node1"));
  EXPECT_THAT(StatusText(Running()), Not(HasSubstr("told by")));
}

// A name of a job, a group in a verdict, a node: each may have been chosen to steer a terminal.
TEST(StatusText, LeavesNothingThatSteersATerminal) {
  constexpr char kEvil[] = "e\x1b]52;c;x\a\xc2\x9b\n";
  StatusPage page = Running();
  page.job = page.told_by = page.progress.slowest_node = page.round.phase = kEvil;
  page.health = {.state = kEvil, .text = kEvil};
  page.last_incident = {.text = kEvil};
  page.members[0].name = page.members[0].state = kEvil;
  page.members.resize(1);
  const std::string list = JobListText({.jobs = {status::LineOf(page)}});
  for (const std::string& text : {StatusText(page), list}) {
    EXPECT_THAT(text, AllOf(HasSubstr("e<U+001B>]52;c;x<U+0007><U+009B>"), Not(HasSubstr("\x1b")),
                            Not(HasSubstr("\a")), Not(HasSubstr("\xc2\x9b"))));
  }
  EXPECT_EQ(std::count(list.begin(), list.end(), '\n'), 1);
}

TEST(JobListText, HasALineForEachJob) {
  status::JobLine line = status::LineOf(Running());
  EXPECT_EQ(JobListText({.jobs = {line}}), "j7: healthy for 4m10s (2 nodes, 16 ranks, step 120)\n");
}

TEST(ExitCodeOfHealth, IsOneForEachHealth) {
  EXPECT_EQ(ExitCodeOfHealth({.state = status::kHealthy}), 0);
  EXPECT_EQ(ExitCodeOfHealth({.state = status::kWaiting}), kExitJobWaits);
  EXPECT_EQ(ExitCodeOfHealth({.state = status::kHung}), kExitJobHangs);
  EXPECT_EQ(ExitCodeOfHealth({.state = status::kFailed}), kExitJobFailed);
  EXPECT_EQ(ExitCodeOfHealth({.state = status::kEnded}), kExitJobEnded);
}

TEST(ExitCodeOfWorst, IsThatOfTheJobThatNeedsSomebodyMost) {
  const status::JobLine healthy{.health = {.state = status::kHealthy}};
  const status::JobLine ended{.health = {.state = status::kEnded}};
  const status::JobLine hung{.health = {.state = status::kHung}};
  EXPECT_EQ(ExitCodeOfWorst({.jobs = {healthy, hung, ended}}), kExitJobHangs);
  EXPECT_EQ(ExitCodeOfWorst({.jobs = {healthy, ended}}), kExitJobEnded);
  EXPECT_EQ(ExitCodeOfWorst({.jobs = {healthy}}), 0);
}

TEST(ShortTime, TakesWhatABrokenPageSays) {
  EXPECT_EQ(ShortTime(-5), "0s");
  EXPECT_THAT(ShortTime(1e300), StartsWith("11574d"));
}

}  // namespace
}  // namespace muster::launcher
