// What a worker process finds: descriptors, signal dispositions, process group, device list.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "tests/support/job_under_test.h"

namespace muster::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;

// The value of a line like "SigIgn:\t0000000000000001".
uint64_t HexAfter(const std::string& name, const std::string& text) {
  const size_t at = text.find(name);
  return at == std::string::npos ? ~uint64_t{0}
                                 : std::stoull(text.substr(at + name.size()), nullptr, 16);
}

using Worker = JobTest;

TEST_F(Worker, StartsWithNoSignalBlockedOrIgnored) {
  const std::string status =
      Run({"run", ShellScript("train.sh", "exec grep Sig /proc/self/status")}).out;
  EXPECT_EQ(HexAfter("SigBlk:", status), 0u) << status;
  EXPECT_EQ(HexAfter("SigIgn:", status), 0u) << status;
}

TEST_F(Worker, IgnoresNothingOfWhatTheLauncherWasStartedIgnoring) {
  SubprocessOptions options =
      OptionsFor({"run", ShellScript("train.sh", "exec grep SigIgn /proc/self/status")});
  options.ignored_signals = {SIGHUP, SIGINT, SIGPIPE, SIGCHLD, SIGUSR1};
  const std::string status = Subprocess(options).Wait().out;
  EXPECT_EQ(HexAfter("SigIgn:", status), 0u) << status;
}

TEST_F(Worker, HasOnlyTheThreeStandardDescriptors) {
  const std::string script = PythonScript(
      "train.py", "import os\nprint(sorted(int(f) for f in os.listdir('/proc/self/fd')))\n");
  EXPECT_EQ(Run({"run", script}).out, "[0, 1, 2, 3]\n") << "3 is the listing itself";
  const std::string prefixed = Run({"run", "--nproc_per_node=2", script}).out;
  EXPECT_THAT(prefixed, HasSubstr("[0, 1, 2, 3]"));
}

// Schedulers and supervisors start programs so.
TEST_F(Worker, HasTheThreeDescriptorsThatTheLauncherWasStartedWithout) {
  const std::string script =
      ShellScript("train.sh", "ls -l /proc/self/fd > $OUT/fds; read line; echo $? >> $OUT/fds");
  for (const char* closed : {"<&-", "<&- >&- 2>&-"}) {
    const SubprocessResult result =
        StartProgram({"/bin/sh", "-c", absl::StrCat("exec \"$@\" ", closed), "sh", MusterBinary(),
                      "run", script})
            .Wait();
    EXPECT_THAT(result, ExitsWith(0)) << closed;
    EXPECT_THAT(ReadOut("fds"), ContainsRegex(" 0 -> /dev/null(.|\n)* 1 -> ")) << closed;
    EXPECT_THAT(ReadOut("fds"), EndsWith("\n1\n")) << "the end of the file, not an error";
  }
}

TEST_F(Worker, LeadsAProcessGroupOfItsOwn) {
  const std::string script = PythonScript(
      "train.py", "import os\nprint(os.getpgid(0) == os.getpid() != os.getpgid(os.getppid()))\n");
  EXPECT_EQ(Run({"run", script}).out, "True\n");
}

TEST_F(Worker, StartsInTheDirectoryOfTheLauncher) {
  EXPECT_EQ(Run({"run", ShellScript("train.sh", "pwd")}).out, directory() + "\n");
}

using VirtualLocalRank = JobTest;

TEST_F(VirtualLocalRank, GivesEveryWorkerRankZeroAndOneVisibleDevice) {
  const std::string script =
      ShellScript("train.sh", "echo $LOCAL_RANK $CUDA_VISIBLE_DEVICES > $OUT/rank$RANK");
  EXPECT_THAT(Run({"run", "--nproc_per_node=2", "--virtual_local_rank", script},
                  {{"CUDA_VISIBLE_DEVICES", "4,6"}}),
              ExitsWith(0));
  EXPECT_EQ(ReadOut("rank0"), "0 4\n");
  EXPECT_EQ(ReadOut("rank1"), "0 6\n");
}

TEST_F(Worker, InheritsTheVisibleDevicesOtherwise) {
  const std::string script =
      ShellScript("train.sh", "echo $LOCAL_RANK $CUDA_VISIBLE_DEVICES > $OUT/rank$RANK");
  EXPECT_THAT(Run({"run", "--nproc_per_node=2", script}, {{"CUDA_VISIBLE_DEVICES", "4,6"}}),
              ExitsWith(0));
  EXPECT_EQ(ReadOut("rank1"), "1 4,6\n");
}

TEST_F(Worker, NeverSeesTheSecret) {
  const std::string script = ShellScript("train.sh", "echo ${MUSTER_TOKEN:-withheld}");
  EXPECT_EQ(Run({"run", script}, {{"MUSTER_TOKEN", std::string(64, 'a')}}).out, "withheld\n");
}

using RuntimeDirectory = JobTest;

TEST_F(RuntimeDirectory, IsPrivateAndGoneWhenTheJobHasEnded) {
  const std::string script = ShellScript("train.sh",
                                         "echo $MUSTER_AGENT_SOCKET > $OUT/socket\nstat -c %a "
                                         "$(dirname $MUSTER_AGENT_SOCKET) > $OUT/mode");
  EXPECT_THAT(Run({"run", script}), ExitsWith(0));
  std::string socket = ReadOut("socket");
  ASSERT_GT(socket.size(), 1u);
  socket.pop_back();
  EXPECT_EQ(ReadOut("mode"), "700\n");
  EXPECT_TRUE(WaitUntil([&] { return !FileExists(socket.substr(0, socket.rfind('/'))); }))
      << socket;
}

}  // namespace
}  // namespace muster::testing
