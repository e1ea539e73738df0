// A program without CUDA: it says so when a GPU is asked for.
#include "muster/cuda_device.h"

namespace muster {
namespace {

absl::Status LinkedWithout() {
  return absl::UnimplementedError(
      "device cuda: this program is linked without CUDA; use device cpu, or build it (and muster) "
      "where the CUDA toolkit is installed");
}

}  // namespace

absl::StatusOr<int> CountCudaDevices() { return LinkedWithout(); }

absl::StatusOr<std::string> CudaDeviceName(int) { return LinkedWithout(); }

absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int, CudaDeviceOptions) {
  return LinkedWithout();
}

std::vector<std::string> DescribeCudaLibraries() {
  return {std::string(LinkedWithout().message())};
}

}  // namespace muster
