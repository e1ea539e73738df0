// Workers that are kept over from one attempt into the next: their processes go on writing to what
// they were started with.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/console/log_pump.h"
#include "agent/console/pty.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/agent/console/log_pump_fixture.h"

namespace muster::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

PumpedWorker New(int local_rank, int rank) { return {LocalRank(local_rank), Rank(rank)}; }
PumpedWorker Kept(int local_rank, int rank) {
  return {LocalRank(local_rank), Rank(rank), /*is_kept=*/true};
}

// What its process sees that writes to where nobody reads any more.
bool IsBroken(const UniqueFd& fd) {
  return ::write(fd.get(), "x", 1) == -1 && (errno == EPIPE || errno == EIO);
}

int NumDescriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<int>(std::distance(begin(entries), end(entries)));
}

template <typename Fixture>
class Keeping : public Fixture {
 protected:
  // The worker of local rank 0 is kept between two attempts; that of local rank 1 has died.
  void CloseButFirst() {
    this->streams_[1] = {};
    this->pump_->CloseAttempt({LocalRank(0)});
  }
  // What has been written reaches console and files.
  void Drain(int num_workers = 2) {
    for (int i = 0; i < num_workers; ++i) this->pump_->DrainNow(LocalRank(i));
    EXPECT_TRUE(this->pump_->FlushConsole(absl::Seconds(20)));
  }
  std::string File(const std::string& name) const { return ReadAll(this->Path(name)); }
};

using KeptPumpTest = Keeping<LogPumpTest>;

TEST_F(KeptPumpTest, WritesOnToItsFileAndTheConsoleBetweenTwoAttempts) {
  Start(Tee());
  Put(streams_[0].stdout_fd, "step 1\n");
  CloseButFirst();
  Put(streams_[0].stdout_fd, "step 2\n");
  RunUntil([&] { return absl::StrContains(Stdout(), "step 2\n"); });
  pump_->FlushConsole(absl::Seconds(20));
  EXPECT_EQ(Stdout(), "[default0]:step 1\n[default0]:step 2\n");
  EXPECT_EQ(Log("0/stdout.log"), "step 1\nstep 2\n");
}

TEST_F(KeptPumpTest, StaysInItsDirectoryBesideNewWorkersInTheirs) {
  Start(Tee());
  CloseButFirst();
  OpenWith(1, {Kept(0, 10), New(1, 11)});
  Put(streams_[0].stdout_fd, "kept\n");
  Put(streams_[1].stdout_fd, "new\n");
  Drain();
  EXPECT_EQ(Log("0/stdout.log"), "kept\n");
  EXPECT_EQ(File("attempt_1/1/stdout.log"), "new\n");
  EXPECT_FALSE(std::filesystem::exists(Path("attempt_1/0")));
}

// Somebody has cleaned up; its file is still open.
TEST_F(KeptPumpTest, HasNothingMadeAnew) {
  Start(Tee());
  CloseButFirst();
  std::filesystem::remove_all(Path("attempt_0"));
  OpenWith(1, {Kept(0, 10), New(1, 11)});
  EXPECT_FALSE(std::filesystem::exists(Path("attempt_0")));
}

TEST_F(KeptPumpTest, NeedsNoCloseBeforeItIsKept) {
  Start(Tee());
  OpenWith(1, {Kept(0, 10), New(1, 11)});
  Put(streams_[0].stdout_fd, "kept\n");
  Drain();
  EXPECT_EQ(Log("0/stdout.log"), "kept\n");
}

TEST_F(KeptPumpTest, HasThePrefixOfItsPresentRankFromThenOn) {
  Start(Prefixed());
  Put(streams_[0].stdout_fd, "of rank 10\n");
  OpenWith(1, {Kept(0, 4), New(1, 5)});
  Put(streams_[0].stdout_fd, "of rank 4\n");
  Put(streams_[1].stdout_fd, "of rank 5\n");
  Drain();
  EXPECT_EQ(Stdout(), "[h:10] of rank 10\n[h:4] of rank 4\n[h:5] of rank 5\n");
}

