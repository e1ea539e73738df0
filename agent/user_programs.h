// The programs of the user's that the agent runs beside the workers, and which of them the guardian
// speaks of.
//
// Loop thread only.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "agent/guardian/guardian.h"
#include "agent/node_checker.h"
#include "agent/node_program.h"
#include "asio/io_context.hpp"

namespace muster::agent {

struct UserPrograms {
  // `guardian` is used in calls of the programs alone.
  UserPrograms(asio::io_context& loop, GuardianClient& guardian)
      : check(loop, guardian),
        hook(loop, guardian, {.name = "the round hook", .option = "--round_hook"}) {}

  // What the guardian says of process `id`; false if that is none of them.
  bool OnSpawnFailed(uint64_t id, const absl::Status& status) {
    return hook.OnSpawnFailed(id, status) || check.OnSpawnFailed(id, status);
  }
  bool OnExited(const WorkerExit& exit) { return hook.OnExited(exit) || check.OnExited(exit); }

  NodeChecker check;  // runs before the node joins
  NodeProgram hook;   // runs before the workers of a round
};

}  // namespace muster::agent
