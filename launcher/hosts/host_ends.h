// How the agents of a job's hosts have ended, what is to be said of it, and when the others are
// stopped: a job of a host file needs each of its hosts, so without one the others would wait for
// it until the join time-out.
//
// Threads: pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "proto/base/mono_time.h"

namespace muster::launcher {

class HostEnds {
 public:
  explicit HostEnds(size_t num_hosts) : num_hosts_(num_hosts) {}

  // The ssh of one host has ended.
  struct End {
    std::string host;
    bool was_greeted = false;  // an agent began there
    int exit_code = 0;         // of the agent, or kConnectionFailed
    std::string last_words;    // of ssh
  };
  struct Line {
    std::string event;
    std::string text;
    bool is_warning = false;  // else an error
  };
  // What the launcher does, in this order.
  struct Orders {
    std::optional<Line> say;
    bool stops_others = false;
  };

  Orders OnEnd(const End& end, MonoTime now);
  // The others have had their time to end by themselves; to be called at NextDeadline.
  Orders OnTime(MonoTime now);
  MonoTime NextDeadline() const { return stop_others_at_; }
  // The launcher was told to end, and passes that on.
  void OnSignal(int signal) { stop_signal_ = signal; }

  bool HaveAllEnded() const { return num_ended_ == num_hosts_; }
  // The launcher's own, once all have ended.
  int ExitCode() const;
  std::string Reason() const;  // why it is not 0: "the agent on a exited with 7"

 private:
  Orders OnUnreachable(const End& end);

  const size_t num_hosts_;
  size_t num_ended_ = 0;
  int stop_signal_ = 0;
  int worst_ = 0;
  std::string unreachable_;    // the host that could not be reached, and why; empty: none
  std::string first_failure_;  // host and code of the first agent that ended with another than 0
  MonoTime stop_others_at_ = MonoTime::InfiniteFuture();
  bool has_stopped_others_ = false;
  bool has_finished_ = false;  // one agent at least has said how the job ended
};

inline constexpr int kConnectionFailed = 255;  // ssh's own exit code

}  // namespace muster::launcher
