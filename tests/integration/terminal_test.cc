// muster at a terminal: bars, keys, the size of the window, Ctrl-C and Ctrl-Z.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/support/job_under_test.h"
#include "tests/support/terminal_session.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

class Terminal : public JobTest {
 protected:
  // `muster` with the options, and a Python program.
  std::unique_ptr<TerminalSession> StartAt(TerminalSize size, const Arguments& options,
                                           const std::string& program) {
    return std::make_unique<TerminalSession>(
        OptionsFor(Arguments{"run"} + options + Arguments{PythonScript("train.py", program)},
                   {{"TERM", "xterm"}}),
        size);
  }
  std::unique_ptr<TerminalSession> Start(const Arguments& options, const std::string& program) {
    return StartAt({}, options, program);
  }
};

// Waits for a file that the test makes.
constexpr char kAwait[] = R"(
import os, sys, time
rank = int(os.environ['RANK'])
def wait_for(name):
    while not os.path.exists(os.environ['OUT'] + '/' + name): time.sleep(0.01)
)";

TEST_F(Terminal, IsWhatEveryStreamOfAWorkerIs) {
  auto session = Start({"--nproc_per_node=2"},
                       "import sys\nprint(sys.stdout.isatty(), sys.stderr.isatty())\n");
  EXPECT_THAT(session->Wait(), ExitsWith(0));
  EXPECT_THAT(session->Screen(), AllOf(HasSubstr(":0] True True"), HasSubstr(":1] True True")));
}

