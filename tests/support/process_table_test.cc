#include "tests/support/process_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/files.h"
#include "tests/support/subprocess.h"

namespace muster::testing {
namespace {

using ::testing::Contains;
using ::testing::IsEmpty;

// The pid makes it unique among tests that run beside this one.
std::string Mark() { return absl::StrCat("TABLE_TEST_MARK=", getpid()); }

Subprocess StartMarkedShell(const std::string& commands) {
  return Subprocess(
      {.argv = {"/bin/sh", "-c", commands},
       .environment = {{"PATH", "/usr/bin:/bin"}, {"TABLE_TEST_MARK", std::to_string(getpid())}}});
}

TEST(ProcessTable, FindsMarkedDescendantsInSessionsOfTheirOwn) {
  Subprocess shell = StartMarkedShell("setsid sleep 1000 & echo started; wait");
  ASSERT_TRUE(shell.WaitForOutput("started"));
  EXPECT_TRUE(WaitUntil([] { return ProcessesWith(Mark()).size() == 2; }));
  // A process in the middle of an exec shows no environment, so one look may miss it.
  EXPECT_TRUE(WaitUntil([] {
    const std::vector<pid_t> found = ProcessesWith(Mark());
    for (pid_t pid : found) kill(pid, SIGKILL);
    return found.empty();
  }));
}

TEST(ProcessTable, FindsChildrenByTheirName) {
  Subprocess shell = StartMarkedShell("exec sleep 1000");
  EXPECT_THAT(ChildrenOf(getpid()), Contains(shell.pid()));
  EXPECT_TRUE(WaitUntil([&] { return NameOf(shell.pid()) == "sleep"; }));
  // An exec sets the name before the arguments.
  EXPECT_TRUE(WaitUntil([&] { return absl::StrContains(Describe({shell.pid()}), "sleep 1000"); }))
      << Describe({shell.pid()});
}

TEST(ProcessTable, DoesNotCountAZombie) {
  Subprocess shell = StartMarkedShell("exit 0");
  const std::string stat = absl::StrCat("/proc/", shell.pid(), "/stat");
  ASSERT_TRUE(WaitUntil([&] { return ReadFile(stat).find(") Z ") != std::string::npos; }));
  EXPECT_THAT(ProcessesWith(Mark()), IsEmpty());
}

}  // namespace
}  // namespace muster::testing
