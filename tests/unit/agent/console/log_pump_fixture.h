// A LogPump with consoles and a run directory of its own, for tests of what it does.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/console/log_pump.h"
#include "agent/console/pty.h"
#include "asio/io_context.hpp"
#include "gtest/gtest.h"
#include "proto/base/mutex.h"
#include "proto/io/log.h"
#include "tests/support/patience.h"

namespace muster::agent {

inline std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

struct Channel {
  UniqueFd read_end;
  UniqueFd write_end;
};

inline Channel MakePipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// What can be read without waiting.
inline std::string TakeAvailable(int fd) {
  ::fcntl(fd, F_SETFL, O_NONBLOCK);
  std::string all;
  char buffer[65536];
  for (ssize_t got; (got = ::read(fd, buffer, sizeof(buffer))) > 0;) all.append(buffer, got);
  return all;
}

inline void Put(const UniqueFd& fd, absl::string_view bytes) {
  ASSERT_EQ(::write(fd.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
}

inline std::vector<PumpedWorker> Workers(int count) {
  std::vector<PumpedWorker> workers;
  for (int i = 0; i < count; ++i) workers.push_back({LocalRank(i), Rank(10 + i)});
  return workers;
}

// A pump whose consoles are two files, with a run directory of its own.
class LogPumpTest : public ::testing::Test {
 protected:
  LogPumpTest() {
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);
    std::string pattern = ::testing::TempDir() + "/log_pump_XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
    stdin_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    stdout_.reset(::open(Path("console_stdout").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    stderr_.reset(::open(Path("console_stderr").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    log::Configure({.sink = [this](const std::string& line) {
      base::MutexLock lock(mu_);
      logged_.push_back(line);
    }});
  }
  // What the files' thread has to say, it says in this test.
  ~LogPumpTest() override {
    if (pump_) pump_->FlushConsole(testing::Patience(absl::Seconds(20)));
    log::Configure({.sink = [](const std::string&) {}});
    pump_.reset();
    std::filesystem::remove_all(directory_);
  }

  LogPumpOptions Options(LogSpec logs) {
    return {.logs = std::move(logs),
            .run_directory = directory_,
            .host = "h",
            .role = "default",
            .console_stdin = stdin_.get(),
            .console_stdout = stdout_.get(),
            .console_stderr = stderr_.get(),
            .partial_line_wait = absl::Milliseconds(1),
            .fold_window = absl::Milliseconds(1)};
  }
  void Start(LogSpec logs, int num_workers = 2) {
    StartWith(Options(std::move(logs)), num_workers);
  }
  void StartWith(LogPumpOptions options, int num_workers) {
    pump_ = std::make_unique<LogPump>(loop_, std::move(options));
    Open(0, num_workers);
  }
  void Open(int attempt, int num_workers) {
    absl::StatusOr<std::vector<WorkerStreams>> streams = TryOpen(*pump_, attempt, num_workers);
    ASSERT_TRUE(streams.ok()) << streams.status();
    streams_ = *std::move(streams);
  }
  // Local ranks from 0. Processes of kept workers have the descriptors that they were started with.
  void OpenWith(int attempt, const std::vector<PumpedWorker>& workers) {
    absl::StatusOr<std::vector<WorkerStreams>> opened = TryOpenWith(*pump_, attempt, workers);
    ASSERT_TRUE(opened.ok()) << opened.status();
    for (size_t i = 0; i < workers.size(); ++i) {
      WorkerStreams& its = (*opened)[i];
      if (!workers[i].is_kept) continue;
      EXPECT_FALSE(its.stdin_fd || its.stdout_fd || its.stderr_fd);
      EXPECT_EQ(its.directory, streams_[i].directory);
      EXPECT_EQ(its.error_file, streams_[i].error_file);
      its = std::move(streams_[i]);
    }
    streams_ = *std::move(opened);
  }
  absl::StatusOr<std::vector<WorkerStreams>> TryOpen(LogPump& pump, int attempt, int num_workers,
                                                     absl::Duration at_most = absl::Seconds(20)) {
    return TryOpenWith(pump, attempt, Workers(num_workers), at_most);
  }
  absl::StatusOr<std::vector<WorkerStreams>> TryOpenWith(
      LogPump& pump, int attempt, const std::vector<PumpedWorker>& workers,
      absl::Duration at_most = absl::Seconds(20)) {
    std::optional<absl::StatusOr<std::vector<WorkerStreams>>> opened;
    pump.OpenAttempt(attempt, workers, at_most,
                     [&](absl::StatusOr<std::vector<WorkerStreams>> s) { opened = std::move(s); });
    RunUntil([&] { return opened.has_value(); });
    if (!opened) return absl::UnknownError("the pump does not answer");
    for (size_t i = 0; opened->ok() && i < workers.size(); ++i) {
      if (workers[i].is_kept) continue;
      EXPECT_TRUE(pump.TakeDescriptors((**opened)[i]).ok());
    }
    return *std::move(opened);
  }
  LastWords WordsOf(int local_rank, absl::Duration at_most = absl::Seconds(20)) {
    std::optional<LastWords> words;
    pump_->TakeLastWords(LocalRank(local_rank), at_most,
                         [&](LastWords its) { words = std::move(its); });
    RunUntil([&] { return words.has_value(); });
    return words.value_or(LastWords{.output = "(the pump does not answer)"});
  }
  std::string LastOutput(int local_rank) { return WordsOf(local_rank).output; }
  // All workers end, and the loop runs until everything that they printed has been dealt with.
  void Finish() {
    streams_.clear();
    Settle();
  }
  void Settle() {
    loop_.restart();
    loop_.run_for(absl::ToChronoSeconds(testing::Patience(absl::Seconds(20))));
    // The files have a thread of their own.
    if (pump_) pump_->FlushConsole(absl::Seconds(1));
  }
  // Runs the loop until `done`, for at most 20 s.
  template <typename Done>
  void RunUntil(Done done) {
    loop_.restart();
    const auto deadline = std::chrono::steady_clock::now() +
                          absl::ToChronoSeconds(testing::Patience(absl::Seconds(20)));
    while (!done() && std::chrono::steady_clock::now() < deadline)
      loop_.run_one_for(std::chrono::milliseconds(100));
  }

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }
  std::string Log(const std::string& name) const { return ReadAll(Path("attempt_0/" + name)); }
  std::string Stdout() const { return ReadAll(Path("console_stdout")); }
  std::string Stderr() const { return ReadAll(Path("console_stderr")); }

  std::vector<std::string> logged() {
    base::MutexLock lock(mu_);
    return logged_;
  }

  std::string directory_;
  UniqueFd stdin_;
  UniqueFd stdout_;
  UniqueFd stderr_;

  base::Mutex mu_;
  std::vector<std::string> logged_ ABSL_GUARDED_BY(mu_);  // the files' thread logs too
  asio::io_context loop_;
  std::unique_ptr<LogPump> pump_;
  std::vector<WorkerStreams> streams_;
};

inline LogSpec Tee() { return {.tee = {.all = StreamSet::kBoth}}; }
inline LogSpec Redirect() { return {.redirects = {.all = StreamSet::kBoth}}; }
inline LogSpec Prefixed() { return {.console = ConsoleMode::kPrefix}; }

// A pump whose console is a terminal.
class TerminalPumpTest : public LogPumpTest {
 protected:
  TerminalPumpTest() : pty_(OpenPty({.columns = 60, .rows = 20})) {
    if (!pty_) return;
    termios modes;
    ::tcgetattr(pty_->worker.get(), &modes);
    ::cfmakeraw(&modes);
    ::tcsetattr(pty_->worker.get(), TCSANOW, &modes);
  }
  void SetUp() override {
    if (!pty_) GTEST_SKIP() << "this system has no pseudo terminals";
  }
  LogPumpOptions OnTerminal(LogSpec logs) {
    LogPumpOptions options = Options(std::move(logs));
    options.console_stdin = options.console_stdout = options.console_stderr = pty_->worker.get();
    return options;
  }
  // Runs until the screen's bytes have `text`.
  bool Shows(const std::string& text) {
    RunUntil([&] {
      screen_ += TakeAvailable(pty_->ours.get());
      return absl::StrContains(screen_, text);
    });
    return absl::StrContains(screen_, text);
  }
  static int ColumnsSeenBy(const UniqueFd& fd) { return GetWindowSize(fd.get()).columns; }

  std::optional<Pty> pty_;
  std::string screen_;
};

}  // namespace muster::agent