// It has been told of no other rank yet.
TEST_F(KeptPumpTest, HasTheRankThatItHadUntilTheAttemptIsOpen) {
  Start(Prefixed());
  pump_->OpenAttempt(1, {Kept(0, 4), New(1, 5)}, absl::Seconds(20), [](auto) {});
  Put(streams_[0].stdout_fd, "of rank 10\n");
  pump_->DrainNow(LocalRank(0));
  EXPECT_EQ(Stdout(), "[h:10] of rank 10\n");
}

TEST_F(KeptPumpTest, WroteUnderItsFormerRankWhatIsInItsPipeWhenTheAttemptOpens) {
  Start(Prefixed());
  bool is_open = false;
  pump_->OpenAttempt(1, {Kept(0, 4)}, absl::Seconds(20), [&](auto) { is_open = true; });
  ASSERT_TRUE(pump_->FlushConsole(absl::Seconds(20))) << "the files are made";
  Put(streams_[0].stdout_fd, "of rank 10\n");
  RunUntil([&] { return is_open; });
  Put(streams_[0].stdout_fd, "of rank 4\n");
  pump_->DrainNow(LocalRank(0));
  EXPECT_EQ(Stdout(), "[h:10] of rank 10\n[h:4] of rank 4\n");
}

TEST_F(KeptPumpTest, SwapsRanksWithAnother) {
  Start(Prefixed());
  OpenWith(1, {Kept(0, 11), Kept(1, 10)});
  Put(streams_[0].stdout_fd, "a\n");
  Put(streams_[1].stdout_fd, "b\n");
  Drain();
  EXPECT_EQ(Stdout(), "[h:11] a\n[h:10] b\n");
}

TEST_F(KeptPumpTest, FinishesALineThatItHasBegunBefore) {
  LogPumpOptions options = Options(Prefixed());
  options.partial_line_wait = absl::Hours(1);
  StartWith(options, 2);
  Put(streams_[0].stdout_fd, "begun, ");
  Drain();
  OpenWith(1, {Kept(0, 4), New(1, 5)});
  Put(streams_[1].stdout_fd, "another's\n");
  Drain();
  Put(streams_[0].stdout_fd, "and done\n");
  Drain();
  EXPECT_EQ(Stdout(), "[h:5] another's\n[h:4] begun, and done\n");
}

TEST_F(KeptPumpTest, GoesOnInItsRowWithALineThatIsShownInPart) {
  Start(Prefixed());
  Put(streams_[0].stdout_fd, "begun, ");
  RunUntil([&] { return !Stdout().empty(); });
  OpenWith(1, {Kept(0, 4), New(1, 5)});
  Put(streams_[0].stdout_fd, "and done\n");
  Put(streams_[0].stdout_fd, "next\n");
  Drain();
  EXPECT_EQ(Stdout(), "[h:10] begun, and done\n[h:4] next\n");
}

TEST_F(KeptPumpTest, IsKeptOverSeveralAttempts) {
  Start(Tee());
  for (int attempt = 1; attempt <= 3; ++attempt) {
    CloseButFirst();
    OpenWith(attempt, {Kept(0, 10), New(1, 11)});
    Put(streams_[0].stdout_fd, absl::StrCat("attempt ", attempt, "\n"));
    Put(streams_[1].stdout_fd, absl::StrCat("new in ", attempt, "\n"));
    Drain();
    EXPECT_EQ(File(absl::StrCat("attempt_", attempt, "/1/stdout.log")),
              absl::StrCat("new in ", attempt, "\n"));
  }
  EXPECT_EQ(Log("0/stdout.log"), "attempt 1\nattempt 2\nattempt 3\n");
}

TEST_F(KeptPumpTest, CanBeOneThatWasStartedInALaterAttempt) {
  Start(Tee());
  Open(1, 2);
  OpenWith(2, {New(0, 10), Kept(1, 11)});
  Put(streams_[1].stdout_fd, "kept\n");
  Drain();
  EXPECT_EQ(File("attempt_1/1/stdout.log"), "kept\n");
}

