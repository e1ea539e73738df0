// "SIGTERM" for 15; "signal 77" for numbers without a name. Pure.
#pragma once

#include <string>

namespace muster::agent {

std::string SignalName(int signal);

}  // namespace muster::agent
