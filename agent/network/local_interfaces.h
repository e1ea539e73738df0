// The interfaces and routes of this machine, as the kernel has them now.
//
// Threads: safe; nothing here waits.
#pragma once

#include <string>
#include <vector>

#include "agent/network/network_choice.h"

namespace muster::agent {

// Those that are up, in the kernel's order; without link-local addresses. Empty if the kernel does
// not say.
std::vector<Interface> ListInterfaces();

// This node's own address on the route to `address`, which is numeric; empty: there is no route.
std::string SourceOfRouteTo(const std::string& address);

}  // namespace muster::agent
