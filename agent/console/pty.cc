#include "agent/console/pty.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

namespace muster::agent {

std::optional<Pty> OpenPty(WindowSize size, const termios* like) {
  Pty pty;
  pty.ours.reset(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK));
  if (!pty.ours || ::unlockpt(pty.ours.get()) != 0) return std::nullopt;
  // The worker's end is opened by the descriptor and not by its name, which another mount of devpts
  // may not have.
  pty.worker.reset(::ioctl(pty.ours.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
  termios modes{};
  if (!pty.worker || ::tcgetattr(pty.worker.get(), &modes) != 0) return std::nullopt;
  if (like != nullptr) modes = *like;
  modes.c_oflag &= ~OPOST;
  if (::tcsetattr(pty.worker.get(), TCSANOW, &modes) != 0) return std::nullopt;
  SetWindowSize(pty.ours.get(), size);
  return pty;
}

void SetWindowSize(int fd, WindowSize size) {
  constexpr int kMax = std::numeric_limits<unsigned short>::max();
  winsize window{};
  window.ws_col = static_cast<unsigned short>(std::clamp(size.columns, 1, kMax));
  window.ws_row = static_cast<unsigned short>(std::clamp(size.rows, 1, kMax));
  ::ioctl(fd, TIOCSWINSZ, &window);
}

bool IsTerminal(int fd) { return ::isatty(fd) == 1; }

bool IsScreen(int fd) {
  winsize window{};
  if (!IsTerminal(fd) || ::ioctl(fd, TIOCGWINSZ, &window) != 0) return false;
  return (window.ws_col > 0 && window.ws_row > 0) || ::tcgetsid(fd) >= 0;
}

WindowSize GetWindowSize(int fd) {
  WindowSize size;
  winsize window{};
  if (::ioctl(fd, TIOCGWINSZ, &window) != 0) return size;
  if (window.ws_col > 0) size.columns = window.ws_col;
  if (window.ws_row > 0) size.rows = window.ws_row;
  return size;
}

}  // namespace muster::agent
