// `muster doctor`: looks at this node, or at those of a host file.
#pragma once

#include "launcher/line/invocation.h"

namespace muster::launcher {

// Returns the exit code: 0 without a fault, 1 with one, 2 for a wrong command line; over a host
// file as `muster run` of the doctor.
int DoctorCommand(const Invocation& invocation);

}  // namespace muster::launcher
