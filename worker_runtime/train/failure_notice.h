// Why the program ends, said once per job.
//
// A wrong flag fails every rank with the same words; a job of a thousand ranks shall not say it a
// thousand times, yet a rank whose failure is its own must speak. So rank 0 speaks and leaves its
// sentence in the store of the round; the others read it there before they decide.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "muster/runtime.h"

namespace muster::train {

// Whether a failure may have come from another rank: kAborted, kUnavailable, kDeadlineExceeded, and
// no own failure (muster/agreement.h).
// Threads: pure.
bool MayComeFromPeers(const absl::Status& failure);

// Whether a rank other than 0 has something to say that rank 0 has not said. A failure that came
// from a peer reaches rank 0 as well, in words that name another rank. Threads: pure.
bool MustSay(const absl::Status& failure, const std::optional<std::string>& said_by_rank_0);

// Prints "muster-train: <message>" on stderr where needed. Waits at most two seconds for rank 0.
// Without a runtime (null) it prints.
void SayFailure(Runtime* runtime, const absl::Status& failure);

// 2 for what the user can correct before the first step: kInvalidArgument, kNotFound,
// kAlreadyExists, kPermissionDenied, kUnimplemented, kFailedPrecondition; else 1. Threads: pure.
int ExitCodeOfSetup(const absl::Status& failure);

}  // namespace muster::train
