// `muster link DIR`: this program under the names of the launchers whose command lines it takes.
#pragma once

#include "launcher/line/invocation.h"

namespace muster::launcher {

// Makes the links that are missing, and says which. Replaces links to another `muster`, and nothing
// else: a file in the way is named, and no link is made. Returns the exit code.
int LinkCommand(const Invocation& invocation);

}  // namespace muster::launcher
