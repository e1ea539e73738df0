// What torchrun's variables ask an agent to watch: file timers, uninterruptible workers, the health
// port.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/support/files.h"
#include "tests/support/job_under_test.h"
#include "tests/support/loopback_port.h"
#include "tests/support/peer_python.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kSetTimer[] =
    "printf '{\"version\": 1, \"pid\": %d, \"scope_id\": \"%s\", \"expiration_time\": %d, "
    "\"signal\": 9}\\n' $$ step_7 $(( $(date +%s) + $1 )) > $TORCHELASTIC_TIMER_FILE\n";
const Environment kTimers = {{"TORCHELASTIC_ENABLE_FILE_TIMER", "1"}};

using FileTimer = JobTest;

TEST_F(FileTimer, EndsTheWorkerThatIsLateAndIsNamedInTheRootCause) {
  const std::string script = ShellScript(
      "train.sh",
      absl::StrCat("[ $RANK = 1 ] || exec sleep 1000\nset -- 1\n", kSetTimer, "exec sleep 1000"));
  const SubprocessResult result = Run({"run", "--nproc_per_node=2", script}, kTimers);
  EXPECT_THAT(result, ExitsWith(137));
  EXPECT_THAT(result.err, AllOf(HasSubstr("its timer 'step_7' ran out, so it was ended by SIGKILL"),
                                HasSubstr("rank      : 1 ")));
}

TEST_F(FileTimer, LeavesAWorkerAloneThatTookItBack) {
  const std::string script = ShellScript(
      "train.sh",
      absl::StrCat("set -- 2\n", kSetTimer, "set -- -9999999999\n", kSetTimer, "sleep 3"));
  EXPECT_THAT(Run({"run", script}, kTimers), ExitsWith(0));
}

TEST_F(FileTimer, HasItsPipeWhereTheUserWantsItAndTakesItAway) {
  Environment changes = kTimers;
  changes["TORCHELASTIC_TIMER_FILE"] = Out("timers");
  const std::string script =
      ShellScript("train.sh", "[ -p $OUT/timers ] && [ $TORCHELASTIC_TIMER_FILE = $OUT/timers ]");
  EXPECT_THAT(Run({"run", script}, changes), ExitsWith(0));
  EXPECT_FALSE(FileExists(Out("timers")));
}

TEST_F(FileTimer, DoesNotReplaceAFileThatIsNotAPipe) {
  Environment changes = kTimers;
  changes["TORCHELASTIC_TIMER_FILE"] = Out("notes");
  WriteFile(Out("notes"), "mine");
  const SubprocessResult result = Run({"run", ShellScript("train.sh", "exit 0")}, changes);
  EXPECT_THAT(result, ExitsWith(2));
  EXPECT_THAT(result.err, HasSubstr("TORCHELASTIC_TIMER_FILE="));
  EXPECT_EQ(ReadOut("notes"), "mine");
}

TEST_F(FileTimer, IsNotServedUnlessItIsAskedFor) {
  const std::string script = ShellScript("train.sh", "[ -z \"$TORCHELASTIC_TIMER_FILE\" ]");
  EXPECT_THAT(Run({"run", script}), ExitsWith(0));
}

// Source: PyTorch's documentation of torch.distributed.elastic.timer, its client for pipes.
TEST_F(FileTimer, ServesPyTorchsOwnClient) {
  const std::string python = PeerPython();
  if (python.empty()) GTEST_SKIP() << kNoPeerPython;
  const std::string script =
      PythonScript("train.py",
                   "import os, time\n"
                   "import torch.distributed.elastic.timer as timer\n"
                   "timer.configure(timer.FileTimerClient(os.environ['TORCHELASTIC_TIMER_FILE']))\n"
                   "with timer.expires(after=60, scope='quick'):\n"
                   "    print('in time', flush=True)\n"
                   "with timer.expires(after=1, scope='hangs'):\n"
                   "    time.sleep(1000)\n");
  Environment changes = kTimers;
  changes["PYTHON_EXEC"] = python;
  const SubprocessResult result = Start({"run", script}, changes).Wait(absl::Minutes(2));
  EXPECT_THAT(result, ExitsWith(137));
  EXPECT_THAT(result.out, HasSubstr("in time"));
  EXPECT_THAT(result.err, HasSubstr("its timer 'hangs' ran out"));
}

using Uninterruptible = JobTest;

TEST_F(Uninterruptible, WorkersAreGivenUpAfterTheTimeThatTheVariableAllows) {
  const std::string script = ShellScript(
      "train.sh",
      absl::StrCat("[ $RANK = 1 ] || exec sleep 1000\nexec ", Built("uninterruptible")));
  const SubprocessResult result = Run({"run", "--nproc_per_node=2", script},
                                      {{"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "1"}});
  EXPECT_THAT(result, ExitsWith(137));
  EXPECT_THAT(result.err, AllOf(HasSubstr("state D) for 1s"), HasSubstr("rank      : 1 ")));
}

using HealthCheck = JobTest;

TEST_F(HealthCheck, IsAnsweredAtThePortOfTheVariable) {
  const std::string port = absl::StrCat(LoopbackPort().number());
  const std::string script = PythonScript(
      "train.py",
      "import os, urllib.request\n"
      "with urllib.request.urlopen(f'http://127.0.0.1:{os.environ[\"P\"]}/health') as answer:\n"
      "    print(answer.status, answer.read())\n");
  const SubprocessResult result =
      Run({"run", script}, {{"TORCHELASTIC_HEALTH_CHECK_PORT", port}, {"P", port}});
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, HasSubstr("200 b'alive\\n'"));
}

TEST_F(HealthCheck, DoesNotKeepAJobFromRunningWhereItCannotBeAnswered) {
  const LoopbackPort taken(PortUse::kListening);
  const std::string script = ShellScript("train.sh", "exit 0");
  const SubprocessResult busy =
      Run({"run", script}, {{"TORCHELASTIC_HEALTH_CHECK_PORT", absl::StrCat(taken.number())}});
  EXPECT_THAT(busy, ExitsWith(0));
  EXPECT_THAT(busy.err, HasSubstr("TORCHELASTIC_HEALTH_CHECK_PORT="));
  const SubprocessResult odd = Run({"run", script}, {{"TORCHELASTIC_HEALTH_CHECK_PORT", "http"}});
  EXPECT_THAT(odd, ExitsWith(0));
  EXPECT_THAT(odd.err, HasSubstr("TORCHELASTIC_HEALTH_CHECK_PORT=http is not a port"));
}

}  // namespace
}  // namespace muster::testing
