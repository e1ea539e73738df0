// The program of --round_hook.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "absl/strings/match.h"
#include "tests/support/job_under_test.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class RoundHook : public JobTest {
 protected:
  // Options of a job on one node with this hook.
  Arguments With(const std::string& hook, const Arguments& options = {}) const {
    return Arguments{"run", "--round_hook=" + ShellScript("hook.sh", hook)} + options;
  }
};

TEST_F(RoundHook, RunsBeforeTheWorkersOfEachRound) {
  const std::string script = ShellScript("train.sh", R"(
echo worker $TORCHELASTIC_RESTART_COUNT >> $OUT/order
[ $TORCHELASTIC_RESTART_COUNT = 1 ])");
  EXPECT_THAT(Run(With("echo hook $TORCHELASTIC_RESTART_COUNT of $GROUP_WORLD_SIZE >> $OUT/order",
                       {"--max_restarts=1", script})),
              ExitsWith(0));
  EXPECT_EQ(ReadOut("order"), "hook 0 of 1\nworker 0\nhook 1 of 1\nworker 1\n");
}

TEST_F(RoundHook, IsNotAWorker) {
  EXPECT_THAT(Run(With("[ -z \"$RANK\" ] && [ -z \"$MUSTER_AGENT_SOCKET\" ]",
                       {ShellScript("train.sh", "exit 0")})),
              ExitsWith(0));
}

TEST_F(RoundHook, ThatFailsIsNamedAndKeepsWorkersFromStarting) {
  const SubprocessResult result = Run(
      With("echo 'no GPU answers' >&2\nexit 7", {ShellScript("train.sh", "touch $OUT/started")}));
  EXPECT_TRUE(result.ended && result.exit_code != 0) << ToString(result);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("hook.sh exited with code 7"), HasSubstr("no GPU answers")));
  EXPECT_FALSE(FileExists(Out("started")));
}

TEST_F(RoundHook, ThatDoesNotExistIsNamed) {
  const SubprocessResult result =
      Run({"run", "--round_hook=/no/such/hook", ShellScript("train.sh", "exit 0")});
  EXPECT_THAT(result, ExitsWith(127));
  EXPECT_THAT(result.err, HasSubstr("--round_hook: cannot start /no/such/hook"));
}

TEST_F(RoundHook, ThatFailsIsTriedAgainWithinTheRestarts) {
  EXPECT_THAT(Run(With("[ $TORCHELASTIC_RESTART_COUNT = 1 ]",
                       {"--max_restarts=1", ShellScript("train.sh", "exit 0")})),
              ExitsWith(0));
}

TEST_F(RoundHook, IsEndedAtItsTimeout) {
  const SubprocessResult result =
      Run(With("exec sleep 1000", {"--round_hook_timeout=0.5", ShellScript("train.sh", "exit 0")}));
  EXPECT_TRUE(result.ended && result.exit_code != 0);
  EXPECT_THAT(result.err, HasSubstr("did not end within 500ms (--round_hook_timeout)"));
}

TEST_F(RoundHook, IsEndedByAnInterrupt) {
  Subprocess job =
      Start(With("touch $OUT/hook\nexec sleep 1000", {ShellScript("train.sh", "exit 0")}));
  ASSERT_TRUE(WaitForOut("hook"));
  job.Signal(SIGINT);
  EXPECT_THAT(job.Wait(), ExitsWith(130));
}

TEST_F(RoundHook, WritesIntoTheLogsOfTheAttempt) {
  const std::string logs = directory() + "/logs";
  const SubprocessResult result = Run(With("echo looks good\necho so far >&2",
                                           {"--log_dir", logs, ShellScript("train.sh", "exit 0")}));
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out + result.err, Not(HasSubstr("looks good")));
  std::string written;
  for (const std::string& file : FilesBelow(logs)) {
    if (absl::EndsWith(file, "/attempt_0/hook.log")) written = ReadFile(logs + "/" + file);
  }
  EXPECT_EQ(written, "looks good\nso far\n");
}

}  // namespace
}  // namespace muster::testing
