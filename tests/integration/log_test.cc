// Log folder, redirects, tee, filters, console.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/job_under_test.h"
#include "tests/support/loopback_port.h"
#include "tests/support/small_file_system.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::Pair;
using ::testing::UnorderedElementsAreArray;

constexpr char kSpeaks[] = "echo out of $LOCAL_RANK\necho err of $LOCAL_RANK >&2";

class Logs : public JobTest {
 protected:
  std::string logs() const { return directory() + "/logs"; }
  SubprocessResult RunWith(const Arguments& options, const std::string& commands,
                           int expected = 0) {
    const SubprocessResult result = Run(Arguments{"run", "--rdzv_id=j7", "--log_dir=" + logs()} +
                                        options + Arguments{ShellScript("train.sh", commands)});
    EXPECT_THAT(result, ExitsWith(expected));
    return result;
  }
  // Text of the file attempt_0/`rest`, in the one folder of the run.
  std::string Log(const std::string& rest) const {
    for (const std::string& file : FilesBelow(logs())) {
      if (absl::EndsWith(file, "/attempt_0/" + rest)) return ReadFile(logs() + "/" + file);
    }
    return "(no such file)";
  }
};

TEST_F(Logs, RedirectedStreamsGoToTheFilesOfTheirRankAlone) {
  const SubprocessResult result = RunWith({"--nproc_per_node=2", "-r", "3"}, kSpeaks);
  EXPECT_EQ(Log("1/stdout.log"), "out of 1\n");
  EXPECT_EQ(Log("1/stderr.log"), "err of 1\n");
  EXPECT_THAT(result.out + result.err, AllOf(Not(HasSubstr("out of")), Not(HasSubstr("err of"))));
}

TEST_F(Logs, TheFolderOfARunBeginsWithItsId) {
  RunWith({"-r", "3"}, kSpeaks);
  EXPECT_THAT(FilesBelow(logs()),
              Each(MatchesRegex("j7_[^/]+/(attempt_0/(0/.*|node.json)|diary.jsonl)")));
}

TEST_F(Logs, TwoRunsNeverShareAFolder) {
  RunWith({"-r", "3"}, kSpeaks);
  const size_t files = FilesBelow(logs()).size();
  RunWith({"-r", "3"}, kSpeaks);
  EXPECT_EQ(FilesBelow(logs()).size(), 2 * files);
}

TEST_F(Logs, TeeWritesToFileAndConsole) {
  const SubprocessResult result = RunWith({"--nproc_per_node=2", "-t", "3"}, kSpeaks);
  EXPECT_EQ(Log("1/stdout.log"), "out of 1\n");
  EXPECT_THAT(result.out, HasSubstr("[default1]:out of 1\n"));
  EXPECT_THAT(result.err, HasSubstr("[default1]:err of 1\n"));
}

TEST_F(Logs, TeeOfTheOnlyWorkerWritesToFileAndConsole) {
  EXPECT_THAT(RunWith({"-t", "1"}, kSpeaks).out, HasSubstr("out of 0"));
  EXPECT_EQ(Log("0/stdout.log"), "out of 0\n");
}

TEST_F(Logs, AMapReachesLocalRanksBeyondNine) {
  const SubprocessResult result = RunWith({"--nproc_per_node=12", "-r", "0:1,11:2"}, kSpeaks);
  EXPECT_EQ(Log("0/stdout.log"), "out of 0\n");
  EXPECT_EQ(Log("11/stderr.log"), "err of 11\n");
  EXPECT_THAT(result.out, AllOf(HasSubstr("out of 11"), Not(HasSubstr("out of 0"))));
  EXPECT_THAT(result.err, AllOf(HasSubstr("err of 0"), Not(HasSubstr("err of 11"))));
}

TEST_F(Logs, TheErrorFileOfAWorkerStaysAndItsMessageIsInTheSummary) {
  const std::string error = R"({"message": {"message": "ValueError: bad shape", )"
                            R"("extraInfo": {"py_callstack": "here", "timestamp": "1"}}})";
  const SubprocessResult result = RunWith(
      {"-r", "3"}, absl::StrCat("echo '", error, "' > $TORCHELASTIC_ERROR_FILE\nexit 6"), 6);
  EXPECT_EQ(Log("0/error.json"), error + "\n");
  EXPECT_THAT(result.err, HasSubstr("ValueError: bad shape"));
}

