// File systems that do not answer: of logs, for longer than a lease, and of programs.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "proto/io/unique_fd.h"
#include "tests/integration/several_nodes.h"
#include "tests/support/hung_file_system.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kPatience = absl::Seconds(90);

// A named pipe takes for ever to be opened until somebody reads it. Rank 1 lays it where its node's
// log of the next attempt goes, and fails.
constexpr char kHangsAfterAFailure[] = R"(
touch $OUT/$TORCHELASTIC_RESTART_COUNT.$WORLD_SIZE.$RANK
if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then
  [ $RANK = 0 ] && exec sleep 1000
  run=$(dirname $(dirname $(dirname $TORCHELASTIC_ERROR_FILE)))
  mkdir -p $run/attempt_1/0
  mkfifo $run/attempt_1/0/stdout.log
  echo $run > $OUT/run
  exit 1
fi
while [ ! -e $OUT/done ]; do sleep 0.1; done)";

class HangingFiles : public SeveralNodes {
 protected:
  void StartJob() {
    const std::string script = ShellScript("train.sh", kHangsAfterAFailure);
    for (const int node : {1, 2}) {
      agents_.push_back(StartElastic(
          node, "1:2",
          {"--max_restarts=1", "-t", "3", "--rdzv_conf=last_call_timeout=60", script}));
    }
    ASSERT_TRUE(WaitForOut("1.2.0"));
  }
  // A reader of the pipe makes the file system answer.
  UniqueFd Answer() const {
    std::string run = ReadOut("run");
    run.pop_back();
    return UniqueFd(::open((run + "/attempt_1/0/stdout.log").c_str(), O_RDONLY | O_CLOEXEC));
  }

  std::vector<Subprocess> agents_;
};

TEST_F(HangingFiles, OfOneNodeCostNoLease) {
  StartJob();
  absl::SleepFor(absl::Seconds(8));
  EXPECT_FALSE(FileExists(Out("1.2.1")) || FileExists(Out("2.1.0")));
  const UniqueFd reader = Answer();
  EXPECT_TRUE(WaitForOut("1.2.1"));
  WriteFile(Out("done"), "");
  for (Subprocess& agent : agents_) EXPECT_THAT(agent.Wait(), ExitsWith(0));
}

TEST_F(HangingFiles, DoNotKeepAnInterruptedNodeFromEnding) {
  StartJob();
  EXPECT_TRUE(agents_[1].WaitForOutput("opening log files"));
  agents_[1].Signal(SIGINT);
  for (Subprocess& agent : agents_) EXPECT_TRUE(agent.Wait().ended);
}

using HungChild = JobTest;

// Which of their files it is, before they can say anything themselves (agent/watch/quiet_watch.h).
class HungPrograms : public JobTest, public ::testing::WithParamInterface<HungFileSystem::Pages> {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    if (!hung_.mounted()) GTEST_SKIP() << hung_.why_not();
  }

  HungFileSystem hung_{directory() + "/hung", "train.py", "print('trained')", GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Pages, HungPrograms,
                         ::testing::Values(HungFileSystem::Pages::kUsed,
                                           HungFileSystem::Pages::kPassedBy));

TEST_P(HungPrograms, AreNamedOfAScriptThatCannotBeReadUntilItIs) {
  Subprocess job = Start({"run", "--nproc_per_node=2", hung_.file()});
  EXPECT_TRUE(job.WaitForOutput("ranks 0 and 1 have waited for a file system for ", kPatience));
  hung_.AnswerAgain();
  const SubprocessResult result = job.Wait(kPatience);
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, HasSubstr("trained"));
  EXPECT_THAT(
      result.err,
      AllOf(HasSubstr(absl::StrCat(" of ", hung_.file(), " on ", directory(), "/hung (fuse)")),
            Not(HasSubstr("hang:"))));
}

// The worker is a shell here, which waits for the program that it has started; a process that has a
// file open there which is to be closed is not ended by SIGKILL either.
TEST_F(HungChild, IsNamedAndDoesNotHoldUpTheEnd) {
  const HungFileSystem hung(directory() + "/hung", "data", "text", HungFileSystem::Pages::kUsed);
  if (!hung.mounted()) GTEST_SKIP() << hung.why_not();
  const std::string script = ShellScript("train.sh", absl::StrCat("cat ", hung.file(), "; true"));
  Subprocess job = Start({"run", "--nproc_per_node=1", "--shutdown_timeout=3", script});
  EXPECT_TRUE(job.WaitForOutput(absl::StrCat("; in read of ", hung.file()), kPatience));
  job.Signal(SIGTERM);
  const SubprocessResult result = job.Wait(kPatience);
  EXPECT_THAT(result, ExitsWith(128 + SIGTERM));
  EXPECT_THAT(result.err, AllOf(HasSubstr("SIGKILL does not end what the workers left behind on "),
                                HasSubstr(": cat (pid ")));
}

}  // namespace
}  // namespace muster::testing
