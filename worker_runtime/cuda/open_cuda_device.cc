// CUDA's own parts as a device.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/cuda_device.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/cuda/attention_library.h"
#include "worker_runtime/cuda/capability.h"
#include "worker_runtime/cuda/make_cuda_device.h"
#include "worker_runtime/cuda/products.h"

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
  MUSTER_ASSIGN_OR_RETURN(const std::string cublaslt, NameCublasLt());
  parts.products_note = absl::StrCat("products by ", cublaslt);
  parts.operations = &CudaOperations;
  parts.times_gelu = !options.same_bits;
  MUSTER_RETURN_IF_ERROR(ChooseAttention(options, MakeCudnnAttention, parts));
  return MakeCudaDevice(std::move(parts));
}

std::vector<std::string> DescribeCudaLibraries() {
  std::vector<std::string> lines;
  for (const absl::StatusOr<std::string>& found : {NameCublasLt(), NameCudnn()}) {
    lines.push_back(found.ok() ? *found : std::string(found.status().message()));
  }
  return lines;
}

}  // namespace muster
