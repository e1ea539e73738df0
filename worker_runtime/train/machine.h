// What the operating system knows of this process and its machine, and whether a model fits it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "muster/decoder_config.h"
#include "muster/dtype.h"

namespace muster::train {

// The resident set in the text of /proc/self/status; 0 if there is none. Threads: pure.
int64_t ResidentBytes(absl::string_view proc_status);
// The resident set of this process; 0: not known.
int64_t OwnResidentBytes();
// The least memory that the control groups of a process allow it, in the text of /proc/self/cgroup
// (both versions); the largest number if they allow any. `read` gives the text of a file, empty if
// there is none.
// Threads: pure.
int64_t ControlGroupBytes(absl::string_view proc_cgroup,
                          absl::FunctionRef<std::string(const std::string& path)> read);
// What this process and the others of its machine or control group may take together: physical
// memory, or what the control groups allow; the largest number if neither is known.
int64_t MachineBytes();

// Whether a model can be trained in the memory of this machine at all. Counts parameters, gradients
// and both moments of `local_size` ranks; activations come on top.
//
// Errors: kInvalidArgument: more than `machine_bytes` (both numbers, and what to change).
// Threads: pure.
absl::Status CheckFitsMachine(const DecoderConfig& model, DType dtype, int local_size,
                              int64_t machine_bytes);

}  // namespace muster::train
