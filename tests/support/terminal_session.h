// A program under test on a terminal: a pseudo terminal is its controlling one, as a shell would
// give it, and what it draws is read and can be looked at as bytes or as a screen.
//
// Threads: compatible; reads only while it waits.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/time/time.h"
#include "tests/support/subprocess.h"

namespace muster::testing {

struct TerminalSize {
  int columns = 80;
  int rows = 24;
};

class TerminalSession {
 public:
  // Starts it in the foreground of the terminal, below a stand-in for the shell. Of `options` argv,
  // environment and working directory count.
  explicit TerminalSession(const SubprocessOptions& options, TerminalSize size = {});
  // Kills it (it alone, not what it started) if it still runs.
  ~TerminalSession();
  TerminalSession(const TerminalSession&) = delete;
  TerminalSession& operator=(const TerminalSession&) = delete;

  pid_t pid() const { return pid_; }
  // Sends `keys` as if they were typed: "\r" for Enter, "\x03" for Ctrl-C.
  void Type(const std::string& keys);
  // The window gets another size; the kernel tells the foreground.
  void Resize(TerminalSize size);
  // Whether the terminal echoes and edits lines itself, as a shell leaves it.
  bool IsInLineMode() const;

  // Reads until its output has `text`, or the screen shows it; false at the deadline or its end.
  bool WaitForOutput(const std::string& text, absl::Duration timeout = kPatience);
  bool WaitForScreen(const std::string& text, absl::Duration timeout = kPatience);
  // Reads until it has ended; `out` has all that came.
  SubprocessResult Wait(absl::Duration timeout = kPatience);
  // Waits until it has been stopped by a signal (Ctrl-Z); false at the deadline.
  bool WaitUntilStopped(absl::Duration timeout = kPatience);

  // Every byte so far.
  const std::string& output() const { return output_; }
  // What a terminal shows after `output()`: rows joined by newlines, without empty ones at the end.
  std::string Screen() const;

 private:
  bool ReadSome(absl::Time deadline);
  bool Reap(int flags);

  pid_t shell_ = -1;  // ends as the program does
  pid_t pid_ = -1;
  int terminal_ = -1;  // the side of the person in front of it
  TerminalSize size_;
  std::string output_;
  SubprocessResult result_;
};

}  // namespace muster::testing
