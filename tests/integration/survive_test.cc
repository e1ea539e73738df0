// Workers that go on in the next round of their job, in the same process, where another worker or a
// node is lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/integration/several_nodes.h"
#include "tests/support/files.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(60);

class Survive : public SeveralNodes {
 protected:
  struct Place {
    pid_t pid = 0;
    int num_ranks = 0;
  };
  // Waits for the one who has it.
  Place PlaceOf(int attempt, int rank) const {
    const std::string name = absl::StrCat("round", attempt, ".rank", rank);
    EXPECT_TRUE(WaitForOut(name + ".there"));
    const std::vector<std::string> words = absl::StrSplit(ReadOut(name), ' ');
    Place place;
    if (words.size() != 2 || !absl::SimpleAtoi(words[0], &place.pid) ||
        !absl::SimpleAtoi(words[1], &place.num_ranks)) {
      ADD_FAILURE() << name << " holds '" << ReadOut(name) << "'";
    }
    return place;
  }
  // Kills one of three ranks, and in the next round another that was kept. Who has been rank 2 all
  // the time.
  pid_t LosesTwo() const {
    std::vector<pid_t> before;
    for (const int rank : {0, 1, 2}) before.push_back(PlaceOf(0, rank).pid);
    kill(before[1], SIGKILL);
    EXPECT_EQ(PlaceOf(1, 0).pid, before[0]);
    EXPECT_EQ(PlaceOf(1, 2).pid, before[2]);
    const pid_t replacement = PlaceOf(1, 1).pid;
    EXPECT_NE(replacement, before[1]);
    kill(before[0], SIGKILL);
    EXPECT_EQ(PlaceOf(2, 0).num_ranks, 3);
    EXPECT_EQ(PlaceOf(2, 1).pid, replacement);
    EXPECT_EQ(PlaceOf(2, 2).pid, before[2]);
    return before[2];
  }
  void LetThemFinish() const { WriteFile(Out("done"), ""); }
};

TEST_F(Survive, TheLossOfAWorkerInItsOwnProcesses) {
  const std::string logs = directory() + "/logs";
  Subprocess job = Start({"run", "--nproc_per_node=3", "--max_restarts=2", "--tee=3", "--log_dir",
                          logs, Built("surviving_rank")});
  const pid_t last_rank = LosesTwo();
  LetThemFinish();
  const SubprocessResult result = job.Wait(kLong);
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.err, HasSubstr("2 on "));
  EXPECT_THAT(result.err, HasSubstr("would go on in the next round"));
  const SubprocessResult report = Run({"report", logs});
  EXPECT_THAT(report.out, HasSubstr("(2 kept, 1 fresh, back after "));
  // What a process says stays in one place, and reaches the console in every round.
  const std::string last = absl::StrCat("pid ", last_rank, " has the place round2.rank2\n");
  EXPECT_THAT(result.out, HasSubstr(last));
  bool found = false;
  for (const std::string& file : FilesBelow(logs)) {
    if (!absl::EndsWith(file, "attempt_0/2/stdout.log")) continue;
    found = true;
    EXPECT_THAT(ReadFile(logs + "/" + file), HasSubstr(last));
  }
  EXPECT_TRUE(found);
}

// The programs are in C, and in Python without PyTorch.
class SurviveInOtherLanguages : public Survive,
                                public ::testing::WithParamInterface<std::string> {};

TEST_P(SurviveInOtherLanguages, TheLossOfAWorkerInItsOwnProcesses) {
  Arguments arguments = {"run", "--nproc_per_node=3", "--max_restarts=2", "/usr/bin/env",
                         absl::StrCat("JOB_MODULE=", kSourceDirectory, "/deploy/python")};
  for (absl::string_view word : absl::StrSplit(GetParam(), ' ')) arguments.emplace_back(word);
  Subprocess job = Start(arguments);
  LosesTwo();
  LetThemFinish();
  EXPECT_THAT(job.Wait(kLong), ExitsWith(0));
}

INSTANTIATE_TEST_SUITE_P(
    Survive, SurviveInOtherLanguages,
    ::testing::Values(Built("job_probe") + " rounds",
                      absl::StrCat("/usr/bin/python3 ", kSourceDirectory,
                                   "/tests/integration/programs/job_probe.py rounds")),
    [](const auto& info) { return info.index == 0 ? "C" : "Python"; });

TEST_F(Survive, TheLossOfANode) {
  const Arguments job = {"--nproc_per_node=2", "--max_restarts=3",
                         "--rdzv_conf=last_call_timeout=300", Built("surviving_rank")};
  Subprocess stays = StartElastic(1, "1:2", job);
  ASSERT_TRUE(stays.WaitForOutput("1 of 1 to 2 nodes joined"));  // so it hosts the server
  Subprocess goes = StartElastic(2, "1:2", job);
  std::vector<pid_t> before;
  for (const int rank : {0, 1, 2, 3}) before.push_back(PlaceOf(0, rank).pid);
  EXPECT_EQ(PlaceOf(0, 0).num_ranks, 4);
  KillWithAllBelow(goes.pid());
  for (const int rank : {0, 1}) {
    EXPECT_EQ(PlaceOf(1, rank).pid, before[rank]);
    EXPECT_EQ(PlaceOf(1, rank).num_ranks, 2);
  }
  LetThemFinish();
  EXPECT_THAT(stays.Wait(kLong), ExitsWith(0));
}

