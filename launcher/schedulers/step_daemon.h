// The daemon of the Slurm step that this process is a task of (slurmstepd). It passes our lines to
// srun, and scancel and time limits to us; where it has been killed nobody can stop this node any
// more.
#pragma once

#include "proto/io/unique_fd.h"

namespace muster::launcher {

// A pidfd of the nearest ancestor that is one; readable once it has ended. None if there is no such
// ancestor to be seen, as in a container with processes of its own.
UniqueFd OpenStepDaemon();

}  // namespace muster::launcher
