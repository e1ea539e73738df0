// What the operating system knows of this process and its machine.
#pragma once

#include <cstdint>

namespace muster::train {

// Of this process; 0: not known.
int64_t OwnResidentBytes();
// Physical memory; the largest number if it is not known.
int64_t MachineBytes();
// By the locale in the environment.
bool TerminalIsUtf8();

}  // namespace muster::train