TEST_F(Survive, TheComingOfANode) {
  const Arguments job = {"--nproc_per_node=1", "--rdzv_conf=last_call_timeout=1",
                         Built("surviving_rank")};
  Subprocess first = StartElastic(1, "1:2", job);
  const pid_t before = PlaceOf(0, 0).pid;
  Subprocess second = StartElastic(2, "1:2", job);
  EXPECT_EQ(PlaceOf(1, 0).pid, before);
  EXPECT_EQ(PlaceOf(1, 1).num_ranks, 2);
  LetThemFinish();
  EXPECT_THAT(first.Wait(kLong), ExitsWith(0));
  EXPECT_THAT(second.Wait(kLong), ExitsWith(0));
}

// The verdict ends it alone, and the ranks that waited for it go on.
TEST_F(Survive, ARankThatHangs) {
  Subprocess job = Start({"run", "--nproc_per_node=3", "--max_restarts=1", "--hang_timeout=5",
                          Built("surviving_rank")});
  std::vector<pid_t> before;
  for (const int rank : {0, 1, 2}) before.push_back(PlaceOf(0, rank).pid);
  kill(before[1], SIGSTOP);
  for (const int rank : {0, 2}) EXPECT_EQ(PlaceOf(1, rank).pid, before[rank]);
  EXPECT_NE(PlaceOf(1, 1).pid, before[1]);
  LetThemFinish();
  const SubprocessResult result = job.Wait(kLong);
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.err, HasSubstr("hang: rank 1 is stopped by a signal"));
  EXPECT_FALSE(HasFailure()) << result.out << result.err;  // why a rank was replaced
}

TEST_F(Survive, EndsWhereNoRestartIsLeft) {
  Subprocess job =
      Start({"run", "--nproc_per_node=2", "--max_restarts=0", Built("surviving_rank")});
  const pid_t dies = PlaceOf(0, 1).pid;
  PlaceOf(0, 0);
  kill(dies, SIGKILL);
  EXPECT_THAT(job.Wait(kLong), ExitsWith(128 + SIGKILL));
}

TEST_F(Survive, OneThatDoesNotLetGoIsReplaced) {
  Subprocess job = Start({"run", "--nproc_per_node=3", "--max_restarts=1", "--shutdown_timeout=4",
                          Built("surviving_rank"), "deaf"});
  std::vector<pid_t> before;
  for (const int rank : {0, 1, 2}) before.push_back(PlaceOf(0, rank).pid);
  kill(before[1], SIGKILL);
  EXPECT_NE(PlaceOf(1, 0).pid, before[0]);
  EXPECT_EQ(PlaceOf(1, 2).pid, before[2]);
  LetThemFinish();
  const SubprocessResult result = job.Wait(kLong);
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.err, HasSubstr("local rank 0"));
  EXPECT_THAT(result.err, HasSubstr("has not let go of this one"));
}

TEST_F(Survive, TheLossOfOneThatAwaitsARoundIsItsOwn) {
  const Arguments job = {"--nproc_per_node=2", "--max_restarts=3", Built("surviving_rank")};
  Subprocess stays = StartElastic(1, "2:2", job);
  ASSERT_TRUE(SaysThatItWaits(stays));
  Subprocess goes = StartElastic(2, "2:2", job);
  std::vector<pid_t> before;
  for (const int rank : {0, 1, 2, 3}) before.push_back(PlaceOf(0, rank).pid);
  KillWithAllBelow(goes.pid());
  ASSERT_TRUE(WaitForOut("awaits1.0") && WaitForOut("awaits1.1"));
  ASSERT_TRUE(stays.WaitForOutput("lost 127.0.0.2", kLong));
  kill(before[1], SIGKILL);
  Subprocess comes = StartElastic(2, "2:2", job);
  EXPECT_EQ(PlaceOf(1, 0).pid, before[0]);
  EXPECT_NE(PlaceOf(1, 1).pid, before[1]);
  LetThemFinish();
  EXPECT_THAT(stays.Wait(kLong), ExitsWith(0));
  EXPECT_THAT(comes.Wait(kLong), ExitsWith(0));
}

TEST_F(Survive, AnInterruptEndsThoseThatAwaitARound) {
  const Arguments job = {"--nproc_per_node=1", "--max_restarts=3", Built("surviving_rank")};
  Subprocess stays = StartElastic(1, "2:2", job);
  ASSERT_TRUE(SaysThatItWaits(stays));
  Subprocess goes = StartElastic(2, "2:2", job);
  const pid_t survivor = PlaceOf(0, 0).pid;
  PlaceOf(0, 1);
  KillWithAllBelow(goes.pid());
  ASSERT_TRUE(WaitForOut("awaits1.0"));
  ASSERT_TRUE(stays.WaitForOutput("lost 127.0.0.2", kLong));
  EXPECT_EQ(kill(survivor, 0), 0);
  stays.Signal(SIGINT);
  EXPECT_THAT(stays.Wait(kLong), ExitsWith(128 + SIGINT));
}

TEST_F(Survive, AnAgentThatIsKilledTakesThoseThatAwaitARoundWithIt) {
  const Arguments job = {"--nproc_per_node=1", "--max_restarts=3", Built("surviving_rank")};
  Subprocess stays = StartElastic(1, "2:2", job);
  ASSERT_TRUE(SaysThatItWaits(stays));
  Subprocess goes = StartElastic(2, "2:2", job);
  PlaceOf(0, 0), PlaceOf(0, 1);
  KillWithAllBelow(goes.pid());
  ASSERT_TRUE(WaitForOut("awaits1.0"));
  ASSERT_TRUE(stays.WaitForOutput("lost 127.0.0.2", kLong));
  stays.Signal(SIGKILL);
  stays.Wait(kLong);
  EXPECT_TRUE(NothingIsLeft());
}

}  // namespace
}  // namespace muster::testing
