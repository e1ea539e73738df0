// `muster run` on one node: exit codes, the summary, the script rule, the console.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/job_under_test.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

std::vector<std::string> Lines(const std::string& text) {
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

using ExitCode = JobTest;

TEST_F(ExitCode, IsZeroWhenEveryWorkerSucceeds) {
  const std::string script = ShellScript("train.sh", "touch $OUT/rank$RANK");
  EXPECT_THAT(Run({"run", "--nproc_per_node=4", script}), ExitsWith(0));
  EXPECT_THAT(FilesBelow(out()), UnorderedElementsAre("rank0", "rank1", "rank2", "rank3"));
}

TEST_F(ExitCode, IsThatOfTheFailingWorkerAndTheOthersAreStopped) {
  const std::string script = ShellScript("train.sh", "[ $RANK = 2 ] && exit 85\nexec sleep 1000");
  EXPECT_THAT(Run({"run", "--nproc_per_node=3", script}), ExitsWith(85));
}

TEST_F(ExitCode, Is128PlusTheSignalThatKilledTheWorker) {
  const std::string script =
      ShellScript("train.sh", "[ $RANK = 1 ] && kill -9 $$\nexec sleep 1000");
  const SubprocessResult result = Run({"run", "--nproc_per_node=2", script});
  EXPECT_THAT(result, ExitsWith(137));
  EXPECT_THAT(result.err, HasSubstr("muster did not send this SIGKILL"));
}

TEST_F(ExitCode, IsKeptWhenTheCallerIgnoresSigchld) {
  SubprocessOptions options =
      OptionsFor({"run", "--nproc_per_node=2", ShellScript("train.sh", "exit 7")});
  options.ignored_signals = {SIGCHLD};
  EXPECT_THAT(Subprocess(options).Wait(), ExitsWith(7));
}

using Temporary = JobTest;

// Batch systems and containers set it to what is not there on every node.
TEST_F(Temporary, ThatIsAbsentIsKeptForWorkersAndNoneOfOurs) {
  const std::string script = ShellScript("train.sh", "echo $TMPDIR");
  const SubprocessResult result = Run({"run", script}, {{"TMPDIR", "/no/such/place"}});
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_EQ(result.out, "/no/such/place\n");
  EXPECT_THAT(result.err, HasSubstr("cannot create /no/such/place/"));
}

using Summary = JobTest;

TEST_F(Summary, NamesTheFirstFailingRankAndItsExitCode) {
  const std::string script = ShellScript("train.sh", "[ $RANK = 2 ] && exit 85\nexec sleep 1000");
  const SubprocessResult result = Run({"run", "--nproc_per_node=3", script});
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("train.sh"), ContainsRegex("rank[^0-9]*2"), HasSubstr("85")))
      << ToString(result);
}

TEST_F(Summary, ShowsTheLastLinesOfTheFailingWorker) {
  const std::string script = ShellScript(
      "train.sh", "[ $RANK = 1 ] && { echo 'loss is NaN' >&2; exit 1; }\nexec sleep 1000");
  const std::string err = Run({"run", "--nproc_per_node=2", "-r", "3", script}).err;
  EXPECT_THAT(err, HasSubstr("loss is NaN")) << "redirected: it can only come from the summary";
}

TEST_F(Summary, IsAbsentAfterSuccess) {
  const SubprocessResult result =
      Run({"run", "--nproc_per_node=1", ShellScript("train.sh", "exit 0")});
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.err, ::testing::Not(HasSubstr("FAILED")));
}

using Console = JobTest;

TEST_F(Console, IsInheritedByTheOnlyWorkerByteForByte) {
  const std::string script =
      ShellScript("train.sh", "printf 'a\\rb\\377\\n\\033[1mc'; printf 'warn' >&2");
  const SubprocessResult result = Run({"run", script});
  EXPECT_EQ(result.out, "a\rb\377\n\033[1mc");
  EXPECT_THAT(result.err, HasSubstr("warn"));
}

TEST_F(Console, IsReadByTheOnlyWorker) {
  SubprocessOptions options = OptionsFor({"run", ShellScript("train.sh", "exec cat")});
  options.stdin_text = "first line\nsecond line\n";
  EXPECT_EQ(Subprocess(options).Wait().out, options.stdin_text);
}

TEST_F(Console, ShowsEveryRank) {
  const std::string script = ShellScript("train.sh", "echo I am $RANK");
  const SubprocessResult result = Run({"run", "--nproc_per_node=3", script});
  EXPECT_THAT(Lines(result.out), UnorderedElementsAre("I am 0", "I am 1", "I am 2"))
      << ToString(result);
}

TEST_F(Console, KeepsStandardErrorApart) {
  const SubprocessResult result =
      Run({"run", "--nproc_per_node=2", ShellScript("train.sh", "echo oh dear >&2")});
  EXPECT_THAT(result.err, HasSubstr("oh dear"));
  EXPECT_THAT(result.out, ::testing::Not(HasSubstr("oh dear")));
}

TEST_F(Console, MayBeAFile) {
  const std::string script = ShellScript("train.sh", "echo I am $RANK");
  const std::string log = directory() + "/console.log";
  const SubprocessResult result =
      StartProgram({"/bin/sh", "-c", "exec \"$0\" \"$@\" > " + log, MusterBinary(), "run",
                    "--nproc_per_node=2", script})
          .Wait();
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(ReadFile(log), AllOf(HasSubstr("I am 0"), HasSubstr("I am 1")));
}

using Script = JobTest;

