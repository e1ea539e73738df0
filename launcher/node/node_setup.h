// What this node brings to the job: workers, devices, CPUs, address, command and directories. Reads
// the machine; starts nothing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/agent.h"
#include "launcher/line/flags.h"
#include "launcher/line/invocation.h"
#include "launcher/line/placement.h"
#include "launcher/node/endpoint.h"
#include "launcher/schedulers/scheduler.h"
#include "proto/spec/job_spec.h"

namespace muster::launcher {

struct NodeSetup {
  agent::AgentOptions agent;
  std::optional<ResolvedEndpoint> endpoint;  // none: one node alone, no port and no server address
  std::string python;              // the workers' interpreter and why it is this one; empty: none
  bool may_host = false;           // this node may try to host the server at the endpoint
  std::vector<std::string> notes;  // worth a line each, once
};

// Errors: kInvalidArgument / kResourceExhausted for the user, naming the flag and the value.
absl::StatusOr<NodeSetup> PrepareNode(const JobSpec& spec, const Placement& placement,
                                      const Invocation& invocation);

// The text of a file that a user named: a configuration, a list of hosts. It may be anything: a
// pipe of the shell, a device without an end.
//
// Errors: kInvalidArgument saying why, without the path: it cannot be read, or is longer than 4
// MiB.
absl::StatusOr<std::string> ReadBoundedFile(const std::string& path);

// What a scheduler's variables are read with: FindScheduler.
Surroundings SurroundingsOf(const Invocation& invocation);

// What ParseFlags may ask of this machine.
MachineView ViewOfThisMachine(const Invocation& invocation);

// Gives the agent's task the CPUs of all tasks on the node, as far as the scheduler lets it: its
// workers take the places of the others. Before anything is forked.
void TakeAllCpus();

// Removes what PrepareNode made on disk, for a launch that could not begin.
void UndoNodeSetup(const agent::AgentOptions& options);

}  // namespace muster::launcher
