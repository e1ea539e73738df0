// Restarts of the worker group on one node.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "tests/support/job_under_test.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// Rank 1 fails in the attempts before $1; the others wait to be stopped. Each notes the attempts it
// has seen.
constexpr char kFailsUntil[] = R"(
echo $TORCHELASTIC_RESTART_COUNT >> $OUT/rank$RANK
echo rank $RANK attempt $TORCHELASTIC_RESTART_COUNT
[ $TORCHELASTIC_RESTART_COUNT -ge $1 ] && exit 0
[ $RANK = 1 ] && exit 3
exec sleep 1000)";

using Restart = JobTest;

TEST_F(Restart, RepeatsTheWholeGroupUntilItSucceeds) {
  const std::string script = ShellScript("train.sh", kFailsUntil);
  EXPECT_THAT(Run({"run", "--nproc_per_node=2", "--max_restarts=2", script, "2"}), ExitsWith(0));
  EXPECT_EQ(ReadOut("rank1"), "0\n1\n2\n");
  EXPECT_THAT(ReadOut("rank0"), HasSubstr("2\n"));
}

TEST_F(Restart, EndsWithTheWorkersCodeWhenTheBudgetIsSpent) {
  const std::string script = ShellScript("train.sh", kFailsUntil);
  const SubprocessResult result =
      Run({"run", "--nproc_per_node=2", "--max_restarts=1", script, "9"});
  EXPECT_THAT(result, ExitsWith(3));
  EXPECT_EQ(ReadOut("rank1"), "0\n1\n");
  EXPECT_THAT(result.err, AllOf(HasSubstr("train.sh"), ContainsRegex("rank[^0-9]*1")))
      << ToString(result);
}

TEST_F(Restart, IsAnnouncedOnOneNodeTooAndWhatTheWorkerSaidIsShownOnce) {
  const std::string script =
      ShellScript("train.sh", "echo 'loss is NaN' >&2\n[ $TORCHELASTIC_RESTART_COUNT = 1 ]");
  const SubprocessResult good = Run({"run", "--max_restarts=1", script});
  EXPECT_THAT(good, ExitsWith(0));
  EXPECT_THAT(good.err, HasSubstr("restart 1 of 1: "));
  const SubprocessResult bad = Run({"run", script});
  EXPECT_THAT(bad.err, HasSubstr("shown above, ending with: loss is NaN\n"));
}

TEST_F(Restart, DoesNotHappenByDefault) {
  const std::string script = ShellScript("train.sh", kFailsUntil);
  EXPECT_THAT(Run({"run", "--nproc_per_node=2", script, "1"}), ExitsWith(3));
  EXPECT_EQ(ReadOut("rank1"), "0\n");
}

TEST_F(Restart, IsForbiddenByAWorkerThatExitsWith93) {
  const std::string script = ShellScript("train.sh", "echo $RANK >> $OUT/started\nexit 93");
  const SubprocessResult result = Run({"run", "--max_restarts=3", script});
  EXPECT_THAT(result, ExitsWith(93));
  EXPECT_EQ(ReadOut("started"), "0\n");
  EXPECT_THAT(result.err, HasSubstr("this exit code forbids a restart"));
}

TEST_F(Restart, KeepsTheLogsOfEveryAttempt) {
  const std::string script = ShellScript("train.sh", kFailsUntil), logs = directory() + "/logs";
  EXPECT_THAT(Run({"run", "--nproc_per_node=2", "--max_restarts=2", "--log_dir", logs, "-r", "3",
                   script, "2"}),
              ExitsWith(0));
  int found = 0;
  for (const std::string& file : FilesBelow(logs)) {
    for (const char* attempt : {"0", "1", "2"}) {
      if (!absl::EndsWith(file, std::string("/attempt_") + attempt + "/1/stdout.log")) continue;
      EXPECT_EQ(ReadFile(logs + "/" + file), std::string("rank 1 attempt ") + attempt + "\n");
      ++found;
    }
  }
  EXPECT_EQ(found, 3);
}

TEST_F(Restart, FollowsAWorkerKilledBySignalToo) {
  const std::string script =
      ShellScript("train.sh", "[ $TORCHELASTIC_RESTART_COUNT = 0 ] && kill -SEGV $$\nexit 0");
  EXPECT_THAT(Run({"run", "--nproc_per_node=2", "--max_restarts=1", script}), ExitsWith(0));
}

TEST_F(Restart, LeavesNothingOfTheEarlierAttemptRunning) {
  const std::string script = ShellScript("train.sh", R"(
if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then
  setsid sleep 1000 &
  echo $! > $OUT/grandchild
  exit 1
fi
kill -0 $(cat $OUT/grandchild) 2> /dev/null && exit 9
exit 0)");
  EXPECT_THAT(Run({"run", "--max_restarts=1", script}), ExitsWith(0));
}

}  // namespace
}  // namespace muster::testing
