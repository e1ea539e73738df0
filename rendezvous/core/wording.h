// How counts, names, durations and ends of workers read in the messages of the rendezvous.
//
// Threads: pure.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "proto/base/membership.h"

namespace muster::rendezvous {

// "node" or "nodes".
absl::string_view Nodes(int count);

// "a", "a and b", "a, b and c", "a, b, c and 5 more": `names` are the first of `count` in all.
std::string NamesInWords(absl::Span<const std::string> names, int count);

// Rounded to what a person reads: "250ms", "6.3s", "12s", "10m0s" as "600s".
std::string InWords(absl::Duration duration);

// "rank 5 (local rank 1) on node2 exited with code 1".
std::string InWords(const WorkerFailure& failure);

}  // namespace muster::rendezvous
