// What is typed at our terminal goes to the pseudo terminal of the only worker: pdb, input(), any
// line editor.
//
// While it does, our terminal hands on each key as it is typed; echo and line editing are the
// worker's terminal's, or its program's. Keys that make signals (Ctrl-C, Ctrl-\, Ctrl-Z) stay our
// terminal's: they reach us, and the worker only through the stop ladder. In the background, where
// the terminal is the shell's, nothing is read and its modes are left alone.
#pragma once

#include <termios.h>

#include <memory>
#include <string>

#include "asio/io_context.hpp"
#include "asio/posix/stream_descriptor.hpp"
#include "asio/steady_timer.hpp"

namespace muster::agent {

// Loop thread only. SIGTTIN must be ignored in the process.
class TerminalInput {
 public:
  // Begins. `terminal` is not owned and outlives this object; so does `worker`, our end of the
  // worker's pseudo terminal.
  TerminalInput(asio::io_context& loop, int terminal, int worker);
  // The terminal has the modes again that it had.
  ~TerminalInput();
  TerminalInput(const TerminalInput&) = delete;
  TerminalInput& operator=(const TerminalInput&) = delete;

  // Around a stop by Ctrl-Z: gives the terminal back, and takes it again if it is ours then.
  void Suspend();
  void Resume();

  // The modes of `terminal` for people, also where others have changed them; for the worker's own.
  static bool ReadModes(int terminal, termios* modes);

  int worker() const { return worker_; }

 private:
  bool IsForeground() const;
  void TakeTerminal();
  void WaitForKeys();
  void OnKeys();
  void LookAgainLater();

  // Constant after construction.
  const int terminal_;
  const int worker_;
  termios modes_before_{};
  // Loop thread only.
  asio::posix::stream_descriptor keys_;  // terminal_, opened once more
  asio::steady_timer look_again_;
  std::string typed_;  // not yet taken by the worker's terminal
  bool has_terminal_ = false;
  const std::shared_ptr<bool> alive_ =
      std::make_shared<bool>(true);  // late completions look whether it is still there
};

}  // namespace muster::agent
