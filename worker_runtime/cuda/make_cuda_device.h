// A device out of its parts: CUDA's own in a program (OpenCudaDevice), emulated ones in tests.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "muster/device.h"
#include "worker_runtime/cuda/cuda_api.h"
#include "worker_runtime/cuda/products.h"

namespace muster {

struct CudaParts {
  std::unique_ptr<CudaApi> cuda;
  std::unique_ptr<Products> products;  // may use `cuda`
};

// Errors: CudaApi's.
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(CudaParts parts);

}  // namespace muster
