// SIGTERM and SIGINT as a question that the training loop asks between steps.
//
// The first signal is noted, the second one ends the process as if nobody had asked for it: so a
// person never waits for a step that does not end, and the launcher's stop ladder has its rung.
#pragma once

namespace muster::train {

// At most one at a time in a process.
//
// Threads: thread-compatible.
class StopSignal {
 public:
  StopSignal();
  // Both signals end the process again.
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // The first signal that came, or 0.
  int received() const;
};

// Ends the process by `signal`, so that the parent sees what it sent.
[[noreturn]] void EndBySignal(int signal);

// "SIGTERM" or "SIGINT".
const char* SignalName(int signal);

}  // namespace muster::train
