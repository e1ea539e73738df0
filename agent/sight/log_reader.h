// Reads windows of the log files of this node's workers, and what they say of their failures.
//
// Only regular files of our own user are read, and no link is followed: what somebody may have put
// in their place is none of the job's.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "rendezvous/status/log_window.h"

namespace muster::agent {

// The place of a node's logs: <run_directory>/attempt_<n>/<local rank>/.
struct LogFiles {
  std::string run_directory;
  int first_rank = 0;
  int num_ranks = 0;
  int attempt = 0;  // the newest
};

// The answer to `ask`, for one rank or for all of this node, of `bytes_max` as JSON at most. Ranks
// count as they are numbered now, also in earlier attempts.
//
// Errors:  kFailedPrecondition: no log files are kept.
// Threads: safe; blocks for as long as the file system does.
absl::StatusOr<status::LogsOfNode> ReadLogs(const LogFiles& files, const status::LogsAsk& ask,
                                            std::optional<int> rank, size_t bytes_max);

}  // namespace muster::agent
