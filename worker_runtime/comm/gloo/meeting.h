// How the ranks of a group come together through the store, before they have any connection: rank 0
// sees that everybody is there and tells each machine which ranks it holds. So a rank writes and
// waits for a handful of keys, whatever the size of the group.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "muster/store.h"
#include "proto/base/mono_time.h"

namespace muster::comm {

struct MeetingOptions {
  int rank = 0;
  int size = 1;
  std::string group;
  std::string prefix;   // of its keys in the store: the same on all ranks, used once
  std::string machine;  // ThisMachine(), or empty to stay out of shared memory
  MonoTime deadline;
};

// Waits until all ranks have come. Returns the ranks with this rank's `machine` in ascending order,
// itself included; itself alone where that is empty.
//
// Errors: kDeadlineExceeded: names the ranks that did not come; the store's.
// Cost:   rank 0: size keys; the others: three.
absl::StatusOr<std::vector<int>> Meet(Store& store, const MeetingOptions& options);

}  // namespace muster::comm
