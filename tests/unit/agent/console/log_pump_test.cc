#include "agent/console/log_pump.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/console/pty.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/agent/console/log_pump_fixture.h"

namespace muster::agent {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

TEST_F(LogPumpTest, WritesWhatTheWorkersWriteIntoAFile) {
  Start({});
  Put(streams_[0].stdout_fd, "{\"loss\": 3}\n\r10%\r20%\n");
  Put(streams_[1].stderr_fd, "warning\n");
  Finish();
  EXPECT_EQ(Stdout(), "{\"loss\": 3}\n\r10%\r20%\n");
  EXPECT_EQ(Stderr(), "warning\n");
}

TEST_F(LogPumpTest, PrintsHostAndRankIfAsked) {
  Start(Prefixed());
  Put(streams_[0].stdout_fd, "hello\n");
  Put(streams_[1].stderr_fd, "warning\n");
  Finish();
  EXPECT_EQ(Stdout(), "[h:10] hello\n");
  EXPECT_EQ(Stderr(), "[h:11] warning\n");
}

// > log 2>&1
class OneConsoleTest : public LogPumpTest {
 protected:
  LogPumpOptions OnOneFile(LogSpec logs) {
    LogPumpOptions options = Options(std::move(logs));
    options.console_stderr = stdout_.get();
    return options;
  }
  // Each worker to its two streams in turn, before any of it is read.
  void WriteInTurn() {
    for (const WorkerStreams& worker : streams_) {
      Put(worker.stderr_fd, "\rbar 1/2");
      Put(worker.stdout_fd, "\nvalue 1\n");
      Put(worker.stderr_fd, "\rbar 2/2\n");
      Put(worker.stdout_fd, "value 2\n");
    }
  }
};

TEST_F(OneConsoleTest, KeepsTheOrderOfAWorkersTwoStreams) {
  StartWith(OnOneFile({}), 2);
  WriteInTurn();
  Finish();
  const std::string each = "\rbar 1/2\nvalue 1\n\rbar 2/2\nvalue 2\n";
  EXPECT_EQ(Stdout(), each + each);
}

TEST_F(OneConsoleTest, KeepsItBehindPrefixesAndForTheSummary) {
  StartWith(OnOneFile(Prefixed()), 1);
  WriteInTurn();
  EXPECT_EQ(LastOutput(0), "bar 1/2\nvalue 1\nbar 2/2\nvalue 2");
  Finish();
  EXPECT_EQ(Stdout(), "[h:10] bar 1/2\n[h:10] value 1\n[h:10] bar 2/2\n[h:10] value 2\n");
}

TEST_F(OneConsoleTest, KeepsStreamsApartThatGoElsewhereToo) {
  LogSpec filtered;
  filtered.duplicate_stderr_filters = {"bar"};
  for (LogSpec logs : {Tee(), LogSpec{.tee = {.all = StreamSet::kStderr}}, filtered,
                       LogSpec{.console = ConsoleMode::kNone}}) {
    StartWith(OnOneFile(logs), 1);
    struct stat out {
    }, err{};
    ASSERT_EQ(::fstat(streams_[0].stdout_fd.get(), &out), 0);
    ASSERT_EQ(::fstat(streams_[0].stderr_fd.get(), &err), 0);
    EXPECT_NE(out.st_ino, err.st_ino);
    Finish();
  }
}

TEST_F(LogPumpTest, KeepsTheLastOutputOfAnOnlyWorkerToo) {
  Start({}, 1);
  Put(streams_[0].stdout_fd, "step 1\n");
  Put(streams_[0].stderr_fd, "ValueError\n");
  Finish();
  EXPECT_EQ(Stdout() + Stderr(), "step 1\nValueError\n");
  EXPECT_EQ(LastOutput(0), "step 1\nValueError");
}

TEST_F(LogPumpTest, MakesADirectoryForEachWorkerAndNamesItsErrorFile) {
  Start({}, 12);
  EXPECT_TRUE(std::filesystem::is_directory(Path("attempt_0/11")));
  EXPECT_EQ(streams_[11].error_file, Path("attempt_0/11/error.json"));
}

// Several nodes may be given one --log_dir on a shared file system.
TEST_F(LogPumpTest, SaysInEachAttemptOfWhichNodeAndRanksItIs) {
  Start({.log_dir = directory_});
  EXPECT_EQ(Log("node.json"), "{\"schema\":1,\"node\":\"h\",\"ranks\":[10,11]}\n");
  OpenWith(1, {{LocalRank(0), Rank(4)}});
  EXPECT_EQ(ReadAll(Path("attempt_1/node.json")), "{\"schema\":1,\"node\":\"h\",\"ranks\":[4]}\n");
}

TEST_F(LogPumpTest, SaysNothingInAFolderThatIsRemovedIfNobodyWritesToIt) {
  Start({});
  EXPECT_FALSE(std::filesystem::exists(Path("attempt_0/node.json")));
}

TEST_F(LogPumpTest, WritesRedirectedStreamsToFilesOnly) {
  Start(Redirect());
  Put(streams_[1].stdout_fd, "out");
  Put(streams_[1].stderr_fd, "err\n");
  Finish();
  EXPECT_EQ(Log("1/stdout.log"), "out");
  EXPECT_EQ(Log("1/stderr.log"), "err\n");
  EXPECT_EQ(Stdout(), "");
}

TEST_F(LogPumpTest, WritesTeedStreamsToFileUnchangedAndToTheConsole) {
  Start(Tee());
  const std::string bytes("a\r\nb\xff\xfe\0c\n", 9);
  Put(streams_[0].stdout_fd, bytes);
  Finish();
  EXPECT_EQ(Log("0/stdout.log"), bytes);
  EXPECT_EQ(Stdout(), std::string("[default0]:a\n[default0]:b\xff\xfe\0c\n", 30));
}

TEST_F(LogPumpTest, AppendsToWhatAnEarlierAttemptWrote) {
  Start(Tee());
  Put(streams_[0].stdout_fd, "first\n");
  streams_.clear();
  Open(0, 2);
  Put(streams_[0].stdout_fd, "second\n");
  Finish();
  EXPECT_EQ(Log("0/stdout.log"), "first\nsecond\n");
}

TEST_F(LogPumpTest, UsesATemplateAsThePrefix) {
  LogSpec logs;
  logs.line_prefix_template = "[${role_name}${local_rank}]:";
  Start(logs);
  Put(streams_[1].stdout_fd, "x\n");
  Finish();
  EXPECT_EQ(Stdout(), "[default1]:x\n");
}

TEST_F(LogPumpTest, NeverTearsLinesOfManyWorkers) {
  constexpr int kLines = 2000;
  Start(Tee(), 4);
  for (int i = 0; i < kLines; ++i) {
    for (const WorkerStreams& streams : streams_) {
      Put(streams.stdout_fd, absl::StrCat("line ", i));
      Put(streams.stdout_fd, " ends here\n");
    }
    if (i % 100 == 0) loop_.poll();
  }
  Finish();
  std::vector<int> next(4, 0);
  for (absl::string_view line : absl::StrSplit(Stdout(), '\n', absl::SkipEmpty())) {
    const int worker = line[8] - '0';
    ASSERT_EQ(line, absl::StrCat("[default", worker, "]:line ", next[worker]++, " ends here"));
  }
  EXPECT_THAT(next, ElementsAre(kLines, kLines, kLines, kLines));
}

TEST_F(LogPumpTest, ShowsAnUnfinishedLineAfterAWhile) {
  Start(Prefixed());
  Put(streams_[0].stdout_fd, "Name: ");
  RunUntil([&] { return !Stdout().empty(); });
  EXPECT_EQ(Stdout(), "[h:10] Name: ");
  Put(streams_[0].stdout_fd, "Ada\n");
  Finish();
  EXPECT_EQ(Stdout(), "[h:10] Name: Ada\n");
}

TEST_F(LogPumpTest, EndsTheLastLineOfAStreamThatStopsInTheMiddle) {
  Start(Prefixed());
  Put(streams_[0].stdout_fd, "no newline");
  Finish();
  EXPECT_EQ(Stdout(), "[h:10] no newline\n");
}

TEST_F(LogPumpTest, AddsNothingToTheLastBytesOfAnOnlyWorker) {
  Start({}, 1);
  Put(streams_[0].stdout_fd, "no newline");
  Finish();
  EXPECT_EQ(Stdout(), "no newline");
}

TEST_F(LogPumpTest, PrintsOurOwnLineInARowOfItsOwn) {
  LogPumpOptions options = Options(Prefixed());
  options.console_stderr = options.console_stdout;
  StartWith(options, 2);
  Put(streams_[0].stdout_fd, "unfinished");
  RunUntil([&] { return !Stdout().empty(); });
  pump_->PrintLine("muster: hello");
  EXPECT_EQ(Stdout(), "[h:10] unfinished\nmuster: hello\n");
}

TEST_F(LogPumpTest, FoldsEqualLinesWithACount) {
  LogSpec logs;
  logs.fold = true;
  LogPumpOptions options = Options(logs);
  options.fold_window = absl::Seconds(100);
  StartWith(options, 3);
  for (const WorkerStreams& streams : streams_) Put(streams.stdout_fd, "loading\n");
  Put(streams_[1].stdout_fd, "only me\n");
  RunUntil([&] { return !Stdout().empty(); });
  EXPECT_EQ(Stdout(), "[h:10-12 ×3] loading\n");
  pump_->CloseAttempt();
  EXPECT_EQ(Stdout(), "[h:10-12 ×3] loading\n[h:11] only me\n");
}

TEST_F(LogPumpTest, CopiesMatchingLinesOfAllRanksToOneFile) {
  LogSpec logs;
  logs.duplicate_stdout_filters = {"loss"};
  Start(logs);
  Put(streams_[0].stdout_fd, "loss 3\nother\n");
  Put(streams_[1].stdout_fd, "the loss 4\n");
  Put(streams_[1].stderr_fd, "loss on stderr\n");
  Finish();
  EXPECT_THAT(
      std::vector<std::string>(absl::StrSplit(Log("filtered_stdout.log"), '\n', absl::SkipEmpty())),
      UnorderedElementsAre("[h:10] loss 3", "[h:11] the loss 4"));
  EXPECT_FALSE(std::filesystem::exists(Path("attempt_0/filtered_stderr.log")));
}

TEST_F(LogPumpTest, FiltersWholeLinesThatWereShownInPieces) {
  LogSpec logs;
  logs.duplicate_stdout_filters = {"lo", "step 7 loss"};
  Start(logs);
  Put(streams_[0].stdout_fd, "step 7 l");
  RunUntil([&] { return !Stdout().empty(); });
  Put(streams_[0].stdout_fd, "oss\n");
  Finish();
  EXPECT_EQ(Log("filtered_stdout.log"), "[h:10] step 7 loss\n");
}

TEST_F(TerminalPumpTest, GivesEveryWorkerATerminalLessItsPrefix) {
  StartWith(OnTerminal({}), 2);
  EXPECT_TRUE(IsTerminal(streams_[1].stdout_fd.get()) && IsTerminal(streams_[1].stderr_fd.get()));
  EXPECT_EQ(ColumnsSeenBy(streams_[1].stdout_fd), 60 - 7);
  EXPECT_FALSE(streams_[1].stdin_fd);
  Put(streams_[1].stdout_fd, "hello\n");
  EXPECT_TRUE(Shows("[h:11] hello\n")) << screen_;
}

// Such are the terminals that mpirun makes for its tasks.
TEST_F(TerminalPumpTest, ATerminalWithoutASizeIsNobodysScreenAndGetsWholeLines) {
  winsize none{};
  ASSERT_EQ(::ioctl(pty_->ours.get(), TIOCSWINSZ, &none), 0);
  EXPECT_TRUE(IsTerminal(pty_->worker.get()));
  EXPECT_FALSE(IsScreen(pty_->worker.get()));
  StartWith(OnTerminal({}), 2);
  EXPECT_TRUE(IsTerminal(streams_[0].stdout_fd.get()));
  Put(streams_[0].stdout_fd, "begun");
  Put(streams_[1].stdout_fd, "other\n");
  EXPECT_TRUE(Shows("[h:11] other\n")) << screen_;
  Put(streams_[0].stdout_fd, " and done\n");
  EXPECT_TRUE(Shows("and done\n")) << screen_;
  EXPECT_FALSE(absl::StrContains(screen_, "\x1b")) << screen_;
}

TEST_F(TerminalPumpTest, ResizesTheWorkersTerminals) {
  StartWith(OnTerminal({}), 2);
  SetWindowSize(pty_->ours.get(), {.columns = 100, .rows = 30});
  pump_->OnWindowSize();
  EXPECT_EQ(GetWindowSize(streams_[0].stderr_fd.get()), (WindowSize{.columns = 93, .rows = 30}));
}

TEST_F(TerminalPumpTest, LeavesTheBytesOfAnOnlyWorkerAsTheyAre) {
  StartWith(OnTerminal({}), 1);
  EXPECT_EQ(ColumnsSeenBy(streams_[0].stdout_fd), 60);
  Put(streams_[0].stdout_fd, "\x1b[2J\r10%\n\x1b[A");
  EXPECT_TRUE(Shows("\x1b[2J\r10%\n\x1b[A")) << screen_;
}

TEST_F(TerminalPumpTest, HandsKeysToAnOnlyWorkerAndTheModesBackAtTheEnd) {
  StartWith(OnTerminal({}), 1);
  termios before, after;
  ASSERT_EQ(::write(pty_->ours.get(), "42\n", 3), 3);
  char typed[16] = {};
  RunUntil([&] {
    int available = 0;
    return ::ioctl(streams_[0].stdin_fd.get(), FIONREAD, &available) == 0 && available == 3;
  });
  EXPECT_EQ(::read(streams_[0].stdin_fd.get(), typed, sizeof typed), 3);
  EXPECT_STREQ(typed, "42\n");
  streams_.clear();
  ASSERT_EQ(::tcgetattr(pty_->worker.get(), &before), 0);
  pump_->CloseAttempt();
  ASSERT_EQ(::tcgetattr(pty_->worker.get(), &after), 0);
  EXPECT_EQ(after.c_lflag & (ICANON | ECHO), 0u) << "as it was: raw";
}

TEST_F(TerminalPumpTest, HandsTheModesBackWhenTheOnlyWorkerHasClosedItsTerminal) {
  termios modes;
  ASSERT_EQ(::tcgetattr(pty_->worker.get(), &modes), 0);
  modes.c_lflag |= ICANON;
  ASSERT_EQ(::tcsetattr(pty_->worker.get(), TCSANOW, &modes), 0);
  const auto is_ours = [&] {
    return ::tcgetattr(pty_->worker.get(), &modes) == 0 && (modes.c_lflag & ICANON) == 0;
  };
  StartWith(OnTerminal({}), 1);
  EXPECT_TRUE(is_ours());
  streams_.clear();
  RunUntil([&] { return !is_ours(); });
  EXPECT_FALSE(is_ours());
}

TEST_F(TerminalPumpTest, GivesAPipeToATeedStream) {
  StartWith(OnTerminal(Tee()), 2);
  EXPECT_FALSE(IsTerminal(streams_[0].stdout_fd.get()));
}

TEST_F(TerminalPumpTest, SeesTheLastBytesOfAWorkerThatHasEnded) {
  StartWith(OnTerminal({}), 1);
  Put(streams_[0].stdout_fd, "last words\n");
  streams_.clear();
  pump_->DrainNow(LocalRank(0));
  EXPECT_EQ(LastOutput(0), "last words");
}

TEST_F(LogPumpTest, KeepsTheLastOutputOfAWorkerWhoseLinesAreNotShown) {
  LogSpec logs;
  logs.console = ConsoleMode::kNone;
  Start(logs);
  Put(streams_[1].stdout_fd, "step 1\n");
  pump_->DrainNow(LocalRank(1));
  Put(streams_[1].stderr_fd, "Traceback\nValueError\n");
  pump_->DrainNow(LocalRank(1));
  EXPECT_EQ(LastOutput(1), "step 1\nTraceback\nValueError");
  EXPECT_EQ(LastOutput(0), "");
  Finish();
  EXPECT_EQ(Stdout() + Stderr(), "");
}

TEST_F(LogPumpTest, ReadsTheLastOutputOfThisAttemptFromRedirectedFiles) {
  Start(Redirect());
  Put(streams_[0].stderr_fd, "old failure\n");
  Open(0, 2);
  Put(streams_[0].stdout_fd, "step 1");
  Put(streams_[0].stderr_fd, "new failure\n");
  EXPECT_EQ(LastOutput(0), "step 1\nnew failure");
}

TEST_F(LogPumpTest, BoundsTheLastOutput) {
  Start(Redirect());
  for (int i = 0; i < 1000; ++i) Put(streams_[0].stderr_fd, absl::StrCat("line ", i, "\n"));
  const std::string last = LastOutput(0);
  EXPECT_LE(last.size(), 2048u);
  EXPECT_THAT(last, AllOf(StartsWith("line "), EndsWith("line 998\nline 999")));
}

TEST_F(LogPumpTest, ClosesAnAttemptWhoseStreamsADescendantKeepsOpen) {
  Start({});
  Put(streams_[0].stdout_fd, "last words\n");
  pump_->CloseAttempt();
  EXPECT_EQ(Stdout(), "last words\n");
  EXPECT_EQ(LastOutput(0), "last words");
  EXPECT_EQ(::write(streams_[0].stdout_fd.get(), "x", 1), -1);
}

TEST_F(LogPumpTest, GoesOnWithTheConsoleWhenAFileMayNotGrow) {
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const Channel console = MakePipe();
  LogPumpOptions options = Options(Tee());
  options.console_stdout = console.write_end.get();
  StartWith(options, 2);
  const rlimit small{4, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  Put(streams_[0].stdout_fd, "first line\n");
  loop_.poll();
  Put(streams_[0].stdout_fd, "second line\n");
  Finish();
  pump_->CloseAttempt();
  ASSERT_TRUE(pump_->FlushConsole(absl::Seconds(20)));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(TakeAvailable(console.read_end.get()),
            "[default0]:first line\n[default0]:second line\n");
  EXPECT_EQ(Log("0/stdout.log"), "firs");
  EXPECT_THAT(logged(), ElementsAre(AllOf(HasSubstr(Path("attempt_0/0/stdout.log")),
                                          HasSubstr("File too large")),
                                    HasSubstr("lacks 19 bytes")));
}

TEST_F(LogPumpTest, KeepsFilesGoingWhenTheConsoleHasGone) {
  Channel console = MakePipe();
  LogPumpOptions options = Options(Tee());
  options.console_stdout = console.write_end.get();
  StartWith(options, 2);
  console.read_end.reset();
  Put(streams_[0].stdout_fd, "a\n");
  loop_.poll();
  Put(streams_[0].stdout_fd, "b\n");
  Finish();
  EXPECT_EQ(Log("0/stdout.log"), "a\nb\n");
  EXPECT_THAT(logged(), ElementsAre(AllOf(HasSubstr("standard output"), HasSubstr("Broken pipe"))));
}

// The console is a pipe that nobody reads until the worker has printed far more than it holds.
TEST_F(LogPumpTest, NeitherBlocksNorLosesLinesWhenTheConsoleDoesNotRead) {
  const Channel console = MakePipe();
  LogPumpOptions options = Options({});
  options.console_stdout = console.write_end.get();
  StartWith(options, 2);
  ::fcntl(streams_[0].stdout_fd.get(), F_SETFL, O_NONBLOCK);
  const std::string line = std::string(999, 'x') + "\n";
  int printed = 0;
  for (bool stuck = false; !stuck;) {
    stuck = true;
    while (::write(streams_[0].stdout_fd.get(), line.data(), line.size()) ==
           static_cast<ssize_t>(line.size())) {
      ++printed;
      stuck = false;
    }
    loop_.restart();
    loop_.poll();
  }
  EXPECT_LT(printed, 5000);  // the worker is held up, memory is bounded
  EXPECT_FALSE(pump_->FlushConsole(absl::ZeroDuration()));
  streams_.clear();
  std::string seen;
  RunUntil([&] {
    seen += TakeAvailable(console.read_end.get());
    return seen.size() >= printed * (line.size());
  });
  EXPECT_EQ(seen.size(), printed * (line.size()));
  EXPECT_EQ(::fcntl(console.write_end.get(), F_GETFL) & O_NONBLOCK, 0);
}

TEST_F(LogPumpTest, DoesNotBlockOnASocketConsole) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  LogPumpOptions options = Options({});
  options.console_stdout = writer.get();
  StartWith(options, 2);
  const std::string line = std::string(999, 'x') + "\n";
  for (int i = 0; i < 2000; i += 50) {
    for (int j = 0; j < 50; ++j) Put(streams_[0].stdout_fd, line);
    pump_->DrainNow(LocalRank(0));
  }
  EXPECT_FALSE(pump_->FlushConsole(absl::ZeroDuration()));
  streams_.clear();
  std::string seen;
  RunUntil([&] {
    seen += TakeAvailable(reader.get());
    return seen.size() >= 2000 * (line.size());
  });
  EXPECT_EQ(seen.size(), 2000 * (line.size()));
  EXPECT_EQ(::fcntl(writer.get(), F_GETFL) & O_NONBLOCK, 0);
}

// A run directory in a temporary directory of its own, as it is when the user named none.
class UnusedRunTest : public LogPumpTest {
 protected:
  void StartRun(LogSpec logs) {
    LogPumpOptions options = Options(std::move(logs));
    options.run_directory = Path("above/run");
    std::filesystem::create_directories(options.run_directory);
    StartWith(std::move(options), 2);
  }
  bool IsRemovedAtTheEnd() {
    bool settled = false;
    pump_->CloseAttempt();
    pump_->RemoveRunIfUnused(absl::Seconds(20), [&] { settled = true; });
    RunUntil([&] { return settled; });
    return !std::filesystem::exists(Path("above"));
  }
};

TEST_F(UnusedRunTest, IsRemoved) {
  StartRun(Tee());
  EXPECT_TRUE(IsRemovedAtTheEnd());
}

TEST_F(UnusedRunTest, IsNoneIfAnEarlierAttemptWrote) {
  StartRun(Tee());
  Put(streams_[0].stdout_fd, "x\n");
  Open(1, 2);
  EXPECT_FALSE(IsRemovedAtTheEnd());
}

TEST_F(UnusedRunTest, IsNoneIfThereIsAnErrorFile) {
  StartRun({});
  std::ofstream(streams_[0].error_file) << "{}";
  EXPECT_FALSE(IsRemovedAtTheEnd());
}

TEST_F(LogPumpTest, NamesAPathThatIsInTheWay) {
  std::ofstream(Path("attempt_0")) << "a file";
  LogPump pump(loop_, Options({}));
  const absl::Status status = TryOpen(pump, 0, 1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(Path("attempt_0")), HasSubstr("Not a directory")));
}

