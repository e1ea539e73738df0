#include "tests/support/terminal_session.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/status_macros.h"
#include "tests/support/files.h"

namespace muster::testing {
namespace {

winsize Window(TerminalSize size) {
  winsize window{};
  window.ws_col = static_cast<unsigned short>(size.columns);
  window.ws_row = static_cast<unsigned short>(size.rows);
  return window;
}

// Enough of a terminal for what muster and the programs of these tests draw: CR, LF, BS, cursor
// home, up and to a column, erase to the end of line or screen; colours are dropped.
class Screen {
 public:
  explicit Screen(TerminalSize size) : size_(size), rows_(1) {}

  void Draw(const std::string& bytes) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      const char c = bytes[i];
      if (c == '\x1b' && i + 1 < bytes.size() && bytes[i + 1] == '[') {
        size_t end = i + 2;
        while (end < bytes.size() && !isalpha(bytes[end])) ++end;
        if (end < bytes.size()) Control(bytes[end], bytes.substr(i + 2, end - i - 2));
        i = end;
      } else if (c == '\n') {
        if (++row_ == rows_.size()) rows_.emplace_back();
      } else if (c == '\r') {
        column_ = 0;
      } else if (c == '\b') {
        column_ -= column_ > 0;
      } else if (static_cast<unsigned char>(c) >= 0x20) {
        Put(c);
      }
    }
  }

  std::string Text() const {
    std::vector<std::string> rows = rows_;
    while (rows.size() > 1 && rows.back().find_first_not_of(' ') == std::string::npos)
      rows.pop_back();
    return absl::StrJoin(rows, "\n");
  }

 private:
  void Put(char c) {
    // Counts bytes: these tests draw ASCII where columns matter.
    if (column_ == static_cast<size_t>(size_.columns)) {
      column_ = 0;
      if (++row_ == rows_.size()) rows_.emplace_back();
    }
    std::string& row = rows_[row_];
    if (row.size() <= column_) row.resize(column_ + 1, ' ');
    row[column_++] = c;
  }
  void Control(char final, const std::string& argument) {
    int number = 0;
    const size_t count = absl::SimpleAtoi(argument, &number) ? number : 1;
    if (final == 'H') row_ = column_ = 0;
    if (final == 'A') row_ -= std::min(row_, count);
    if (final == 'G') column_ = count - 1;
    if (final == 'D') column_ -= std::min(column_, count);
    if (final == 'C') column_ += count;
    if (final == 'K' || final == 'J') rows_[row_].resize(std::min(rows_[row_].size(), column_));
    if (final == 'J') rows_.resize(row_ + 1);
  }

  const TerminalSize size_;
  std::vector<std::string> rows_;
  size_t row_ = 0;
  size_t column_ = 0;
};

// Runs in the child, between fork and exec: system calls only. The program gets a process group of
// its own, which is the terminal's foreground, and which is not orphaned, so that Ctrl-Z stops it.
[[noreturn]] void RunAsAShellWould(int terminal, int tell, const std::string& directory,
                                   char* const* argv, char* const* environment) {
  ::signal(SIGTTOU, SIG_IGN);
  const pid_t shell = getpid();
  const pid_t program = fork();
  if (program == 0) {
    setpgid(0, 0);
    tcsetpgrp(terminal, getpid());
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != shell) _exit(125);
    for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);
    for (int fd = 0; fd <= 2; ++fd) dup2(terminal, fd);
    if (!directory.empty() && chdir(directory.c_str()) != 0) _exit(126);
    execve(argv[0], argv, environment);
    _exit(127);
  }
  if (write(tell, &program, sizeof program) != sizeof program) _exit(125);
  close(terminal);
  int status = 0;
  while (waitpid(program, &status, 0) != program) {
  }
  if (WIFSIGNALED(status)) {
    ::signal(WTERMSIG(status), SIG_DFL);
    kill(getpid(), WTERMSIG(status));
  }
  _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

}  // namespace

