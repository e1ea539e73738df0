// Whether the kernels of this program run on a GPU, asked when it is opened.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/cuda/cuda_api.h"

namespace muster {

// `architectures`: numbers as CUDA has them ("80,90"), oldest first, which the kernels are compiled
// for. Their code runs on what is as new within the same generation; what is newer than the last
// compiles the text of that one. Source: CUDA C++ Programming Guide, "Binary compatibility" and
// "PTX compatibility"
//
// Errors: kUnavailable: they do not, and what would help.
absl::Status CheckCapability(const CudaProperties& gpu, absl::string_view architectures);

}  // namespace muster
