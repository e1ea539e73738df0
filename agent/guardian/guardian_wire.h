// What agent and guardian say to each other as plain values, and their wire form
// (proto/agent.proto). Each value is the body of one frame of framed_socket.h.
//
// Pure but for the descriptors, which stay with their frame.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/guardian/framed_socket.h"
#include "agent/guardian/warm_parent.h"
#include "agent/guardian/worker_process.h"

namespace muster::agent::wire {

struct SignalGroup {
  uint64_t worker_id = 0;
  int signal = 0;
  absl::Duration group_after;  // to milliseconds
};
struct Sweep {
  int signal = 0;
};
struct RemoveAtEnd {
  std::string path;
};
// An encoded DeathNotice of proto/agent.proto, in place of an earlier one; empty: none.
struct LeaveNotice {
  std::string notice;
};
struct ListStrays {};
using Request =
    std::variant<WorkerCommand, SignalGroup, Sweep, RemoveAtEnd, LeaveNotice, ListStrays>;

// Only the presence of a WorkerCommand's descriptors is written: they travel beside it in the
// order 0, 1, 2.
std::string Encode(const Request& request);
// The descriptors of a WorkerCommand are those of `frame`, which keeps them.
//
// Errors: kInvalidArgument: no request, or other descriptors than it speaks of.
absl::StatusOr<Request> DecodeRequest(const Frame& frame);

struct Spawned {
  uint64_t worker_id = 0;
  pid_t pid = -1;
  bool is_forked = false;  // by the warm process
};
struct SpawnFailed {
  uint64_t worker_id = 0;
  int error_number = 0;
  std::string step;
};
struct Empty {};
struct Strays {
  std::vector<pid_t> pids;
};
using Reply = std::variant<Spawned, SpawnFailed, WorkerExit, Empty, WarmState, Strays>;

std::string Encode(const Reply& reply);
// Errors: kInvalidArgument: no reply.
absl::StatusOr<Reply> DecodeReply(const std::string& body);

// What std::visit takes: one lambda for each alternative.
template <typename... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <typename... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

}  // namespace muster::agent::wire