TerminalSession::TerminalSession(const SubprocessOptions& options, TerminalSize size)
    : size_(size) {
  std::vector<std::string> argv_strings = options.argv;
  std::vector<std::string> environment_strings;
  for (const auto& [name, value] : options.environment)
    environment_strings.push_back(absl::StrCat(name, "=", value));
  std::vector<char*> argv, environment;
  for (std::string& s : argv_strings) argv.push_back(s.data());
  for (std::string& s : environment_strings) environment.push_back(s.data());
  argv.push_back(nullptr);
  environment.push_back(nullptr);

  terminal_ = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  MUSTER_CHECK(terminal_ >= 0 && unlockpt(terminal_) == 0);
  const winsize window = Window(size);
  ioctl(terminal_, TIOCSWINSZ, &window);
  const int its = ioctl(terminal_, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
  MUSTER_CHECK(its >= 0);
  int told[2];
  MUSTER_CHECK(pipe2(told, O_CLOEXEC) == 0);
  const pid_t parent = getpid();
  shell_ = fork();
  MUSTER_CHECK(shell_ >= 0);
  if (shell_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(125);
    setsid();
    ioctl(its, TIOCSCTTY, 0);
    RunAsAShellWould(its, told[1], options.working_directory, argv.data(), environment.data());
  }
  close(told[1]);
  MUSTER_CHECK(read(told[0], &pid_, sizeof pid_) == sizeof pid_);
  close(told[0]);
  close(its);
}

TerminalSession::~TerminalSession() {
  if (!result_.ended) {
    kill(pid_, SIGKILL);
    kill(shell_, SIGKILL);
    Reap(0);
  }
  close(terminal_);
}

void TerminalSession::Type(const std::string& keys) {
  MUSTER_CHECK(write(terminal_, keys.data(), keys.size()) == static_cast<ssize_t>(keys.size()));
}

void TerminalSession::Resize(TerminalSize size) {
  size_ = size;
  const winsize window = Window(size);
  ioctl(terminal_, TIOCSWINSZ, &window);
}

bool TerminalSession::IsInLineMode() const {
  termios modes{};
  return tcgetattr(terminal_, &modes) == 0 && (modes.c_lflag & (ICANON | ECHO)) == (ICANON | ECHO);
}

// False at the deadline, and once nobody holds the terminal any more.
bool TerminalSession::ReadSome(absl::Time deadline) {
  const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
  pollfd polled{terminal_, POLLIN, 0};
  if (left <= 0 || poll(&polled, 1, static_cast<int>(std::min<int64_t>(left, 50))) < 0)
    return left > 0;
  if (polled.revents == 0) return true;
  char buffer[65536];
  const ssize_t got = read(terminal_, buffer, sizeof buffer);
  if (got <= 0) return false;
  output_.append(buffer, got);
  return true;
}

bool TerminalSession::WaitForOutput(const std::string& text, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + Patience(timeout);
  while (output_.find(text) == std::string::npos) {
    if (!ReadSome(deadline)) return output_.find(text) != std::string::npos;
  }
  return true;
}

bool TerminalSession::WaitForScreen(const std::string& text, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + Patience(timeout);
  while (Screen().find(text) == std::string::npos) {
    if (!ReadSome(deadline)) return Screen().find(text) != std::string::npos;
  }
  return true;
}

bool TerminalSession::Reap(int flags) {
  int status = 0;
  if (result_.ended) return true;
  if (waitpid(shell_, &status, flags) != shell_) return false;
  result_.ended = true;
  if (WIFEXITED(status)) result_.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result_.signal = WTERMSIG(status);
  return true;
}

SubprocessResult TerminalSession::Wait(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + Patience(timeout);
  while (!Reap(WNOHANG) && absl::Now() < deadline) {
    if (!ReadSome(deadline)) PauseBetweenLooks();
  }
  // What it wrote before it ended is there already.
  pollfd polled{terminal_, POLLIN, 0};
  while (poll(&polled, 1, 0) > 0 && (polled.revents & POLLIN) != 0) {
    if (!ReadSome(absl::Now() + kPatience)) break;
  }
  result_.out = output_;
  return result_;
}

bool TerminalSession::WaitUntilStopped(absl::Duration timeout) {
  // "pid (name) T …"
  const std::string path = absl::StrCat("/proc/", pid_, "/stat");
  return WaitUntil(
      [&] {
        const std::string stat = ReadFile(path);
        return stat.substr(std::min(stat.size(), stat.rfind(')') + 1)).substr(0, 2) == " T";
      },
      timeout);
}

std::string TerminalSession::Screen() const {
  class Screen screen(size_);
  screen.Draw(output_);
  return screen.Text();
}

}  // namespace muster::testing
