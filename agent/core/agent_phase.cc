#include "agent/core/agent_phase.h"

#include <array>

#include "proto/base/phase_table.h"

namespace muster::agent {
namespace {

// Every change of phase there is. Printed by PhaseTable(), checked by Enter().
constexpr std::array kTransitions = {
    Transition{Phase::kIdle, Phase::kReserving},     // Started
    Transition{Phase::kIdle, Phase::kDone},          // a signal before the start
    Transition{Phase::kReserving, Phase::kJoining},  // ports are there
    Transition{Phase::kReserving, Phase::kDone},     // no ports, a signal, the job ended
    Transition{Phase::kJoining, Phase::kRunning},    // the round is complete
    Transition{Phase::kJoining, Phase::kReserving},  // refused as stale: begin anew
    Transition{Phase::kJoining, Phase::kDone},       // the job ended, a signal, no server
    Transition{Phase::kRunning, Phase::kStopping},   // success, failure, stop, signal
    Transition{Phase::kRunning, Phase::kDone},      // the guardian is gone, and the workers with it
    Transition{Phase::kStopping, Phase::kWaiting},  // all succeeded, nothing left behind
    Transition{Phase::kStopping, Phase::kReporting},   // failed: the rendezvous decides
    Transition{Phase::kStopping, Phase::kReserving},   // the next round
    Transition{Phase::kStopping, Phase::kDone},        // the job ended, or this node leaves
    Transition{Phase::kWaiting, Phase::kReserving},    // another node failed: once more
    Transition{Phase::kWaiting, Phase::kReporting},    // the job fails
    Transition{Phase::kWaiting, Phase::kDone},         // the job ended
    Transition{Phase::kReporting, Phase::kReserving},  // the budget allows a restart
    Transition{Phase::kReporting, Phase::kDone},       // the job ended
};

}  // namespace

absl::string_view ToString(Phase phase) {
  switch (phase) {
    case Phase::kIdle:
      return "idle";
    case Phase::kReserving:
      return "reserving";
    case Phase::kJoining:
      return "joining";
    case Phase::kRunning:
      return "running";
    case Phase::kWaiting:
      return "waiting";
    case Phase::kStopping:
      return "stopping";
    case Phase::kReporting:
      return "reporting";
    case Phase::kDone:
      return "done";
  }
  return "?";
}

bool IsAllowed(Phase from, Phase to) { return IsInTable(kTransitions, from, to); }

std::string PhaseTable() { return PrintTable(kTransitions); }

}  // namespace muster::agent
