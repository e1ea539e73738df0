// The phases of an agent as it knows them (it reports those of AgentPhase), and the table of what
// may follow what. Pure.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace muster::agent {

enum class NodePhase {
  kIdle,       // before Started
  kChecking,   // the node's check runs, or has failed and will run again
  kReserving,  // ports are being reserved for the next join
  kJoining,    // the rendezvous has been asked for a place
  kRunning,    // workers of the round run
  kWaiting,    // all local workers succeeded; others still run
  kStopping,   // the stop ladder is being climbed
  kReporting,  // stopped for the end of the job; waiting for its outcome
  kDone
};
absl::string_view ToString(NodePhase phase);
bool IsAllowed(NodePhase from, NodePhase to);
std::string PhaseTable();

}  // namespace muster::agent
