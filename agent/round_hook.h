// The program of --round_hook. It runs once on each node before the workers of a round start, and
// they start only if it ends with 0: to look at the node, to fetch data, to clean up after the last
// round.
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
#include "proto/spec/job_spec.h"

namespace muster::agent {

struct HookRun {
  uint64_t id = 0;  // as of a worker; unique among both
  RoundHookSpec hook;
  std::vector<std::string> environment;  // NAME=value, complete
  UniqueFd output;                       // both streams; none: the agent's
};

class RoundHook {
 public:
  // `guardian` is used in calls of this class alone.
  RoundHook(asio::io_context& loop, GuardianClient& guardian);
  RoundHook(const RoundHook&) = delete;
  RoundHook& operator=(const RoundHook&) = delete;

  // `then` is called once, from the loop, unless it is cancelled before.
  //
  // Errors: of `then`: kAborted: how it ended, if not with 0; kDeadlineExceeded: it did not end in
  //         time, and has been killed; GuardianListener::on_spawn_failed's.
  void Start(HookRun run, absl::AnyInvocable<void(absl::Status)> then);
  // Kills it, if it runs.
  void Cancel();

  // What the guardian says of process `id`; false if that is not the hook.
  bool OnSpawnFailed(uint64_t id, const absl::Status& status);
  bool OnExited(const WorkerExit& exit);

 private:
  void Finish(absl::Status status);

  GuardianClient& guardian_;
  asio::steady_timer timer_;
  uint64_t id_ = 0;  // 0: none runs
  std::string program_;
  absl::AnyInvocable<void(absl::Status)> then_;
};

}  // namespace muster::agent