TEST_F(KeptPumpTest, IsStartedAnewAfterItHasDied) {
  Start(Tee());
  CloseButFirst();
  OpenWith(1, {Kept(0, 10), New(1, 11)});
  Put(streams_[0].stdout_fd, "last words\n");
  streams_[0] = {};
  pump_->CloseAttempt({LocalRank(1)});
  EXPECT_EQ(LastOutput(0), "last words");
  OpenWith(2, {New(0, 10), Kept(1, 11)});
  EXPECT_EQ(streams_[0].directory, Path("attempt_2/0"));
  Put(streams_[0].stdout_fd, "anew\n");
  Put(streams_[1].stdout_fd, "kept\n");
  Drain();
  EXPECT_EQ(Log("0/stdout.log"), "last words\n");
  EXPECT_EQ(File("attempt_2/0/stdout.log"), "anew\n");
  EXPECT_EQ(File("attempt_1/1/stdout.log"), "kept\n");
  EXPECT_EQ(LastOutput(0), "anew");
}

TEST_F(KeptPumpTest, IsClosedByAnAttemptThatDoesNotKeepIt) {
  Start(Tee());
  pump_->CloseAttempt({LocalRank(0), LocalRank(1)});
  UniqueFd first = std::move(streams_[0].stdout_fd);
  UniqueFd second = std::move(streams_[1].stdout_fd);
  Put(first, "first\n");
  Put(second, "second\n");
  OpenWith(1, {New(0, 10)});
  EXPECT_EQ(Stdout(), "[default0]:first\n[default1]:second\n");
  EXPECT_TRUE(IsBroken(first) && IsBroken(second));
}

TEST_F(KeptPumpTest, IsClosedAtTheEnd) {
  Start({});
  CloseButFirst();
  Put(streams_[0].stdout_fd, "the end\n");
  pump_->CloseAttempt();
  EXPECT_EQ(Stdout(), "the end\n");
  EXPECT_TRUE(IsBroken(streams_[0].stdout_fd));
}

TEST_F(KeptPumpTest, MayHaveEndedItsStreamsItself) {
  Start(Tee());
  Put(streams_[0].stderr_fd, "before\n");
  streams_[0].stdout_fd.reset();
  streams_[0].stderr_fd.reset();
  CloseButFirst();
  OpenWith(1, {Kept(0, 4), New(1, 5)});
  EXPECT_EQ(LastOutput(0), "before");
}

TEST_F(KeptPumpTest, HasItsLastOutputFromAllAttempts) {
  Start({});
  Put(streams_[0].stdout_fd, "step 1\n");
  CloseButFirst();
  OpenWith(1, {Kept(0, 10), New(1, 11)});
  Put(streams_[0].stderr_fd, "ValueError\n");
  std::ofstream(Path("attempt_0/0/error.json")) << R"({"message": "its own"})";
  const LastWords words = WordsOf(0);
  EXPECT_EQ(words.output, "step 1\nValueError");
  ASSERT_TRUE(words.error.has_value());
  EXPECT_THAT(words.error->message, HasSubstr("its own"));
}

TEST_F(KeptPumpTest, HasNoLastWordsFromAnEarlierRound) {
  Start({});
  const std::string present = "attempt_0/0/error.json";
  for (int attempt = 1; attempt <= 2; ++attempt) {
    const std::string text = absl::StrCat(R"({"message": "before attempt )", attempt, R"("})");
    std::ofstream(Path(present)) << text;
    CloseButFirst();
    OpenWith(attempt, {Kept(0, 10), New(1, 11)});
    EXPECT_FALSE(WordsOf(0).error.has_value());
    EXPECT_EQ(File(absl::StrCat("attempt_0/0/error_before_attempt_", attempt, ".json")), text);
  }
  std::ofstream(Path(present)) << R"({"message": "its last"})";
  const LastWords words = WordsOf(0);
  ASSERT_TRUE(words.error.has_value());
  EXPECT_THAT(words.error->message, HasSubstr("its last"));
}

