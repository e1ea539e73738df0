// How the ranks of a group come together through the store, before they have any connection: each
// says something, and rank 0 tells all what comes of it once it has heard everybody. So a rank
// writes and waits for a handful of keys, whatever the size of the group.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "muster/store.h"
#include "proto/base/mono_time.h"

namespace muster::comm {

struct MeetingOptions {
  int rank = 0;
  int size = 1;
  std::string group;
  std::string prefix;   // of its keys in the store: the same on all ranks, used once
  std::string machine;  // for Meet: ThisMachine(), or empty to stay out of shared memory
  MonoTime deadline;
};

// What rank 0 makes of what the ranks have said, by rank.
using DecideForAll =
    absl::FunctionRef<absl::StatusOr<std::string>(absl::Span<const std::string> said)>;

// Waits until all ranks have said something; returns what rank 0 decides. Others pass a function
// that is not called.
//
// Errors: kDeadlineExceeded: names the ranks that did not come; the store's; those of `decide`.
// Cost:   rank 0: size keys; the others: two.
absl::StatusOr<std::string> DecideTogether(Store& store, const MeetingOptions& options,
                                           const std::string& said, DecideForAll decide);
// The same for a rank that knows the decision: it tells the others what they need for it, and waits
// for nobody. Rank 0 gives the decision itself.
//
// Errors: the store's.
absl::Status SayWithoutWaiting(Store& store, const MeetingOptions& options, const std::string& said,
                               const std::string& decision);

// Waits until all ranks have come. Returns the ranks with this rank's `machine` in ascending order,
// itself included; itself alone where that is empty.
//
// Errors: as above.
// Cost:   rank 0: size keys and one; the others: three.
absl::StatusOr<std::vector<int>> Meet(Store& store, const MeetingOptions& options);

}  // namespace muster::comm
