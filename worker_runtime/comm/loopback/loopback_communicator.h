// Ranks as threads of one process: the reference that every other back end is compared with.
#pragma once

#include <memory>
#include <vector>

#include "worker_runtime/comm/call_communicator.h"

namespace muster::comm {

// The communicators of all ranks of a group, by rank. Each may be used by a thread of its own.
//
// `common.rank` is ignored; `common.size` is the number of ranks.
std::vector<std::unique_ptr<Communicator>> MakeLoopbackCommunicators(const Membership& common);

}  // namespace muster::comm
