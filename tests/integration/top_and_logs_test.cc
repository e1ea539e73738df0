// `muster top` and `muster logs` of real jobs: over two nodes, on a terminal, with the GPUs of a
// mock of NVML, and with a log that is too large to be read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/integration/several_nodes.h"
#include "tests/support/files.h"
#include "tests/support/terminal_session.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kLong = absl::Seconds(90);

class TopAndLogs : public SeveralNodes {
 protected:
  // Runs it until the output holds all of `words`.
  SubprocessResult RunUntil(const Arguments& arguments,
                            const std::vector<std::string>& words) const {
    SubprocessResult result;
    WaitUntil(
        [&] {
          result = Run(arguments);
          return std::all_of(words.begin(), words.end(), [&](const std::string& word) {
            return absl::StrContains(result.out, word);
          });
        },
        kLong);
    return result;
  }
  std::string Sleeping() const {
    return ShellScript("sleeps.sh",
                       "echo $$ > $OUT/part.$RANK && mv $OUT/part.$RANK $OUT/pid.$RANK\n"
                       "exec sleep 1000\n");
  }
  // Each rank prints four lines, its last one when $OUT/go is there, and ends with $OUT/end.
  std::string Printing() const {
    return ShellScript("prints.sh",
                       "for i in 1 2 3; do echo line $i of $RANK; done\n"
                       "echo alike\n"
                       "echo > $OUT/printed.$RANK\n"
                       "until [ -e $OUT/go ]; do sleep 0.05; done\n"
                       "echo last of $RANK\n"
                       "until [ -e $OUT/end ]; do sleep 0.05; done\n");
  }
  Arguments KeepsLogs() const {
    return {"--nproc_per_node=2", "--redirects=3", "--log_dir=" + logs()};
  }
  std::string logs() const { return directory() + "/logs"; }
  static void End(Subprocess& job) {
    job.Signal(SIGTERM);
    EXPECT_THAT(job.Wait(kLong), ExitsWith(128 + SIGTERM));
  }
};

TEST_F(TopAndLogs, TopShowsTheRanksOfBothNodes) {
  Subprocess first = StartElastic(1, "2", {"--nproc_per_node=2", Sleeping()});
  Subprocess second = StartElastic(2, "2", {"--nproc_per_node=2", Sleeping()});
  const Arguments top = {"top", "--rdzv_endpoint=" + endpoint(), "elastic"};
  const SubprocessResult result = RunUntil(top, {"2 nodes, 4 ranks"});
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, AllOf(HasSubstr("job elastic: healthy"), HasSubstr("\n    3 ")));
  const SubprocessResult one = Run(top + Arguments{"--rank=2"});
  EXPECT_THAT(one.out, AllOf(HasSubstr("\n    2 "), Not(HasSubstr("\n    3 "))));
  first.Signal(SIGINT);
  first.Wait(kLong);
  second.Wait(kLong);
}

TEST_F(TopAndLogs, TopOnATerminalSortsFiltersResizesAndQuits) {
  Subprocess job = Start({"run", "--rdzv_id=here", "--nproc_per_node=3", Sleeping()});
  EXPECT_THAT(RunUntil({"top", "here"}, {"1 node, 3 ranks"}), ExitsWith(0));
  TerminalSession top(OptionsFor({"top", "here"}, {{"TERM", "xterm"}}));
  ASSERT_TRUE(top.WaitForScreen("job here: healthy", kLong)) << top.Screen();
  EXPECT_TRUE(top.WaitForScreen("\n    2 ", kLong)) << top.Screen();
  top.Type("s");
  EXPECT_TRUE(top.WaitForScreen("rank", kLong)) << top.Screen();
  top.Type("f1\r");
  EXPECT_TRUE(WaitUntil(
      [&] {
        top.WaitForScreen("never", absl::Milliseconds(100));
        return absl::StrContains(top.Screen(), "\n    1 ") &&
               !absl::StrContains(top.Screen(), "\n    2 ");
      },
      kLong))
      << top.Screen();
  top.Resize({.columns = 120, .rows = 40});
  EXPECT_TRUE(top.WaitForScreen("job here: healthy", kLong)) << top.Screen();
  top.Type("q");
  EXPECT_THAT(top.Wait(kLong), ExitsWith(0));
  EXPECT_TRUE(top.IsInLineMode());
  End(job);
}

