// A program under test: started with exactly the environment given, its output captured, its end
// awaited with a deadline.
//
// Threads: compatible; one internal thread per process reads its output, so that it never blocks on
// a full pipe.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/support/patience.h"

namespace muster::testing {

// Whoever waits here multiplies it, and what callers give in its place (tests/support/patience.h).
inline constexpr absl::Duration kPatience = absl::Seconds(30);

using Environment = std::map<std::string, std::string>;

struct SubprocessOptions {
  std::vector<std::string> argv;  // argv[0] is a path
  Environment environment;        // complete; nothing is inherited
  std::string working_directory;  // empty: the test's
  std::string stdin_text;         // what it reads before the end of file; at most 64 KiB
  std::vector<int> ignored_signals;
};

struct SubprocessResult {
  bool ended = false;  // false: it still ran at the deadline
  int exit_code = -1;  // -1 if it was ended by a signal
  int signal = 0;
  std::string out;
  std::string err;
};
// Everything about it, for the message of a failed expectation.
std::string ToString(const SubprocessResult& result);
// Lets GoogleTest print it.
void PrintTo(const SubprocessResult& result, std::ostream* out);

class Subprocess {
 public:
  // Starts it in a process group of its own; it is killed if this process dies.
  explicit Subprocess(const SubprocessOptions& options);
  // Kills it (it alone, not what it started) if it still runs.
  ~Subprocess();
  Subprocess(Subprocess&&) noexcept;
  Subprocess& operator=(Subprocess&&) = delete;

  pid_t pid() const;
  // Sends `signal` to this one process.
  void Signal(int signal) const;

  // Waits until it has ended. Output that descendants write later is not waited for.
  SubprocessResult Wait(absl::Duration timeout = kPatience);
  // Waits until its output (either stream) has `text`; false at the deadline, or if it ended
  // without.
  bool WaitForOutput(const std::string& text, absl::Duration timeout = kPatience);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Calls `condition` until it is true, every few milliseconds; false at the deadline.
template <typename Condition>
bool WaitUntil(Condition condition, absl::Duration timeout = kPatience);

// Ends the calling thread's turn for a few milliseconds. For WaitUntil alone.
void PauseBetweenLooks();

template <typename Condition>
bool WaitUntil(Condition condition, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + Patience(timeout);
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    PauseBetweenLooks();
  }
  return true;
}

}  // namespace muster::testing
