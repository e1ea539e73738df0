// musterd, the rendezvous daemon, as a function. Its command line is in musterd_options.h, its work
// in rendezvous_server.h.
#pragma once

#include <string>
#include <vector>

#include "proto/base/environment.h"

namespace muster::rendezvous {

// Serves until SIGTERM or SIGINT. `args` without the program's name; returns the exit code.
//
// Threads: the process's first.
int RunMusterd(const std::vector<std::string>& args, const EnvironmentMap& environment);

}  // namespace muster::rendezvous