TEST_F(TopAndLogs, TopShowsGpusAndWhatSlowsThem) {
  std::filesystem::create_symlink(Built("libfake_nvml.so"), directory() + "/libnvidia-ml.so.1");
  Subprocess job =
      Start({"run", "--rdzv_id=gpus", "--nproc_per_node=gpu", Sleeping()},
            {{"LD_LIBRARY_PATH", directory()},
             {"FAKE_NVML",
              absl::StrCat("num_gpus=2 gpu1.slow_reasons=0x40 gpu0.used_mib=40960 gpu0.pid_file=",
                           Out("pid.0"), " gpu1.pid_file=", Out("pid.1"))}});
  const SubprocessResult result = RunUntil({"top", "gpus"}, {"slowed: heat"});
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, AllOf(HasSubstr("slowed: heat"), HasSubstr("40G")));
  End(job);
}

TEST_F(TopAndLogs, LogsGatherTheLinesOfAllNodes) {
  std::vector<Subprocess> agents;
  for (const int node : {1, 2}) {
    agents.push_back(StartElastic(node, "2", KeepsLogs() + Arguments{Printing()}));
  }
  for (const int rank : {0, 1, 2, 3}) ASSERT_TRUE(WaitForOut(absl::StrCat("printed.", rank)));
  const Arguments way = {"--rdzv_endpoint=" + endpoint(), "elastic"};
  const SubprocessResult all = RunUntil(Arguments{"logs"} + way, {"line 3 of 0", "line 3 of 3"});
  EXPECT_THAT(all, ExitsWith(0));
  EXPECT_THAT(
      Run(Arguments{"logs", "--rank=3", "-n2"} + way).out,
      AllOf(HasSubstr("line 3 of 3"), Not(HasSubstr("line 1 of 3")), Not(HasSubstr("of 2"))));
  const std::string merged = Run(Arguments{"logs", "--merge"} + way).out;
  EXPECT_EQ(merged.find("alike"), merged.rfind("alike")) << merged;
  Subprocess follows = Start(Arguments{"logs", "--follow"} + way);
  EXPECT_TRUE(follows.WaitForOutput("line 3 of 2", kLong));
  WriteFile(Out("go"), "");
  for (const int rank : {0, 1, 2, 3}) {
    EXPECT_TRUE(follows.WaitForOutput(absl::StrCat("last of ", rank), kLong));
  }
  WriteFile(Out("end"), "");
  follows.Wait(kLong);
  for (Subprocess& agent : agents) EXPECT_THAT(agent.Wait(kLong), ExitsWith(0));
}

// What a rank prints would fill the clipboard of whoever looks at it, and clear the screen. Another
// program may want it as it is.
TEST_F(TopAndLogs, LogsSteerNoTerminalAndStayAsTheyAreInAPipe) {
  const std::string evil = "\033]52;c;eA==\007\033[2J\302\2332J";
  const std::string script = ShellScript(
      "evil.sh", absl::StrCat("printf '", absl::CEscape(evil), "\\033[31mred\\033[0m\\n'\n",
                              "printf 'Error: ", absl::CEscape(evil), "\\n' >&2\n",
                              "echo > $OUT/printed\nuntil [ -e $OUT/end ]; do sleep 0.05; done\n"));
  Subprocess job = Start(Arguments{"run", "--rdzv_id=evil"} + KeepsLogs() +
                         Arguments{"--nproc_per_node=1", script});
  ASSERT_TRUE(WaitForOut("printed"));
  for (const Arguments& how : std::vector<Arguments>{{}, {"--merge"}, {"--first_error"}}) {
    const Arguments logs = Arguments{"logs"} + how + Arguments{"evil"};
    EXPECT_THAT(Run(logs).out, HasSubstr(evil));
    TerminalSession session(OptionsFor(logs, {{"TERM", "xterm"}}));
    const SubprocessResult shown = session.Wait(kLong);
    EXPECT_THAT(shown, ExitsWith(0));
    EXPECT_THAT(shown.out, AllOf(HasSubstr("<U+001B>]52;c;eA==<U+0007><U+001B>[2J<U+009B>2J"),
                                 Not(HasSubstr("\033]")), Not(HasSubstr("\033[2J")),
                                 Not(HasSubstr("\302\233"))));
    EXPECT_TRUE(!how.empty() || absl::StrContains(shown.out, "\033[31mred\033[0m")) << shown.out;
  }
  WriteFile(Out("end"), "");
  EXPECT_THAT(job.Wait(kLong), ExitsWith(0));
}