TEST_F(Logs, AnErrorFileThatIsNoJsonKeepsRankAndExitCodeInTheSummary) {
  const SubprocessResult result =
      RunWith({}, "echo '{\"message' > $TORCHELASTIC_ERROR_FILE\nexit 6", 6);
  EXPECT_THAT(result.err, AllOf(ContainsRegex("rank[^0-9]*0"), HasSubstr("6")));
}

// What started the launcher reads there why the job failed.
TEST_F(Logs, TheLaunchersOwnErrorFileSaysWhyAJobFailedWithoutAFailedWorker) {
  const Environment own = {{"TORCHELASTIC_ERROR_FILE", directory() + "/own.json"}};
  const auto message = [&] {
    const std::string text = ReadFile(directory() + "/own.json");
    std::filesystem::remove(directory() + "/own.json");
    return text;
  };
  EXPECT_THAT(Run({"run", "--nnodes=x", "train.py"}, own), ExitsWith(2));
  EXPECT_THAT(message(), HasSubstr("--nnodes=x"));
  EXPECT_THAT(Run({"run", "no_such_program"}, own), ExitsWith(2));
  EXPECT_THAT(message(), HasSubstr("no_such_program"));
  const std::string waits = ShellScript("waits.sh", "touch $OUT/up\nexec sleep 100");
  Subprocess job = Start({"run", waits}, own);
  EXPECT_TRUE(WaitForOut("up"));
  job.Signal(SIGTERM);
  EXPECT_THAT(job.Wait(), ExitsWith(143));
  EXPECT_THAT(message(), AllOf(HasSubstr("SIGTERM"), HasSubstr("\"errorCode\":143")));
  const LoopbackPort port;
  EXPECT_THAT(Run({"run", "--nnodes=2", "--rdzv_backend=c10d", "--rdzv_conf=join_timeout=1",
                   absl::StrCat("--rdzv_endpoint=127.0.0.1:", port.number()), waits},
                  own),
              ExitsWith(4));
  EXPECT_THAT(message(), HasSubstr("1 of 2 nodes"));
  EXPECT_THAT(Run({"run", ShellScript("good.sh", "exit 0")}, own), ExitsWith(0));
  EXPECT_EQ(message(), "");
}

TEST_F(Logs, TheLocalRanksFilterKeepsOthersOffTheConsole) {
  const SubprocessResult result =
      RunWith({"--nproc_per_node=3", "--local_ranks_filter=1"}, kSpeaks);
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("out of 1"), Not(HasSubstr("out of 0")), Not(HasSubstr("out of 2"))));
}

TEST_F(Logs, ADuplicateFilterCopiesItsLinesToAFileOfTheirOwn) {
  RunWith({"--nproc_per_node=2", "-t", "3", "--duplicate_stdout_filters=loss"},
          "echo loss of $RANK\necho something else");
  const std::vector<std::string> files = FilesBelow(logs());
  const auto copy = std::find_if(files.begin(), files.end(), [](const std::string& file) {
    return absl::StrContains(file, "attempt_0") && absl::StrContains(file, "filtered_stdout");
  });
  ASSERT_NE(copy, files.end()) << ::testing::PrintToString(files);
  EXPECT_THAT(ReadFile(logs() + "/" + *copy), AllOf(HasSubstr("loss of 0"), HasSubstr("loss of 1"),
                                                    Not(HasSubstr("something else"))));
}

TEST_F(Logs, TheConsoleShowsOnlyRankZeroIfAsked) {
  const SubprocessResult result = RunWith({"--nproc_per_node=2", "--console=rank0"}, kSpeaks);
  EXPECT_THAT(result.out, AllOf(HasSubstr("out of 0"), Not(HasSubstr("out of 1"))));
}

