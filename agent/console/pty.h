// Pseudo terminals for workers, and the terminal that we may have ourselves.
#pragma once

#include <termios.h>

#include <optional>

#include "agent/console/console_layout.h"
#include "proto/io/unique_fd.h"

namespace muster::agent {

// A worker's pseudo terminal. What the worker writes to its end comes out of `ours` unchanged:
// output processing is off.
struct Pty {
  UniqueFd ours;  // does not block; reading fails with EIO once nobody holds the worker's end
  UniqueFd worker;
};

// Its keys and modes are those of `like`, if given (its line editing is what the worker's reader
// uses), else the system's defaults. None if the system has none left, or has no devpts.
std::optional<Pty> OpenPty(WindowSize size, const termios* like = nullptr);

// For programs in it the caller must send SIGWINCH itself: no pseudo terminal of ours is a
// controlling one, or ending its session would take the worker's background processes with it.
void SetWindowSize(int fd, WindowSize size);

bool IsTerminal(int fd);
// Whether the terminal `fd` is anybody's screen: it has a size, or we are controlled by it. mpirun
// gives each of its tasks a pseudo terminal that is neither, and reads it as it would read a pipe.
bool IsScreen(int fd);
// The size of the terminal `fd`; 80 columns and 24 rows where it does not tell.
WindowSize GetWindowSize(int fd);

}  // namespace muster::agent
