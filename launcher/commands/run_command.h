// `muster run`: one node's part of a job, from the command line to the exit code.
//
// The walk: ParseFlags -> PrepareNode (node_setup.h) -> ForkGuardian -> the rendezvous (embedded,
// or a link to it) -> Agent
// -> JobOutcome -> FormatExitSummary and the exit code.
#pragma once

#include <string>
#include <vector>

#include "proto/spec/worker_env.h"

namespace muster::launcher {

struct Invocation {
  std::string invoked_as;         // path of the binary or link that was called
  std::string binary_directory;   // where our own binary lives
  std::vector<std::string> args;  // behind the subcommand
  EnvironmentMap environment;
};

// Returns the exit code (DESIGN section 4). Must be called on the main thread, before any other
// thread exists.
int RunCommand(const Invocation& invocation);

}  // namespace muster::launcher