TEST_F(Logs, TheConsoleStaysEmptyIfAsked) {
  const SubprocessResult result = RunWith({"--nproc_per_node=2", "--console=none"}, kSpeaks);
  EXPECT_THAT(result.out + result.err, AllOf(Not(HasSubstr("out of")), Not(HasSubstr("err of"))));
}

TEST_F(Logs, ARoleAndTheHostNameAreInThePrefixOfATeedStream) {
  EXPECT_THAT(RunWith({"--nproc_per_node=2", "-t", "1", "--role=trainer"}, kSpeaks).out,
              HasSubstr("[trainer1]:out of 1\n"));
  EXPECT_THAT(RunWith({"-t", "1", "--log_line_prefix_template=<${hostname}/${rank}>"}, kSpeaks).out,
              MatchesRegex("<[^/$]+/0>out of 0\n"));
}

TEST_F(Logs, TheConsoleHasPrefixesInAPipeIfAsked) {
  EXPECT_THAT(RunWith({"--console=prefix"}, kSpeaks).out, MatchesRegex("\\[[^]]+:0\\] out of 0\n"));
}

TEST_F(Logs, APipeGetsTheWorkersBytesAndNothingElse) {
  const std::string script = "printf '{\"loss\": 3}\\n\\r10%%\\r20%%\\n\\377\\0\\r\\nend'";
  const std::string bytes("{\"loss\": 3}\n\r10%\r20%\n\xff\0\r\nend", 28);
  EXPECT_EQ(RunWith({}, script).out, bytes);
  // Nothing depends on the number of workers but that lines stay whole.
  const std::string both = absl::StrCat(bytes, "\n", bytes);
  const std::vector<std::string> lines =
      absl::StrSplit(RunWith({"--nproc_per_node=2"}, script).out, '\n');
  const std::vector<std::string> expected = absl::StrSplit(both, '\n');
  EXPECT_THAT(lines, UnorderedElementsAreArray(expected));
}

TEST_F(Logs, TheStreamsOfARankKeepTheirOrderInOneFile) {
  const std::string script = PythonScript("train.py",
                                          "import os\n"
                                          "for i in range(1000):\n"
                                          "    os.write(1 + i % 2, b'%s:%d\\n' % "
                                          "(os.environb[b'RANK'], i))\n");
  const std::string both = Out("both");
  const std::string job =
      absl::StrCat(MusterBinary(), " --nproc_per_node=2 ", script, " > ", both, " 2>&1");
  EXPECT_THAT(StartProgram({"/bin/sh", "-c", job}).Wait(), ExitsWith(0));
  std::map<char, int> next;  // by rank
  int num_misplaced = 0;
  for (const absl::string_view line : absl::StrSplit(ReadFile(both), '\n')) {
    if (line.size() < 3 || line[1] != ':') continue;
    num_misplaced += line.substr(2) != absl::StrCat(next[line[0]]++);
  }
  EXPECT_EQ(num_misplaced, 0);
  EXPECT_THAT(next, ElementsAre(Pair('0', 1000), Pair('1', 1000)));
}

TEST_F(Logs, AnUnfinishedLineOfTheOnlyWorkerAppearsAtOnce) {
  Subprocess job = Start({"run", ShellScript("train.sh",
                                             "exec 2> $OUT/err\nprintf 'Name: '\n"
                                             "while [ ! -e $OUT/go ]; do sleep 0.02; done")});
  EXPECT_TRUE(job.WaitForOutput("Name: "));
  WriteFile(Out("go"), "");
  EXPECT_THAT(job.Wait(), ExitsWith(0));
}

TEST_F(Logs, TheSummaryShowsTheLastLinesInEveryMode) {
  for (const Arguments& options :
       {Arguments{}, Arguments{"--console=raw"}, Arguments{"--console=prefix"},
        Arguments{"--console=none"}, Arguments{"--nproc_per_node=2", "--console=rank0"},
        Arguments{"-r", "3"}, Arguments{"-t", "3"}, Arguments{"--fold"}}) {
    const SubprocessResult result = RunWith(
        options, "[ $RANK = $((WORLD_SIZE - 1)) ] || exec sleep 100\necho the last words\nexit 7",
        7);
    EXPECT_THAT(result.err, AnyOf(HasSubstr("(last lines)\n    the last words\n"),
                                  HasSubstr("ending with: the last words\n")))
        << ::testing::PrintToString(options);
  }
}