TEST_F(KeptPumpTest, WritesToARedirectedFileByItself) {
  Start(Redirect());
  Put(streams_[0].stderr_fd, "step 1\n");
  CloseButFirst();
  OpenWith(1, {Kept(0, 4), New(1, 5)});
  Put(streams_[0].stderr_fd, "ValueError\n");
  EXPECT_EQ(Log("0/stderr.log"), "step 1\nValueError\n");
  EXPECT_EQ(LastOutput(0), "step 1\nValueError");
  EXPECT_EQ(LastOutput(1), "");
}

TEST_F(KeptPumpTest, FillsTheFilteredFilesOfThePresentAttempt) {
  LogSpec logs;
  logs.duplicate_stdout_filters = {"loss"};
  Start(logs);
  CloseButFirst();
  Put(streams_[0].stdout_fd, "loss between\n");
  OpenWith(1, {Kept(0, 4), New(1, 5)});
  Put(streams_[0].stdout_fd, "loss kept\n");
  Put(streams_[1].stdout_fd, "loss new\n");
  Drain();
  EXPECT_EQ(Log("filtered_stdout.log"), "[h:10] loss between\n");
  EXPECT_EQ(File("attempt_1/filtered_stdout.log"), "[h:4] loss kept\n[h:5] loss new\n");
}

TEST_F(KeptPumpTest, IsFilteredByWholeLinesAlsoIfOneWasBegunBefore) {
  LogSpec logs;
  logs.duplicate_stdout_filters = {"step 7 loss"};
  Start(logs);
  Put(streams_[0].stdout_fd, "step 7 l");
  OpenWith(1, {Kept(0, 4), New(1, 5)});
  Put(streams_[0].stdout_fd, "oss\n");
  Drain();
  EXPECT_EQ(Log("filtered_stdout.log"), "");
  EXPECT_EQ(File("attempt_1/filtered_stdout.log"), "[h:4] step 7 loss\n");
}

TEST_F(KeptPumpTest, FollowsRank0ToTheConsoleAndFromIt) {
  LogSpec logs = Tee();
  logs.console = ConsoleMode::kRank0;
  LogPumpOptions options = Options(logs);
  options.keeps_workers = true;
  StartWith(options, 2);
  Put(streams_[0].stdout_fd, "10\n");
  OpenWith(1, {Kept(0, 0), New(1, 1)});
  Put(streams_[0].stdout_fd, "0\n");
  Put(streams_[1].stdout_fd, "1\n");
  OpenWith(2, {Kept(0, 4), Kept(1, 0)});
  Put(streams_[0].stdout_fd, "4\n");
  Put(streams_[1].stdout_fd, "0 anew\n");
  Drain();
  EXPECT_EQ(Stdout(), "[default0]:0\n[default1]:0 anew\n");
  EXPECT_EQ(Log("0/stdout.log"), "10\n0\n4\n");
  EXPECT_EQ(File("attempt_1/1/stdout.log"), "1\n0 anew\n");
}

// Its bytes do not come by us.
TEST_F(KeptPumpTest, StaysInItsFileAsRank0IfItsStreamsWereNotMadeForThat) {
  LogSpec logs = Tee();
  logs.console = ConsoleMode::kRank0;
  Start(logs);
  OpenWith(1, {Kept(0, 0), New(1, 1)});
  Put(streams_[0].stdout_fd, "0\n");
  Drain();
  EXPECT_EQ(Stdout(), "");
  EXPECT_EQ(Log("0/stdout.log"), "0\n");
  EXPECT_EQ(LastOutput(0), "0");
}

