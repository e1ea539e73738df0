// A file system of logs that does not answer, for longer than a lease: a named pipe takes for ever
// to be opened until somebody reads it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "proto/io/unique_fd.h"
#include "tests/integration/several_nodes.h"

namespace muster::testing {
namespace {

// Rank 1 lays the pipe where its node's log of the next attempt goes, and fails.
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

}  // namespace
}  // namespace muster::testing
