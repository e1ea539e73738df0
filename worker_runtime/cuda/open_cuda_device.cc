// CUDA's own parts as a device.
#include <memory>
#include <string>
#include <utility>

#include "muster/cuda_device.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/cuda/capability.h"
#include "worker_runtime/cuda/make_cuda_device.h"

namespace muster {

absl::StatusOr<std::string> CudaDeviceName(int number) {
  MUSTER_ASSIGN_OR_RETURN(const std::unique_ptr<CudaApi> cuda, OpenCuda(number));
  MUSTER_ASSIGN_OR_RETURN(CudaProperties properties, cuda->Properties());
  return std::move(properties.name);
}

absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int number, CudaDeviceOptions options) {
  CudaParts parts = {};
  MUSTER_ASSIGN_OR_RETURN(parts.cuda, OpenCuda(number));
  MUSTER_ASSIGN_OR_RETURN(const CudaProperties properties, parts.cuda->Properties());
  MUSTER_RETURN_IF_ERROR(CheckCapability(properties, MUSTER_CUDA_KERNELS_FOR));
  MUSTER_ASSIGN_OR_RETURN(parts.products, MakeCublasLtProducts(*parts.cuda));
  parts.operations = &CudaOperations;
  MUSTER_RETURN_IF_ERROR(ChooseAttention(options, MakeCudnnAttention, parts));
  return MakeCudaDevice(std::move(parts));
}

}  // namespace muster