// UndefinedBehaviorSanitizer looks at memory through pipes, which it then cannot open.
#ifndef ABSL_HAVE_ADDRESS_SANITIZER
TEST_F(LogPumpTest, SaysThatDescriptorsAreUsedUp) {
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit small{24, before.rlim_max};
  LogPump pump(loop_, Options({}));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &small), 0);
  const absl::Status status = TryOpen(pump, 0, 16).status();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
}
#endif

// A log file whose file system hangs: a named pipe without a reader takes for ever to be opened,
// one that nobody reads from, to be written.
class HangingPumpTest : public LogPumpTest {
 protected:
  HangingPumpTest() {
    std::filesystem::create_directories(Path("attempt_0/0"));
    EXPECT_EQ(::mkfifo(path_.c_str(), 0600), 0);
    pump_ = std::make_unique<LogPump>(loop_, Options(Tee()));
  }
  // The thread that hangs there ends, too.
  ~HangingPumpTest() override { Answer(); }
  void Answer() {
    if (!reader_) reader_.reset(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  }

  const std::string path_ = Path("attempt_0/0/stdout.log");
  UniqueFd reader_;
};

TEST_F(HangingPumpTest, OpensFilesWithoutHoldingUpTheLoop) {
  bool is_open = false;
  pump_->OpenAttempt(0, Workers(1), absl::Seconds(20),
                     [&](auto streams) { is_open = streams.ok(); });
  for (int turns = 0; turns < 3; ++turns) {
    loop_.restart();
    loop_.run_for(std::chrono::milliseconds(10));
  }
  EXPECT_FALSE(is_open);
  Answer();
  RunUntil([&] { return is_open; });
  EXPECT_TRUE(is_open);
}

TEST_F(HangingPumpTest, SaysWhichFilesCouldNotBeOpened) {
  const absl::Status status = TryOpen(*pump_, 0, 1, absl::Milliseconds(10)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(Path("attempt_0")), HasSubstr("10ms")));
}