// After the end nobody answers, and what matters most may stand there.
TEST_F(TopAndLogs, FollowingShowsWhatRanksPrintAtTheirEnd) {
  const std::string script =
      ShellScript("ends.sh",
                  "echo begins\n"
                  "echo > $OUT/begun.$RANK\n"
                  "until [ -e $OUT/end ]; do sleep 0.05; done\n"
                  "echo last of $RANK\n"
                  "[ $RANK != 3 ] || until [ -e $OUT/fail ]; do sleep 0.05; done\n"
                  "[ $RANK != 3 ] || { echo Error: of $RANK >&2; exit 7; }\n");
  std::vector<Subprocess> agents;
  for (const int node : {1, 2}) {
    agents.push_back(StartElastic(node, "2", KeepsLogs() + Arguments{script}));
  }
  for (const int rank : {0, 1, 2, 3}) ASSERT_TRUE(WaitForOut(absl::StrCat("begun.", rank)));
  Subprocess follows =
      Start(Arguments{"logs", "--follow", "--rdzv_endpoint=" + endpoint(), "elastic"});
  for (const int rank : {0, 1, 2, 3}) {
    ASSERT_TRUE(follows.WaitForOutput(absl::StrCat("[", rank, "] begins"), kLong));
  }
  WriteFile(Out("end"), "");
  for (const int rank : {0, 1, 2, 3}) {
    EXPECT_TRUE(follows.WaitForOutput(absl::StrCat("[", rank, "] last of ", rank), kLong));
  }
  WriteFile(Out("fail"), "");
  const SubprocessResult followed = follows.Wait(kLong);
  EXPECT_THAT(followed, ExitsWith(0));
  EXPECT_THAT(followed.out, HasSubstr("[3 stderr] Error: of 3"));
  for (Subprocess& agent : agents) EXPECT_THAT(agent.Wait(kLong), ExitsWith(7));
}

// A hole, so that it takes no place: reading all of it would take minutes.
TEST_F(TopAndLogs, LogsOfTenGigabytesAreReadFromTheirEnd) {
  Subprocess job = Start(Arguments{"run", "--rdzv_id=large"} + KeepsLogs() + Arguments{Printing()});
  ASSERT_TRUE(WaitForOut("printed.0") && WaitForOut("printed.1"));
  std::string log;
  for (const std::string& file : FilesBelow(logs())) {
    if (absl::EndsWith(file, "attempt_0/0/stdout.log")) log = absl::StrCat(logs(), "/", file);
  }
  ASSERT_NE(log, "");
  std::filesystem::resize_file(log, uintmax_t{10} << 30);
  EXPECT_THAT(Run({"status", "large"}), ExitsWith(0));
  const SubprocessResult other = Run({"logs", "--rank=1", "large"});
  EXPECT_THAT(other, ExitsWith(0));
  EXPECT_THAT(other.out, HasSubstr("line 3 of 1"));
  EXPECT_THAT(Run({"logs", "--lines=5", "large"}), ExitsWith(0));
  std::filesystem::resize_file(log, 0);
  for (const char* name : {"go", "end"}) WriteFile(Out(name), "");
  EXPECT_THAT(job.Wait(kLong), ExitsWith(0));
}

}  // namespace
}  // namespace muster::testing
