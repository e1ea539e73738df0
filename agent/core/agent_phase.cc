#include "agent/core/agent_phase.h"

#include <array>

#include "proto/base/phase_table.h"

namespace muster::agent {
namespace {

// Every change of phase there is. Printed by PhaseTable(), checked by Enter().
constexpr std::array kTransitions = {
    Transition{NodePhase::kIdle, NodePhase::kReserving},      // Started
    Transition{NodePhase::kIdle, NodePhase::kChecking},       // the same, with --node_check
    Transition{NodePhase::kIdle, NodePhase::kDone},           // a signal before the start
    Transition{NodePhase::kChecking, NodePhase::kReserving},  // the check has passed
    Transition{NodePhase::kChecking, NodePhase::kStopping},   // none follows for those that await
    Transition{NodePhase::kChecking, NodePhase::kDone},       // a signal, the job ended, no server
    Transition{NodePhase::kReserving, NodePhase::kJoining},   // ports are there
    Transition{NodePhase::kReserving, NodePhase::kStopping},  // the same, and workers await a round
    Transition{NodePhase::kReserving, NodePhase::kDone},      // no ports, a signal, the job ended
    Transition{NodePhase::kJoining, NodePhase::kRunning},     // the round is complete
    Transition{NodePhase::kJoining, NodePhase::kReserving},   // refused as stale: start over
    Transition{NodePhase::kJoining, NodePhase::kStopping},    // no round for those that await one
    Transition{NodePhase::kJoining, NodePhase::kDone},        // the job ended, a signal, no server
    Transition{NodePhase::kRunning, NodePhase::kStopping},    // success, failure, stop, signal
    Transition{NodePhase::kRunning,
               NodePhase::kDone},  // the guardian is gone, and the workers with it
    Transition{NodePhase::kStopping, NodePhase::kWaiting},     // all succeeded, nothing left behind
    Transition{NodePhase::kStopping, NodePhase::kReporting},   // failed: the rendezvous decides
    Transition{NodePhase::kStopping, NodePhase::kReserving},   // the next round
    Transition{NodePhase::kStopping, NodePhase::kChecking},    // the same, and a worker failed
    Transition{NodePhase::kStopping, NodePhase::kDone},        // the job ended, or this node leaves
    Transition{NodePhase::kWaiting, NodePhase::kReserving},    // another node failed: once more
    Transition{NodePhase::kWaiting, NodePhase::kChecking},     // the same, after a late failure
    Transition{NodePhase::kWaiting, NodePhase::kReporting},    // the job fails
    Transition{NodePhase::kWaiting, NodePhase::kDone},         // the job ended
    Transition{NodePhase::kReporting, NodePhase::kReserving},  // the budget allows a restart
    Transition{NodePhase::kReporting, NodePhase::kChecking},   // the same, and a worker failed
    Transition{NodePhase::kReporting, NodePhase::kStopping},   // ended, and workers await a round
    Transition{NodePhase::kReporting, NodePhase::kDone},       // the job ended
};

}  // namespace

absl::string_view ToString(NodePhase phase) {
  switch (phase) {
    case NodePhase::kIdle:
      return "idle";
    case NodePhase::kChecking:
      return "checking";
    case NodePhase::kReserving:
      return "reserving";
    case NodePhase::kJoining:
      return "joining";
    case NodePhase::kRunning:
      return "running";
    case NodePhase::kWaiting:
      return "waiting";
    case NodePhase::kStopping:
      return "stopping";
    case NodePhase::kReporting:
      return "reporting";
    case NodePhase::kDone:
      return "done";
  }
  return "?";
}

bool IsAllowed(NodePhase from, NodePhase to) { return IsInTable(kTransitions, from, to); }

std::string PhaseTable() { return PrintTable(kTransitions); }

}  // namespace muster::agent
