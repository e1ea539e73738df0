// The daemon of the Slurm step that this process is a task of (slurmstepd). It passes our lines to
// srun, and scancel and time limits to us; where it has been killed nobody can stop this node any
// more.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "proto/io/unique_fd.h"

namespace muster::launcher {

// A pidfd of the nearest ancestor that is one; readable once it has ended. None if there is no such
// ancestor to be seen, as in a container with processes of its own.
UniqueFd OpenStepDaemon();

// Whether the step runs on this machine, as a living one does on each of its nodes; not known where
// not all processes are to be seen (a container, hidepid). Variables outlive their step in what has
// left it, such as a terminal multiplexer.
std::optional<bool> IsStepAlive(int64_t job, int64_t step);

// Whether a step daemon whose command line is `title` may be that of the step. Slurm writes
// "slurmstepd: [17.0]", cut where the first command line ended. Threads: pure.
bool MayBeDaemonOf(int64_t job, int64_t step, const std::string& title);

}  // namespace muster::launcher
