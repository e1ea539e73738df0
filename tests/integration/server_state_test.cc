// musterd --state_dir dies without a word and is started again: no worker is restarted, no round is
// lost, no budget starts over.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <optional>

#include "absl/strings/str_cat.h"
#include "tests/support/job_under_test.h"
#include "tests/support/loopback_port.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

class ServerState : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    StartDaemon();
  }
  void TearDown() override {
    daemon_->Signal(SIGTERM);
    EXPECT_TRUE(daemon_->Wait().ended);
    JobTest::TearDown();
  }

  void StartDaemon(const Arguments& rest = {}) {
    daemon_.emplace(StartProgram(Arguments{MusterdBinary(), "--listen=" + endpoint(),
                                           "--state_dir=" + directory() + "/state"} +
                                 rest));
    ASSERT_TRUE(daemon_->WaitForOutput("listening"))
        << ToString(daemon_->Wait(absl::ZeroDuration()));
  }
  void KillDaemon() {
    daemon_->Signal(SIGKILL);
    ASSERT_TRUE(daemon_->Wait().ended);
  }

  std::string endpoint() const { return absl::StrCat("127.0.0.1:", port_.number()); }
  Subprocess StartAgent(const std::string& run_id, int node, const Arguments& rest) const {
    return Start(Arguments{"run", "--nnodes=2", "--rdzv_backend=c10d", "--rdzv_id=" + run_id,
                           "--rdzv_endpoint=" + endpoint(),
                           absl::StrCat("--local_addr=127.0.0.", node)} +
                 rest);
  }
  // Each start of a worker is a line of its file; it ends when the test says so.
  std::string Trainer() const {
    return ShellScript("train.sh", R"(
echo $TORCHELASTIC_RESTART_COUNT >> $OUT/$TORCHELASTIC_RUN_ID.$RANK
while [ ! -e $OUT/go ]; do sleep 0.1; done)");
  }
  bool HasStarted(const std::string& run_id, int rank, const std::string& starts) const {
    return WaitUntil([&] { return ReadOut(absl::StrCat(run_id, ".", rank)) == starts; });
  }

  std::optional<Subprocess> daemon_;

 private:
  LoopbackPort port_;
};

TEST_F(ServerState, RunningWorkersOfSeveralJobsNoticeNothing) {
  const std::string script = Trainer();
  std::vector<Subprocess> agents;
  for (const std::string job : {"one", "two"}) {
    for (const int node : {1, 2}) agents.push_back(StartAgent(job, node, {script}));
  }
  for (const std::string job : {"one", "two"}) {
    for (const int rank : {0, 1}) ASSERT_TRUE(HasStarted(job, rank, "0\n")) << job << rank;
  }
  KillDaemon();
  for (Subprocess& agent : agents) {
    EXPECT_TRUE(agent.WaitForOutput("workers run on"));
  }
  StartDaemon();
  EXPECT_TRUE(daemon_->WaitForOutput("going on with 2 jobs"));
  for (Subprocess& agent : agents) {
    EXPECT_TRUE(agent.WaitForOutput("serves this node again"));
  }
  WriteFile(Out("go"), "");
  for (Subprocess& agent : agents) EXPECT_THAT(agent.Wait(), ExitsWith(0));
  for (const std::string job : {"one", "two"}) {
    for (const int rank : {0, 1}) EXPECT_EQ(ReadOut(absl::StrCat(job, ".", rank)), "0\n");
  }
}