TEST_F(Logs, BytesThatAreNoTextCutNothingOffTheSummary) {
  EXPECT_THAT(RunWith({}, "printf 'a\\0b\\n'\nexit 7", 7).err,
              AllOf(HasSubstr("ab\n"), HasSubstr("exit code 7: ")));
}

TEST_F(Logs, FoldedLinesAppearOnceWithTheirNumber) {
  EXPECT_THAT(RunWith({"--nproc_per_node=4", "--fold"}, "echo the same").out,
              MatchesRegex("\\[[^]]+:0-3 ×4\\] the same\n"));
}

TEST_F(Logs, LinesOfManyWritersAreNeverTorn) {
  const std::string script =
      PythonScript("train.py",
                   "import os, sys\n"
                   "for i in range(2000):\n"
                   "    sys.stdout.write('line %d' % i); sys.stdout.write(' of rank ' + "
                   "os.environ['RANK'] + '\\n')\n");
  const SubprocessResult result = Run({"run", "--nproc_per_node=4", script});
  EXPECT_THAT(result, ExitsWith(0));
  const std::vector<std::string> lines = absl::StrSplit(result.out, '\n', absl::SkipEmpty());
  EXPECT_EQ(lines.size(), 8000u);
  EXPECT_THAT(lines, Each(MatchesRegex("line [0-9]+ of rank [0-3]")));
}

TEST_F(Logs, AByteThatIsNoUtf8LosesNothing) {
  const SubprocessResult result =
      RunWith({"--nproc_per_node=2", "-t", "1"}, "printf 'a\\377b\\n'\necho after");
  EXPECT_THAT(result.out, AllOf(HasSubstr("a\377b"), HasSubstr("after")));
  EXPECT_EQ(Log("1/stdout.log"), "a\377b\nafter\n");
}

TEST_F(Logs, AFolderThatIsAFileIsRefusedBeforeAnythingStarts) {
  WriteFile(logs(), "a file");
  const SubprocessResult result = RunWith({"-r", "3"}, "touch $OUT/started", 2);
  EXPECT_THAT(result.err, HasSubstr(logs()));
  EXPECT_FALSE(FileExists(Out("started")));
}

TEST_F(Logs, AFullFolderStopsTheFilesButNotTheJob) {
  const SmallFileSystem full(logs(), "64k");
  if (!full.mounted()) GTEST_SKIP() << full.why_not();
  const SubprocessResult result =
      RunWith({"--nproc_per_node=2", "-t", "3"},
              "i=0\nwhile [ $i -lt 4000 ]; do\n"
              "  echo line $i with enough words to fill the folder\n  i=$((i+1))\ndone");
  EXPECT_THAT(result.err, ContainsRegex("No space left|full"));
  EXPECT_THAT(result.out, HasSubstr("line 3999")) << "the console goes on";
}

// Workers that write to their files themselves end of it, and have nowhere to say why.
TEST_F(Logs, AFullFolderIsNamedAsTheCauseWhereWorkersAreRedirectedThere) {
  const SmallFileSystem full(logs(), "64k");
  if (!full.mounted()) GTEST_SKIP() << full.why_not();
  full.Fill();
  const SubprocessResult result = RunWith({"-r", "3"}, "echo line || exit 7", 7);
  EXPECT_THAT(result.err, ContainsRegex("message +: its output goes to files in [^ ]*/logs/j7_"));
  EXPECT_THAT(result.err, HasSubstr("No space left on device; free some space"));
  EXPECT_THAT(result.err, ContainsRegex("cannot write [^ ]*/node.json: No space left"));
  EXPECT_THAT(result.err, ContainsRegex("cannot write [^ ]*/diary.jsonl: No space left"));
  const SubprocessResult report = Run({"report", logs()});
  EXPECT_THAT(report, ExitsWith(1));
  EXPECT_THAT(report.err, ContainsRegex("/diary.jsonl is empty: its disk was full"));
}

}  // namespace
}  // namespace muster::testing
