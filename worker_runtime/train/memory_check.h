// Whether a model can be trained in the memory of this machine at all.
//
// Threads: pure.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "muster/dtype.h"
#include "muster/gpt_config.h"

namespace muster::train {

// Counts parameters, gradients and both moments of `local_size` ranks; activations come on top.
//
// Errors: kInvalidArgument: more than `machine_bytes` (both numbers, and what to change).
absl::Status CheckFitsMachine(const GptConfig& model, DType dtype, int local_size,
                              int64_t machine_bytes);

}  // namespace muster::train
