// What a job leaves behind whose agent and guardian were both killed (`kill -9`, the kernel's
// out-of-memory killer): workers die with the guardian, but what they had started lives on. The
// next agent of this user on this node ends it.
//
// A runtime directory holds a file that its agent keeps locked; the kernel unlocks it with the
// agent's end, whatever that is. Processes of a dead job are known by the directory's name in
// their environment.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/io/unique_fd.h"

namespace muster::agent {

// Marks `runtime_directory` as in use for as long as the result is open.
//
// Errors: kUnavailable with errno.
absl::StatusOr<UniqueFd> LockRuntimeDirectory(const std::string& runtime_directory);

// Ends (SIGKILL) what dead jobs have left running whose directories are `prefix`* in one of
// `places`, such as {"/tmp/muster-", "/run/user/7/muster/"}, and removes the directories. Those
// that are locked, not this user's alone, or without a lock file are left alone.
//
// Returns one line for each, "2 processes (pids 7, 9) of the job in /tmp/muster-x7a1".
std::vector<std::string> EndLeftovers(const std::vector<std::string>& places);

}  // namespace muster::agent
