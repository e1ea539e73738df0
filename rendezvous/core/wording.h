// How counts and ends of workers read in the messages of the rendezvous; names and durations:
// proto/base/words.h.
//
// Threads: pure.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "proto/base/membership.h"
#include "proto/base/words.h"

namespace muster::rendezvous {

// "node" or "nodes".
absl::string_view Nodes(int count);

using muster::InWords;
using muster::NamesInWords;

// "rank 5 (local rank 1) on node2 exited with code 1".
std::string InWords(const WorkerFailure& failure);

}  // namespace muster::rendezvous
