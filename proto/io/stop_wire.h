// The wire form of the stop step between an agent and its workers (proto/agent.proto), both ways.
// Used by agent/worker_service.cc and worker_runtime/runtime/agent_client.cc.
//
// Threads: pure.
#pragma once

#include "absl/status/statusor.h"
#include "proto/base/stop_state.h"

namespace muster::proto {
class StopState;
}  // namespace muster::proto

namespace muster {

// A reason beyond kMaxStopReasonBytes is cut.
void Encode(const StopState& stop, proto::StopState* out);

// Errors: kInvalidArgument: a negative step, a step of no stop, a reason over its bound.
absl::StatusOr<StopState> Decode(const proto::StopState& in);

}  // namespace muster
