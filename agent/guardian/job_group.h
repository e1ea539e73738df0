// A control group of the job's own, for the end of all that its workers have started where the
// agent and its guardian were both killed: a third process, under a megabyte (last_watch.cc), waits
// for that.
//
// The group is made below this process's own, by mkdir, and only where that one is delegated to us:
// it belongs to this user who is not root, or its owner has marked it so, or it is the root of a
// container's own hierarchy. Elsewhere there is none.
//
// Source: kernel documentation, cgroup-v2.rst, "Delegation" and "cgroup.kill"; systemd's
//         CGROUP_DELEGATION (the mark is the attribute user.delegate or trusted.delegate).
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "proto/io/unique_fd.h"

namespace muster::agent {

struct JobGroup {
  UniqueFd above;    // the directory of our own group
  std::string name;  // in it
  UniqueFd procs;    // who writes 0 to it is moved into the group
};

// Nothing where none can be made, or where the kernel could not end it at once (before Linux 5.14).
std::optional<JobGroup> MakeJobGroup();

// Removes the empty group of a launch that goes no further.
void RemoveJobGroup(const JobGroup& group);

// The third process, which removes the group at the end. It is nobody's descendant here. Before the
// guardian is forked.
class LastWatch {
 public:
  // False if it cannot be started.
  bool Start(const JobGroup& group);
  // It waits for the ends of both from now on.
  void TellGuardian(pid_t guardian);

 private:
  UniqueFd guardian_pipe_;
};

}  // namespace muster::agent
