// A program of the user's that the agent runs beside the workers: that of --round_hook, once on
// each node before the workers of a round start, and that of --node_check (node_checker.h).
//
// The guardian runs it, as it runs workers, so it never outlives the agent. Loop thread only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "agent/guardian/guardian.h"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"
#include "proto/io/unique_fd.h"

namespace muster::agent {

struct ProgramRun {
  uint64_t id = 0;                // as of a worker; unique among both
  std::vector<std::string> argv;  // see WorkerCommand
  absl::Duration timeout;
  std::vector<std::string> environment;  // NAME=value, complete
  UniqueFd output;                       // both streams; none: the agent's
};

class NodeProgram {
 public:
  // How messages call the program, and its option.
  struct Words {
    std::string name;    // "the round hook"
    std::string option;  // "--round_hook"; that of the time limit has _timeout behind it
  };

  // `guardian` is used in calls of this class alone.
  NodeProgram(asio::io_context& loop, GuardianClient& guardian, Words words);
  NodeProgram(const NodeProgram&) = delete;
  NodeProgram& operator=(const NodeProgram&) = delete;

  // `then` is called once, from the loop, unless it is cancelled before.
  //
  // Errors: of `then`: kAborted: how it ended, if not with 0; kDeadlineExceeded: it did not end in
  //         time, and its process group has been killed; GuardianListener::on_spawn_failed's.
  void Start(ProgramRun run, absl::AnyInvocable<void(absl::Status)> then);
  // Kills it, if it runs.
  void Cancel();

  // What the guardian says of process `id`; false if that is not this program.
  bool OnSpawnFailed(uint64_t id, const absl::Status& status);
  bool OnExited(const WorkerExit& exit);

 private:
  void Finish(absl::Status status);

  GuardianClient& guardian_;
  const Words words_;
  asio::steady_timer timer_;
  uint64_t id_ = 0;  // 0: none runs
  std::string program_;
  absl::AnyInvocable<void(absl::Status)> then_;
};

}  // namespace muster::agent
