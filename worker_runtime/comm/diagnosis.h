// The sentences of failed operations. Every rank is to say the same, so they are made from what was
// found out, in one place.
//
// Threads: pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker_runtime/comm/operation.h"

namespace muster::comm {

// "rank 2 of 4", "ranks 1, 3 and 5 of 8"; at most three are named.
std::string NameRanks(const std::vector<int>& ranks, int size);

// kDeadlineExceeded: `absent` did not come to `operation` in time. `details` says more about them,
// or is empty.
absl::Status AbsentError(const Operation& operation, absl::string_view group,
                         const std::vector<int>& absent, int size, absl::Duration timeout,
                         absl::string_view details);

// kInvalidArgument: ranks called different operations at one sequence number. `calls` by rank; the
// smallest party is named first.
absl::Status MismatchError(absl::string_view group, const std::map<int, Operation>& calls);

// kInvalidArgument: a send meets a receive of another size or type.
absl::Status TransferMismatchError(absl::string_view group, const Operation& send, int sender,
                                   const Operation& recv);

// kUnavailable: a rank that `operation` needs is gone.
absl::Status GoneError(const Operation& operation, absl::string_view group, int gone, int size,
                       absl::string_view why);

// kAborted: `rank` called Abort; it closed its communicator.
absl::Status AbortError(int rank, int size, absl::string_view group, absl::string_view reason);
absl::Status ClosedError(int rank, int size, absl::string_view group);

}  // namespace muster::comm