TEST_F(ServerState, RestartsThatWereUsedStayUsed) {
  const std::string script = ShellScript("train.sh", R"(
echo $TORCHELASTIC_RESTART_COUNT >> $OUT/$TORCHELASTIC_RUN_ID.$RANK
while [ ! -s $OUT/budget.1 ]; do sleep 0.1; done
[ $RANK = 0 ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 3
while [ ! -e $OUT/go ]; do sleep 0.1; done
[ $RANK = 0 ] && exit 7
sleep 60)");
  Subprocess one = StartAgent("budget", 1, {"--max_restarts=1", script});
  Subprocess other = StartAgent("budget", 2, {"--max_restarts=1", script});
  for (const int rank : {0, 1}) ASSERT_TRUE(HasStarted("budget", rank, "0\n1\n")) << rank;
  KillDaemon();
  StartDaemon();
  EXPECT_TRUE(one.WaitForOutput("serves this node again"));
  EXPECT_TRUE(other.WaitForOutput("serves this node again"));
  WriteFile(Out("go"), "");
  EXPECT_THAT(one.Wait(), ExitsWith(7));
  EXPECT_THAT(other.Wait(), ExitsWith(7));
  EXPECT_EQ(ReadOut("budget.0"), "0\n1\n");
}

// A lost disk leaves no other: nodes of a round that runs may be about to come.
TEST_F(ServerState, AnEmptyStateHoldsTheFirstJobsForALeaseAndTheStatusSaysSo) {
  KillDaemon();
  std::filesystem::remove_all(directory() + "/state");
  StartDaemon({"--lease=3600"});
  const std::string script = Trainer();
  Subprocess one = StartAgent("held", 1, {script}), other = StartAgent("held", 2, {script});
  SubprocessResult status;
  EXPECT_TRUE(WaitUntil([&] {
    status = Run({"status", "--json", "--rdzv_endpoint=" + endpoint(), "held"});
    return status.out.find("the server has just started; nodes that it served before have") !=
           std::string::npos;
  })) << ToString(status);
  EXPECT_THAT(status, ExitsWith(10));
  for (Subprocess* agent : {&one, &other}) {
    agent->Signal(SIGTERM);
    EXPECT_TRUE(agent->Wait().ended);
  }
}

TEST_F(ServerState, AJobThatWasFormingIsFormed) {
  const std::string script = Trainer();
  Subprocess one = StartAgent("late", 1, {script});
  ASSERT_TRUE(one.WaitForOutput("waiting for 1 more"));
  KillDaemon();
  StartDaemon();
  WriteFile(Out("go"), "");
  Subprocess other = StartAgent("late", 2, {script});
  EXPECT_THAT(one.Wait(), ExitsWith(0));
  EXPECT_THAT(other.Wait(), ExitsWith(0));
  EXPECT_EQ(ReadOut("late.0"), "0\n");
}

TEST_F(ServerState, AJobThatWasEndingEndsWithTheFirstFailure) {
  const std::string script = ShellScript("train.sh", R"(
if [ $RANK = 1 ]; then
  trap 'touch $OUT/stopping; while [ ! -e $OUT/go ]; do sleep 0.1; done; exit 0' TERM
  touch $OUT/ready
  while true; do sleep 0.1; done
fi
while [ ! -e $OUT/ready ]; do sleep 0.1; done
exit 9)");
  Subprocess one = StartAgent("ending", 1, {script});
  Subprocess other = StartAgent("ending", 2, {script});
  ASSERT_TRUE(WaitForOut("stopping"));
  KillDaemon();
  StartDaemon();
  WriteFile(Out("go"), "");
  EXPECT_THAT(one.Wait(), ExitsWith(9));
  EXPECT_THAT(other.Wait(), ExitsWith(9));
}

TEST_F(ServerState, AJobThatIsStartedWhileItIsAwayWaitsForItAndLeavesItsPortFree) {
  KillDaemon();
  Subprocess one = StartAgent("late", 1, {Trainer()});
  EXPECT_TRUE(one.WaitForOutput("for it to be started again")) << ToString(one.Wait());
  StartDaemon();
  Subprocess other = StartAgent("late", 2, {Trainer()});
  for (int rank : {0, 1}) EXPECT_TRUE(HasStarted("late", rank, "0\n")) << rank;
  WriteFile(Out("go"), "");
  EXPECT_THAT(one.Wait(), ExitsWith(0));
  EXPECT_THAT(other.Wait(), ExitsWith(0));
}

TEST_F(ServerState, AJobThatWaitsForItEndsByASignalAsAnyOther) {
  KillDaemon();
  Subprocess one = StartAgent("late", 1, {Trainer()});
  EXPECT_TRUE(one.WaitForOutput("for it to be started again")) << ToString(one.Wait());
  one.Signal(SIGINT);
  const SubprocessResult result = one.Wait();
  EXPECT_THAT(result, ExitsWith(128 + SIGINT));
  EXPECT_THAT(result.err, HasSubstr("interrupted while waiting for"));
  StartDaemon();  // takes its mark along at its end
}

TEST_F(ServerState, AJobHostsItsOwnServerOnceItHasWaitedForTheOneThatWasKilled) {
  KillDaemon();
  const Arguments rest = {"--rdzv_conf=orphan_timeout=8", Trainer()};
  Subprocess one = StartAgent("alone", 1, rest);
  EXPECT_TRUE(one.WaitForOutput("hosting the rendezvous at")) << ToString(one.Wait());
  Subprocess other = StartAgent("alone", 2, rest);
  for (int rank : {0, 1}) EXPECT_TRUE(HasStarted("alone", rank, "0\n")) << rank;
  WriteFile(Out("go"), "");
  EXPECT_THAT(one.Wait(), ExitsWith(0));
  EXPECT_THAT(other.Wait(), ExitsWith(0));
  StartDaemon();  // takes its mark along at its end
}

TEST_F(ServerState, ADamagedFileIsRefusedInOneSentence) {
  KillDaemon();
  for (const std::string file : {"musterd.db", "musterd.db-wal"}) {
    WriteFile(directory() + "/state/" + file, std::string(5000, 'x'));
  }
  const SubprocessResult result = StartProgram({MusterdBinary(), "--listen=127.0.0.1:0",
                                                "--state_dir=" + directory() + "/state"})
                                      .Wait();
  EXPECT_THAT(result, ExitsWith(2));
  EXPECT_THAT(result.err, HasSubstr("musterd.db"));
  EXPECT_THAT(result.err, HasSubstr("Move it away and start again"));
}

}  // namespace
}  // namespace muster::testing
