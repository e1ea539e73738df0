// The processes of this machine, as /proc shows them: to find what a job has left behind.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace muster::testing {

// Living processes (no zombies) in whose initial environment `assignment` ("NAME=value") stands. A
// job started with a mark of its own hands it to every descendant, whatever session or parent they
// move to.
std::vector<pid_t> ProcessesWith(const std::string& assignment);

std::vector<pid_t> ChildrenOf(pid_t parent);
// The name of /proc/PID/comm, at most 15 characters; empty if the process is gone.
std::string NameOf(pid_t pid);
// One line per process: pid, name, command line.
std::string Describe(const std::vector<pid_t>& pids);

}  // namespace muster::testing
