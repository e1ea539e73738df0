#include "tests/support/subprocess.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "tests/support/files.h"

namespace muster::testing {
namespace {

Subprocess StartShell(const std::string& commands, SubprocessOptions options = {}) {
  options.argv = {"/bin/sh", "-c", commands};
  options.environment.emplace("PATH", "/usr/bin:/bin");
  return Subprocess(options);
}

TEST(Subprocess, ReportsTheExitCodeAndBothStreams) {
  const SubprocessResult result = StartShell("echo out; echo err >&2; exit 7").Wait();
  EXPECT_TRUE(result.ended);
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_EQ(result.out, "out\n");
  EXPECT_EQ(result.err, "err\n");
}

TEST(Subprocess, ReportsTheSignalThatEndedIt) {
  Subprocess shell = StartShell("echo ready; exec sleep 1000");
  ASSERT_TRUE(shell.WaitForOutput("ready"));
  shell.Signal(SIGTERM);
  EXPECT_EQ(shell.Wait().signal, SIGTERM);
}

TEST(Subprocess, SaysThatItStillRunsAtTheDeadline) {
  EXPECT_FALSE(StartShell("exec sleep 1000").Wait(absl::Milliseconds(20)).ended);
}

TEST(Subprocess, HandsOverItsStandardInputAndThenTheEndOfFile) {
  EXPECT_EQ(StartShell("cat", {.stdin_text = "a\nb"}).Wait().out, "a\nb");
}

TEST(Subprocess, InheritsNoVariableOfTheTest) {
  setenv("OF_THE_TEST", "1", 1);
  EXPECT_EQ(StartShell("echo ${OF_THE_TEST:-absent}").Wait().out, "absent\n");
}

TEST(Subprocess, StartsInTheGivenDirectory) {
  const TemporaryDirectory directory;
  EXPECT_EQ(StartShell("pwd", {.working_directory = directory.path()}).Wait().out,
            directory.path() + "\n");
}

TEST(Subprocess, StartsWithOnlyTheGivenSignalsIgnored) {
  const std::string ignored =
      StartShell("exec grep SigIgn /proc/self/status", {.ignored_signals = {SIGHUP}}).Wait().out;
  EXPECT_EQ(ignored, "SigIgn:\t0000000000000001\n");
}

TEST(Subprocess, NeverBlocksOnMuchOutput) {
  const SubprocessResult result = StartShell("head -c 1000000 /dev/zero").Wait();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out.size(), 1000000u);
}

TEST(Subprocess, DoesNotWaitForADescendantThatKeepsItsOutputOpen) {
  const SubprocessResult result = StartShell("sleep 1000 & echo $!").Wait();
  EXPECT_TRUE(result.ended);
  kill(std::stoi(result.out), SIGKILL);
}

TEST(Subprocess, SeesAtOnceThatTheAwaitedTextCannotComeAnyMore) {
  EXPECT_FALSE(StartShell("echo something else").WaitForOutput("ready"));
}

TEST(WaitUntil, GivesUpAtTheDeadline) {
  EXPECT_FALSE(WaitUntil([] { return false; }, absl::Milliseconds(10)));
}

}  // namespace
}  // namespace muster::testing
