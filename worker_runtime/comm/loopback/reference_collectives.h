// Collectives over buffers of one process, as plainly as they can be written: what other backends
// are compared with.
//
// Threads: pure.
#pragma once

#include "absl/types/span.h"
#include "worker_runtime/comm/call_communicator.h"

namespace muster::comm {

// Runs one collective that every rank has called alike; calls[r] is rank r's. Outputs may alias
// inputs as Communicator allows.
void RunReference(absl::Span<const Call* const> calls);

}  // namespace muster::comm