TEST_F(Terminal, HasTheBarsOfSeveralWorkersEachInItsPlace) {
  auto session = Start({"--nproc_per_node=2"}, absl::StrCat(kAwait, R"(
for i in range(1, 11):
    sys.stdout.write('\rstep %d/10' % i); sys.stdout.flush()
    time.sleep(0.05)
print()
wait_for('go')
print('loss of', rank)
)"));
  ASSERT_TRUE(session->WaitForScreen("0] step 10/10") && session->WaitForScreen("1] step 10/10"))
      << session->Screen();
  WriteFile(Out("go"), "");
  EXPECT_THAT(session->Wait(), ExitsWith(0));
  std::string screen = session->Screen();
  EXPECT_THAT(screen, AllOf(HasSubstr("0] loss of 0"), HasSubstr("1] loss of 1")));
  EXPECT_THAT(screen, Not(HasSubstr("step 9/10"))) << "a bar is drawn over, not written again";
}

TEST_F(Terminal, ShowsALineOfOneWorkerAboveTheBarOfAnother) {
  auto session = Start({"--nproc_per_node=2"}, absl::StrCat(kAwait, R"(
if rank == 0:
    sys.stdout.write('\r50%'); sys.stdout.flush()
    wait_for('go')
    sys.stdout.write('\r100%\n')
else:
    wait_for('say')
    print('saved')
    wait_for('go')
)"));
  ASSERT_TRUE(session->WaitForScreen("0] 50%"));
  WriteFile(Out("say"), "");
  ASSERT_TRUE(session->WaitForScreen("1] saved"));
  ASSERT_TRUE(session->WaitForScreen("0] 50%")) << "drawn again below the line";
  EXPECT_THAT(session->Screen(), MatchesRegex("\\[[^]]+:1\\] saved *\n\\[[^]]+:0\\] 50%"));
  WriteFile(Out("go"), "");
  EXPECT_THAT(session->Wait(), ExitsWith(0));
  EXPECT_THAT(session->Screen(), HasSubstr("0] 100%"));
}

constexpr char kTellsItsSize[] = R"(
import os, signal, sys, time
def tell(*_): print('columns', os.get_terminal_size(sys.stdout.fileno()).columns, flush=True)
signal.signal(signal.SIGWINCH, tell)
tell()
while not os.path.exists(os.environ['OUT'] + '/go'): time.sleep(0.01)
)";

TEST_F(Terminal, HasTheWindowsWidthForAnOnlyWorkerAndFollowsIt) {
  auto session = StartAt({.columns = 91}, {}, kTellsItsSize);
  ASSERT_TRUE(session->WaitForOutput("columns 91")) << session->output();
  session->Resize({.columns = 123});
  EXPECT_TRUE(session->WaitForOutput("columns 123")) << session->output();
  WriteFile(Out("go"), "");
  EXPECT_THAT(session->Wait(), ExitsWith(0));
}

TEST_F(Terminal, HasTheWindowsWidthLessThePrefixForSeveral) {
  auto session = StartAt({.columns = 91},
                         {"--nproc_per_node=2", "--log_line_prefix_template=12345"}, kTellsItsSize);
  ASSERT_TRUE(session->WaitForOutput("columns 86")) << session->output();
  session->Resize({.columns = 100});
  EXPECT_TRUE(session->WaitForOutput("columns 95")) << session->output();
  WriteFile(Out("go"), "");
  EXPECT_THAT(session->Wait(), ExitsWith(0));
}

TEST_F(Terminal, GivesItsInputToAnOnlyWorker) {
  auto session = Start({}, "name = input('Name: ')\nprint('hello', name)\n");
  ASSERT_TRUE(session->WaitForOutput("Name: ")) << session->output();
  EXPECT_FALSE(session->IsInLineMode()) << "the worker's terminal edits the line";
  session->Type("Adax\x7f\r");
  EXPECT_THAT(session->Wait(), ExitsWith(0));
  EXPECT_THAT(session->Screen(), MatchesRegex("Name: Ada *\nhello Ada"));
  EXPECT_TRUE(session->IsInLineMode()) << "the shell gets its terminal back";
}

TEST_F(Terminal, LetsPdbWork) {
  auto session = Start({}, "loss = 2.5\nbreakpoint()\nprint('after', loss)\n");
  ASSERT_TRUE(session->WaitForOutput("(Pdb) ")) << session->output();
  session->Type("p loss * 2\r");
  ASSERT_TRUE(session->WaitForOutput("5.0")) << session->output();
  session->Type("loss = 7\r");
  session->Type("c\r");
  EXPECT_THAT(session->Wait(), ExitsWith(0));
  EXPECT_THAT(session->Screen(), HasSubstr("after 7"));
}

TEST_F(Terminal, EndsTheInputOfAnOnlyWorkerAtCtrlD) {
  auto session =
      Start({}, "import sys\nprint('ready', flush=True)\nprint(len(sys.stdin.read()))\n");
  ASSERT_TRUE(session->WaitForOutput("ready"));
  session->Type("ab\r\x04");
  EXPECT_THAT(session->Wait(), ExitsWith(0));
  EXPECT_THAT(session->Screen(), HasSubstr("\n3"));
}

TEST_F(Terminal, PassesCtrlCToEachWorkerOnce) {
  auto session = Start({"--nproc_per_node=2"}, R"(
import os, signal, sys, time
def note(*_):
    open(os.environ['OUT'] + '/signals' + os.environ['RANK'], 'a').write('SIGINT\n')
    time.sleep(0.5); sys.exit(0)
signal.signal(signal.SIGINT, note)
print('ready', flush=True)
while True: time.sleep(0.1)  # pause() would miss a signal that comes just before it
)");
  ASSERT_TRUE(session->WaitForScreen("0] ready") && session->WaitForScreen("1] ready"));
  session->Type("\x03");
  EXPECT_THAT(session->Wait(), ExitsWith(130));
  EXPECT_EQ(ReadOut("signals0") + ReadOut("signals1"), "SIGINT\nSIGINT\n");
}

TEST_F(Terminal, PassesCtrlCToAnOnlyWorkerThatReadsItsInput) {
  // Python's own handler can miss a signal that comes just before it waits for a line.
  auto session = Start({},
                       "import signal\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\n"
                       "input('Name: ')\n");
  ASSERT_TRUE(session->WaitForOutput("Name: "));
  session->Type("\x03");
  EXPECT_THAT(session->Wait(), ExitsWith(130));
  EXPECT_TRUE(session->IsInLineMode());
}

TEST_F(Terminal, IsTheShellsWhileCtrlZHasStoppedUs) {
  auto session = Start({}, "name = input('Name: ')\nprint('hello', name)\n");
  ASSERT_TRUE(session->WaitForOutput("Name: "));
  session->Type("\x1a");
  ASSERT_TRUE(session->WaitUntilStopped());
  EXPECT_TRUE(session->IsInLineMode());
  kill(session->pid(), SIGCONT);
  ASSERT_TRUE(WaitUntil([&] { return !session->IsInLineMode(); }));
  session->Type("Ada\r");
  EXPECT_THAT(session->Wait(), ExitsWith(0));
  EXPECT_THAT(session->Screen(), HasSubstr("hello Ada"));
}

TEST_F(Terminal, ShowsTheLastLinesOfAnOnlyWorkerInTheSummary) {
  auto session = Start({}, "print('step 1')\nraise ValueError('bad shape')\n");
  EXPECT_THAT(session->Wait(), ExitsWith(1));
  EXPECT_THAT(absl::StrReplaceAll(session->output(), {{"\r", ""}}),
              ContainsRegex("output    : [^=]*ValueError: bad shape"));
}

// The job runs in a mount namespace whose devpts has room for one, which is taken.
TEST_F(Terminal, IsAPipeForWorkersWhereNoPseudoTerminalIsLeft) {
  SubprocessOptions options =
      OptionsFor({"run", "--nproc_per_node=2",
                  PythonScript("train.py", "import sys\nprint(sys.stdout.isatty())\n")},
                 {{"TERM", "xterm"}});
  const Arguments without = {
      "/usr/bin/unshare",
      "--mount",
      "/bin/sh",
      "-c",
      "mount -t devpts -o newinstance,max=1 devpts /dev/pts && "
      "mount --bind /dev/pts/ptmx /dev/ptmx && exec 9<>/dev/ptmx && exec \"$@\"",
      "sh"};
  SubprocessOptions probe = options;
  probe.argv = without + Arguments{"/bin/true"};
  if (Subprocess(probe).Wait().exit_code != 0)
    GTEST_SKIP() << "no mount namespace may be made here";
  options.argv = without + options.argv;
  TerminalSession session(options);
  EXPECT_THAT(session.Wait(), ExitsWith(0));
  EXPECT_THAT(session.Screen(), AllOf(HasSubstr(":0] False"), HasSubstr(":1] False")));
}

TEST_F(Terminal, LeavesFilesOfTeedStreamsAsUnderTorchrun) {
  auto session = Start({"-t", "3", "--log_dir=" + directory() + "/logs"},
                       "import sys\nprint(sys.stdout.isatty())\n");
  EXPECT_THAT(session->Wait(), ExitsWith(0));
  EXPECT_THAT(session->Screen(), HasSubstr("[default0]:False"));
}

TEST_F(Terminal, SurvivesALotOfOutput) {
  auto session =
      Start({"--nproc_per_node=2"},
            "import os\nfor i in range(5000): print('line', i, 'of', os.environ['RANK'])\n");
  EXPECT_THAT(session->Wait(), ExitsWith(0));
  const std::string screen = session->Screen();
  for (int rank : {0, 1}) {
    for (int i : {0, 1234, 4999})
      EXPECT_THAT(screen, HasSubstr(absl::StrCat(":", rank, "] line ", i, " of ", rank)));
  }
}

// The error file of a worker has whatever its exception said, as has its output.
TEST_F(Terminal, IsSteeredByNoFailureOfAWorker) {
  auto session = Start({"--nproc_per_node=2"}, R"(
import json, os, sys
evil = 'boom \033]52;c;eA==\a\033[2J\u009b2J'
sys.stderr.buffer.write((evil + '\n').encode())
record = {'message': evil, 'extraInfo': {'py_callstack': evil, 'timestamp': '1'}}
json.dump({'message': record}, open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w'))
sys.exit(3)
)");
  EXPECT_THAT(session->Wait(), ExitsWith(3));
  EXPECT_THAT(session->output(), AllOf(HasSubstr("boom"), Not(HasSubstr("\033]52")),
                                       Not(HasSubstr("\033[2J")), Not(HasSubstr("\302\233"))));
}

}  // namespace
}  // namespace muster::testing
