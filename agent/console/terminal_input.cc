#include "agent/console/terminal_input.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "proto/io/unique_fd.h"

namespace muster::agent {
namespace {

// While the terminal is the shell's, or the worker's is full: nothing tells us when that ends.
constexpr auto kLookAgain = std::chrono::milliseconds(200);
constexpr size_t kTypedBytesMax = 4096;

}  // namespace

bool TerminalInput::ReadModes(int terminal, termios* modes) {
  return ::tcgetattr(terminal, modes) == 0;
}

TerminalInput::TerminalInput(asio::io_context& loop, int terminal, int worker)
    : terminal_(terminal), worker_(worker), keys_(loop), look_again_(loop) {
  // O_NONBLOCK belongs to the open file description, which the shell shares with `terminal`.
  const std::string path = absl::StrCat("/proc/self/fd/", terminal);
  UniqueFd own(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!own || !ReadModes(terminal, &modes_before_)) return;
  asio::error_code error;
  keys_.assign(own.get(), error);
  if (error) return;
  own.release();
  TakeTerminal();
  WaitForKeys();
}

TerminalInput::~TerminalInput() { Suspend(); }

// A terminal that is not our controlling one has no background.
bool TerminalInput::IsForeground() const {
  const pid_t group = ::tcgetpgrp(terminal_);
  return group < 0 || group == ::getpgrp();
}

void TerminalInput::TakeTerminal() {
  if (has_terminal_ || !IsForeground()) return;
  termios modes = modes_before_;
  modes.c_lflag &= ~(ICANON | ECHO | ECHONL | IEXTEN);
  modes.c_iflag &= ~(ICRNL | INLCR | IGNCR | ISTRIP);
  modes.c_cc[VMIN] = 1;
  modes.c_cc[VTIME] = 0;
  has_terminal_ = ::tcsetattr(terminal_, TCSANOW, &modes) == 0;
}

void TerminalInput::Suspend() {
  if (!has_terminal_) return;
  has_terminal_ = false;
  if (!IsForeground()) return;  // its present owner has set it up already
  ::tcsetattr(terminal_, TCSANOW, &modes_before_);
}

void TerminalInput::Resume() { TakeTerminal(); }

void TerminalInput::WaitForKeys() {
  if (!keys_.is_open()) return;
  keys_.async_wait(asio::posix::stream_descriptor::wait_read,
                   [this, alive = std::weak_ptr<bool>(alive_)](const asio::error_code& error) {
                     if (!error && !alive.expired()) OnKeys();
                   });
}

void TerminalInput::LookAgainLater() {
  look_again_.expires_after(kLookAgain);
  look_again_.async_wait(
      [this, alive = std::weak_ptr<bool>(alive_)](const asio::error_code& error) {
        if (!error && !alive.expired()) OnKeys();
      });
}

void TerminalInput::OnKeys() {
  TakeTerminal();
  if (!has_terminal_) return LookAgainLater();
  if (typed_.empty()) {
    char buffer[kTypedBytesMax];
    const ssize_t got = ::read(keys_.native_handle(), buffer, sizeof buffer);
    if (got > 0) typed_.assign(buffer, got);
    if (got == 0) return;  // it has hung up
    if (got < 0 && errno == EIO) return LookAgainLater();
    if (got < 0 && errno != EINTR && errno != EAGAIN) return;
  }
  if (!typed_.empty()) {
    const ssize_t put = ::write(worker_, typed_.data(), typed_.size());
    if (put > 0) typed_.erase(0, put);
    if (put < 0 && errno != EAGAIN && errno != EINTR) typed_.clear();  // nobody reads any more
  }
  if (!typed_.empty()) return LookAgainLater();
  WaitForKeys();
}

}  // namespace muster::agent