TEST_F(KeptPumpTest, FoldsWithThoseThatAreThereNow) {
  LogSpec logs;
  logs.fold = true;
  LogPumpOptions options = Options(logs);
  options.fold_window = absl::Hours(1);
  StartWith(options, 2);
  Put(streams_[0].stdout_fd, "before\n");
  OpenWith(1, {Kept(0, 5), New(1, 6), New(2, 7)});
  EXPECT_EQ(Stdout(), "[h:10] before\n");
  for (const WorkerStreams& streams : streams_) Put(streams.stdout_fd, "same\n");
  Drain(3);
  EXPECT_EQ(Stdout(), "[h:10] before\n[h:5-7 ×3] same\n");
}

TEST_F(KeptPumpTest, IsLeftAsItIsByAnAttemptWhoseFilesCannotBeMade) {
  LogSpec logs = Prefixed();
  logs.tee.all = StreamSet::kBoth;
  logs.line_prefix_template = "$rank: ";
  logs.duplicate_stdout_filters = {"loss"};
  Start(logs);
  std::ofstream(Path("attempt_1")) << "in the way";
  CloseButFirst();
  EXPECT_EQ(TryOpenWith(*pump_, 1, {Kept(0, 4), New(1, 5)}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(LastOutput(1), "") << "it was not started";
  Put(streams_[0].stdout_fd, "loss 3\n");
  Drain();
  EXPECT_EQ(Stdout(), "10: loss 3\n");
  EXPECT_EQ(Log("0/stdout.log"), "loss 3\n");
  EXPECT_EQ(Log("filtered_stdout.log"), "10: loss 3\n");
  OpenWith(2, {Kept(0, 4), New(1, 5)});
  Put(streams_[0].stdout_fd, "loss 2\n");
  Drain();
  EXPECT_EQ(Stdout(), "10: loss 3\n4: loss 2\n");
  EXPECT_EQ(File("attempt_2/filtered_stdout.log"), "4: loss 2\n");
}

TEST_F(KeptPumpTest, IsLeftAsItIsByAnAttemptThatFindsNoDescriptors) {
  Start(Prefixed());
  CloseButFirst();
  std::vector<PumpedWorker> workers = {Kept(0, 4)};
  for (int i = 1; i < 16; ++i) workers.push_back(New(i, 4 + i));
  ASSERT_TRUE(pump_->FlushConsole(absl::Seconds(20)));
  const int num_descriptors = NumDescriptors();
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit small{32, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &small), 0);
  const absl::Status status = TryOpenWith(*pump_, 1, workers).status();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(NumDescriptors(), num_descriptors) << "what could be opened is closed again";
  Put(streams_[0].stdout_fd, "still there\n");
  Drain();
  EXPECT_EQ(Stdout(), "[h:10] still there\n");
}

TEST_F(KeptPumpTest, IsLeftAsItIsByAnAttemptThatTakesTooLong) {
  Start(Tee());
  std::filesystem::create_directories(Path("attempt_1/1"));
  ASSERT_EQ(::mkfifo(Path("attempt_1/1/stdout.log").c_str(), 0600), 0);
  CloseButFirst();
  const absl::Status status =
      TryOpenWith(*pump_, 1, {Kept(0, 4), New(1, 5)}, absl::Milliseconds(10)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  Put(streams_[0].stdout_fd, "still there\n");
  pump_->DrainNow(LocalRank(0));
  EXPECT_EQ(Stdout(), "[default0]:still there\n");
  // The file system answers again.
  const UniqueFd reader(
      ::open(Path("attempt_1/1/stdout.log").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  Drain(1);
  EXPECT_EQ(Log("0/stdout.log"), "still there\n");
}

TEST_F(KeptPumpTest, IsLeftAsItIsByAnAttemptThatIsClosedBeforeItIsOpen) {
  Start(Prefixed());
  CloseButFirst();
  bool answered = false;
  pump_->OpenAttempt(1, {Kept(0, 4), New(1, 5)}, absl::Seconds(20), [&](auto) { answered = true; });
  pump_->CloseAttempt({LocalRank(0)});
  Put(streams_[0].stdout_fd, "still there\n");
  RunUntil([&] { return !Stdout().empty(); });
  OpenWith(2, {Kept(0, 4), New(1, 5)});
  EXPECT_FALSE(answered);
  Put(streams_[0].stdout_fd, "of rank 4\n");
  Drain();
  EXPECT_EQ(Stdout(), "[h:10] still there\n[h:4] of rank 4\n");
}

TEST_F(KeptPumpTest, IsNobodyIfNobodyIsNamed) {
  Start(Tee());
  Put(streams_[0].stdout_fd, "unfinished");
  pump_->CloseAttempt();
  EXPECT_EQ(Stdout(), "[default0]:unfinished\n");
  const UniqueFd before = std::move(streams_[0].stdout_fd);
  EXPECT_TRUE(IsBroken(before));
  OpenWith(1, {New(0, 10), New(1, 11)});
  EXPECT_EQ(streams_[0].directory, Path("attempt_1/0"));
  Put(streams_[0].stdout_fd, "anew\n");
  Drain();
  EXPECT_EQ(File("attempt_1/0/stdout.log"), "anew\n");
  EXPECT_EQ(LastOutput(0), "anew");
}

TEST_F(KeptPumpTest, MayBeThereWhenThePumpGoes) {
  Start(Prefixed());
  CloseButFirst();
  pump_->OpenAttempt(1, {Kept(0, 4), New(1, 5)}, absl::Seconds(20), [](auto) { FAIL(); });
  Put(streams_[0].stdout_fd, "x\n");
  EXPECT_TRUE(pump_->FlushConsole(absl::Seconds(20))) << "the files are made";
  pump_.reset();
  EXPECT_TRUE(IsBroken(streams_[0].stdout_fd));
  Settle();
}

class KeptTerminalTest : public Keeping<TerminalPumpTest> {
 protected:
  // What is typed reaches `fd`.
  bool GetsKeys(const UniqueFd& fd) {
    if (::write(pty_->ours.get(), "42\n", 3) != 3) return false;
    int available = 0;
    RunUntil([&] { return ::ioctl(fd.get(), FIONREAD, &available) == 0 && available == 3; });
    char typed[16];
    return available == 3 && ::read(fd.get(), typed, sizeof typed) == 3;
  }
};

TEST_F(KeptTerminalTest, KeepsItsTerminalAndHasThePrefixOfItsPresentRank) {
  StartWith(OnTerminal({}), 2);
  CloseButFirst();
  Put(streams_[0].stdout_fd, "between\n");
  EXPECT_TRUE(Shows("[h:10] between\n")) << screen_;
  OpenWith(1, {Kept(0, 104), New(1, 105)});
  EXPECT_EQ(ColumnsSeenBy(streams_[0].stdout_fd), 60 - 8);
  Put(streams_[0].stdout_fd, "kept\n");
  Put(streams_[1].stdout_fd, "new\n");
  EXPECT_TRUE(Shows("[h:104] kept\n")) << screen_;
  EXPECT_TRUE(Shows("[h:105] new\n")) << screen_;
  SetWindowSize(pty_->ours.get(), {.columns = 100, .rows = 30});
  pump_->OnWindowSize();
  EXPECT_EQ(ColumnsSeenBy(streams_[0].stdout_fd), 100 - 8);
}

TEST_F(KeptTerminalTest, GoesOnWithTheRowThatItDraws) {
  StartWith(OnTerminal({}), 2);
  Put(streams_[0].stdout_fd, "\r10%");
  EXPECT_TRUE(Shows("[h:10] 10%")) << screen_;
  OpenWith(1, {Kept(0, 4), New(1, 5)});
  Put(streams_[0].stdout_fd, "\r100%\n");
  EXPECT_TRUE(Shows("[h:4] 100%\n")) << screen_;
}

TEST_F(KeptTerminalTest, KeepsTheKeysAsTheOnlyWorker) {
  StartWith(OnTerminal({}), 1);
  EXPECT_TRUE(GetsKeys(streams_[0].stdin_fd));
  pump_->CloseAttempt({LocalRank(0)});
  EXPECT_TRUE(GetsKeys(streams_[0].stdin_fd));
  OpenWith(1, {Kept(0, 4)});
  EXPECT_TRUE(GetsKeys(streams_[0].stdin_fd));
  Put(streams_[0].stdout_fd, "\x1b[2J\r10%");
  EXPECT_TRUE(Shows("\x1b[2J\r10%")) << screen_;
}

TEST_F(KeptTerminalTest, SharesTheScreenWithAnotherFromThenOnAndHasItToItselfAgain) {
  StartWith(OnTerminal({}), 1);
  Put(streams_[0].stdout_fd, "\x1b[32malone");
  EXPECT_TRUE(Shows("alone")) << screen_;
  OpenWith(1, {Kept(0, 4), New(1, 5)});
  EXPECT_EQ(ColumnsSeenBy(streams_[0].stdout_fd), 60 - 6);
  EXPECT_FALSE(streams_[1].stdin_fd);
  Put(streams_[0].stdout_fd, " no more\n");
  Put(streams_[1].stdout_fd, "new\n");
  EXPECT_TRUE(Shows("[h:4]  no more\n")) << screen_;
  EXPECT_TRUE(Shows("[h:5] new\n")) << screen_;
  EXPECT_TRUE(absl::StrContains(screen_, "\x1b[32malone\n\x1b[0m\x1b[?25h")) << screen_;
  Put(streams_[0].stdout_fd, "\r10%");
  EXPECT_TRUE(Shows("[h:4] 10%")) << screen_;
  streams_[1] = {};
  OpenWith(2, {Kept(0, 4)});
  EXPECT_EQ(ColumnsSeenBy(streams_[0].stdout_fd), 60);
  screen_.clear();
  Put(streams_[0].stdout_fd, "\r20%\x1b[K");
  EXPECT_TRUE(Shows("[h:4] 10%\n\r20%\x1b[K")) << screen_;
  EXPECT_TRUE(GetsKeys(streams_[0].stdin_fd)) << "as at first";
}

TEST_F(KeptTerminalTest, TakesNoKeysFromOthersThatInheritTheTerminal) {
  StartWith(OnTerminal({}), 1);
  EXPECT_TRUE(GetsKeys(streams_[0].stdin_fd));
  OpenWith(1, {Kept(0, 4), New(1, 5)});
  ASSERT_EQ(::write(pty_->ours.get(), "42\n", 3), 3);
  Put(streams_[1].stdout_fd, "new\n");
  EXPECT_TRUE(Shows("new")) << screen_;
  EXPECT_EQ(TakeAvailable(pty_->worker.get()), "42\n");
}

// It was started with our terminal as its input.
TEST_F(KeptTerminalTest, ReadsFromTheTerminalItselfIfItWasNotAloneAtFirst) {
  StartWith(OnTerminal({}), 2);
  CloseButFirst();
  OpenWith(1, {Kept(0, 4)});
  ASSERT_EQ(::write(pty_->ours.get(), "42\n", 3), 3);
  Put(streams_[0].stdout_fd, "alone\n");
  EXPECT_TRUE(Shows("alone")) << screen_;
  EXPECT_EQ(TakeAvailable(pty_->worker.get()), "42\n");
}

TEST_F(KeptTerminalTest, GetsATerminalAsAnyRankIfItMayBecomeRank0) {
  LogPumpOptions options = OnTerminal({.console = ConsoleMode::kRank0});
  options.keeps_workers = true;
  StartWith(options, 2);
  EXPECT_TRUE(IsTerminal(streams_[0].stdout_fd.get()));
  Put(streams_[0].stdout_fd, "nothing\n");
  OpenWith(1, {Kept(0, 0), New(1, 1)});
  Put(streams_[0].stdout_fd, "\r10%");
  EXPECT_TRUE(Shows("\r10%")) << screen_;
  EXPECT_FALSE(absl::StrContains(screen_, "nothing")) << screen_;
}

}  // namespace
}  // namespace muster::agent
