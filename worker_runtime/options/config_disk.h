// Configuration files on this machine's disk: the shell beside config_files.h.
#pragma once

#include "worker_runtime/options/config_files.h"

namespace muster::plan {

// Reads files as this process can; ~ is $HOME. `world_size` and `of_node` are the job's.
ConfigView ConfigFilesOnDisk(int world_size, int of_node);

}  // namespace muster::plan
