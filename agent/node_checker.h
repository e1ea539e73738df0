// Runs the program of --node_check, and says how it ended, with its last line.
//
// Its output is read as it comes and kept up to one line, so that it may print as much as it likes.
// One that fails is ended with all that it has started, wherever that has moved. Loop thread only.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "agent/console/last_line.h"
#include "agent/core/agent_events.h"
#include "agent/guardian/guardian.h"
#include "agent/node_program.h"
#include "asio/io_context.hpp"
#include "asio/posix/stream_descriptor.hpp"

namespace muster::agent {

class NodeChecker {
 public:
  // `guardian` is used in calls of this class alone.
  NodeChecker(asio::io_context& loop, GuardianClient& guardian);
  NodeChecker(const NodeChecker&) = delete;
  NodeChecker& operator=(const NodeChecker&) = delete;

  // `run` without its output. `then` is called once, from the loop, unless it is cancelled before.
  void Start(ProgramRun run, absl::AnyInvocable<void(CheckEnded)> then);
  // Ends it, if it runs.
  void Cancel();

  // The guardian speaks of process `id`; false if that is not the check.
  bool OnSpawnFailed(uint64_t id, const absl::Status& status);
  bool OnExited(const WorkerExit& exit);

 private:
  // Reads on until the program has ended.
  void Read();
  // Takes what there is, up to the buffer's size, without waiting. False: no more will come.
  bool TakeSome();
  // Takes what the pipe holds: whoever has it still may write for ever.
  void Drain();
  void Finish(const absl::Status& ended);

  asio::io_context& loop_;
  GuardianClient& guardian_;
  NodeProgram program_;
  std::optional<asio::posix::stream_descriptor> output_;
  std::array<char, size_t{64} << 10> buffer_;
  LastLine last_line_;
  uint64_t failed_id_ = 0;  // killed, and not ended yet: its descendants are swept then
  bool cannot_start_ = false;
  absl::AnyInvocable<void(CheckEnded)> then_;
};

}  // namespace muster::agent