// torchrun does the same: ${local_rank} and $$ become the number and $.
TEST_F(Script, GetsItsArgumentsWithTheLocalRankFilledIn) {
  const std::string script = ShellScript("train.sh", "printf '<%s>' \"$@\"");
  const Arguments args = {
      "--nproc_per_node=7", "$$", "${local_rank}", "", "--help", "a  b", "-m", "--", "--r"};
  EXPECT_EQ(Run(Arguments{"run", "--nproc_per_node=1", script} + args).out,
            "<--nproc_per_node=7><$><0><><--help><a  b><-m><--><--r>");
}

TEST_F(Script, MayHaveTheNameOfASubcommandBehindASlash) {
  ShellScript("plan", "echo \"a script: $1\"");
  EXPECT_EQ(Run({"./plan", "x"}).out, "a script: x\n");
}

TEST_F(Script, WithTheSuffixPyIsRunByUnbufferedPython) {
  const std::string script =
      PythonScript("train.py", "import sys\nprint(sys.argv[1:], sys.stdout.write_through)\n");
  EXPECT_EQ(Run({"run", script, "--lr", "1e-3"}).out, "['--lr', '1e-3'] True\n");
}

TEST_F(Script, IsAModuleWithTheOptionM) {
  PythonScript("trainer.py", "import sys\nprint(__name__, sys.argv[1:])\n");
  EXPECT_EQ(Run({"run", "-m", "trainer", "--lr"}).out, "__main__ ['--lr']\n");
}

TEST_F(Script, IsLookedUpInPathWithNoPython) {
  EXPECT_EQ(Run({"run", "--no_python", "printf", "%s", "hello"}).out, "hello");
}

TEST_F(Script, IsRunByThePythonOfPythonExec) {
  const std::string python = ShellScript("mypython", "echo mine \"$@\"");
  const std::string script = PythonScript("train.py", "");
  EXPECT_EQ(Run({"run", script, "x"}, {{"PYTHON_EXEC", python}}).out,
            absl::StrCat("mine -u ", script, " x\n"));
}

TEST_F(Script, ThatIsExecutableAndAPythonTextIsRunByTheChosenPython) {
  const std::string python = ShellScript("mypython", "echo mine \"$@\"");
  for (const char* head : {"#!/usr/bin/env python3\n", "#!/no/such/python\n", ""}) {
    const std::string script = directory() + "/train";
    WriteFile(script, absl::StrCat(head, "print('theirs')\n"));
    ASSERT_EQ(chmod(script.c_str(), 0755), 0);
    EXPECT_EQ(Run({"run", script, "x"}, {{"PYTHON_EXEC", python}}).out,
              absl::StrCat("mine -u ", script, " x\n"))
        << head;
  }
}

TEST_F(Script, ThatCannotImportSomethingIsToldWhichPythonRanIt) {
  const SubprocessResult result =
      Run({"run", PythonScript("train.py", "import no_such_module_of_ours\n")});
  EXPECT_THAT(result, ExitsWith(1));
  EXPECT_THAT(result.err, ContainsRegex("python    : /[^ ]*python3[^ ]* \\(.*PYTHON_EXEC"));
}

TEST_F(Script, MayFollowWithoutTheSubcommand) {
  EXPECT_EQ(Run({ShellScript("train.sh", "echo ran"), "run"}).out, "ran\n");
}

TEST_F(Script, RunsUnderALinkNamedTorchrun) {
  const std::string link = directory() + "/torchrun";
  ASSERT_EQ(symlink(MusterBinary().c_str(), link.c_str()), 0);
  // "agent" is a subcommand of muster; torchrun has none, so here it is the program.
  ShellScript("agent", "echo $WORLD_SIZE");
  EXPECT_EQ(StartProgram({link, "--nproc-per-node", "1", directory() + "/agent"}).Wait().out,
            "1\n");
}

using Options = JobTest;

TEST_F(Options, ComeFromPetVariablesToo) {
  const std::string script = ShellScript("train.sh", "touch $OUT/rank$RANK");
  EXPECT_THAT(Run({"run", script}, {{"PET_NPROC_PER_NODE", "3"}, {"PET_STANDALONE", "true"}}),
              ExitsWith(0));
  EXPECT_THAT(FilesBelow(out()), UnorderedElementsAre("rank0", "rank1", "rank2"));
}

TEST_F(Options, OfTheCommandLineWinOverPetVariables) {
  const std::string script = ShellScript("train.sh", "touch $OUT/rank$RANK");
  EXPECT_THAT(Run({"run", "--nproc-per-node=1", script}, {{"PET_NPROC_PER_NODE", "3"}}),
              ExitsWith(0));
  EXPECT_THAT(FilesBelow(out()), UnorderedElementsAre("rank0"));
}

using TwoJobs = JobTest;

TEST_F(TwoJobs, WithDefaultOptionsRunBesideEachOther) {
  const std::string script = ShellScript(
      "train.sh",
      "touch $OUT/$1.$RANK\nwhile [ ! -e $OUT/go ]; do sleep 0.05; done\necho port=$MASTER_PORT");
  Subprocess one = Start({"run", "--nproc_per_node=2", script, "one"});
  Subprocess other = Start({"run", "--nproc_per_node=2", script, "other"});
  for (const char* worker : {"one.0", "one.1", "other.0", "other.1"})
    EXPECT_TRUE(WaitForOut(worker)) << worker;
  WriteFile(Out("go"), "");
  EXPECT_THAT(one.Wait(), ExitsWith(0));
  EXPECT_THAT(other.Wait(), ExitsWith(0));
}

}  // namespace
}  // namespace muster::testing
