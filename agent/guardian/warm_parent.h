// The guardian's end of a warm process: a Python that has imported what workers import
// (agent/watch/warm_python.py) and forks them from then on.
//
// It is started like a worker, with one end of a socket as descriptor 3, at which it takes requests
// in frames of framed_socket.h and hands each to a process that it has forked in advance. That one
// first becomes the guardian's own child (the process between them ends), says so over a socket of
// its own, whose credentials carry its pid, and waits to be let go on. So a worker's end is reaped
// like that of any other. What cannot be forked is handed back to be started afresh.
//
// Never blocks. Threads: compatible; the guardian's only one.
#pragma once

#include <poll.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <array>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "agent/guardian/framed_socket.h"
#include "agent/guardian/worker_process.h"
#include "proto/base/mono_time.h"
#include "proto/io/unique_fd.h"

namespace muster::agent {

// What a warm process says of itself.
struct WarmState {
  bool is_ready = false;
  std::string text;  // for people: what it has imported, or why it cannot fork
};

class WarmParent {
 public:
  // How long a request may take until the worker is started afresh.
  // One that was forked in advance answers within milliseconds, and a fresh one takes seconds.
  static constexpr absl::Duration kPatience = absl::Seconds(5);

  // A worker to be started, with streams of its own.
  struct Order {
    WorkerCommand command;  // whose streams are those below
    std::array<UniqueFd, 3> streams;
  };
  struct Forked {
    uint64_t worker_id = 0;
    StartedWorker started;  // what `exec_result` tells is known once it begins its script
  };
  // What has happened since the last turn.
  struct News {
    std::vector<Forked> forked;
    std::vector<Order> refused;  // to be started afresh
    std::vector<WarmState> said;
  };

  // Starts the process that `command` says, in which the hook of workers stops before the script
  // (MUSTER_WARM in its environment). Its output is kept by itself for the workers.
  static std::variant<WarmParent, StartError> Start(WorkerCommand command, const rlimit& open_files,
                                                    int group);

  WarmParent(WarmParent&&) = default;

  pid_t pid() const { return process_.pid; }
  // It forks no more: it has ended, has said that it cannot, or one that it forked did not come.
  bool is_ended() const { return is_ended_; }
  // It has imported, and runs the same program.
  bool CanFork(const WorkerCommand& command) const;
  // May be called only if CanFork. The outcome is in the news of a later turn.
  void Fork(const WorkerCommand& command);
  // It was asked for, and its outcome is not in the news yet.
  bool IsForking(uint64_t worker_id) const;

  void AddPolled(std::vector<pollfd>& polled) const;
  // The time at which a wait for AddPolled's descriptors must end.
  MonoTime NextDeadline() const;
  News Turn(MonoTime now);
  // What was asked for and is not forked, when this process is given up.
  std::vector<Order> GiveUp();

 private:
  struct Pending {
    Order order;
    UniqueFd result;
    MonoTime deadline;
  };

  WarmParent(StartedWorker process, UniqueFd control, std::vector<std::string> argv);
  void ReadFrames(News& news);
  void End(std::string why, News& news);
  std::string WhyNot(const Pending& pending, bool has_answered) const;

  StartedWorker process_;
  UniqueFd control_;
  std::vector<std::string> argv_;
  FrameReader reader_;
  FrameWriter writer_;
  std::vector<Pending> pending_;
  bool is_ready_ = false;
  bool is_ended_ = false;
};

}  // namespace muster::agent
