// The communicator of a group of one, for every back end: it has nobody to talk to.
#pragma once

#include <memory>

#include "worker_runtime/comm/call_communicator.h"

namespace muster::comm {

// Its operations are done when they return; those that work in place touch nothing.
std::unique_ptr<Communicator> MakeSoloCommunicator(Membership membership);

}  // namespace muster::comm