TEST_F(HangingPumpTest, ForgetsAnAttemptThatIsClosedBeforeItsFilesAreOpen) {
  bool answered = false;
  pump_->OpenAttempt(0, Workers(1), absl::Seconds(20), [&](auto) { answered = true; });
  pump_->CloseAttempt();
  Answer();
  Settle();
  EXPECT_FALSE(answered);
}

TEST_F(HangingPumpTest, TellsWhatAWorkerSaidWithoutTheFilesThatCannotBeRead) {
  Answer();
  Open(0, 1);
  const std::string much(size_t{1} << 16, 'x');
  Put(streams_[0].stdout_fd, much);
  Put(streams_[0].stdout_fd, much);  // more than the named pipe holds
  Put(streams_[0].stderr_fd, "ValueError\n");
  std::ofstream(streams_[0].error_file) << R"({"message": "never read"})";
  const LastWords words = WordsOf(0, absl::Milliseconds(10));
  EXPECT_FALSE(words.files_answered);
  EXPECT_FALSE(words.error.has_value());
  EXPECT_THAT(words.output, EndsWith("ValueError"));
  reader_.reset();  // it answers again, with an error
}

TEST_F(LogPumpTest, LeavesLateCompletionsBehindWhenItIsDestroyed) {
  Start({});
  Put(streams_[0].stdout_fd, "x\n");
  Put(streams_[1].stdout_fd, "y");
  loop_.poll_one();
  pump_.reset();
  Settle();
  EXPECT_THAT(logged(), IsEmpty());
}

}  // namespace
}  // namespace muster::agent
