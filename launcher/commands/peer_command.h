// `muster accelerate ...`, `muster deepspeed ...`, `muster ilab ...`, also by links of these names:
// their command lines, performed as `muster run` (launcher/peers/). What is not for a launcher goes
// to the real program, if it is installed.
#pragma once

#include "launcher/line/invocation.h"

namespace muster::launcher {

// `invocation.args`: behind the launcher's name. Return the exit code.
int AccelerateCommand(const Invocation& invocation);
int DeepSpeedCommand(const Invocation& invocation);
int InstructLabCommand(const Invocation& invocation);

}  // namespace muster::launcher
