// The device as it is opened by programs does what it does over an emulated GPU.
#include <memory>
#include <string>

#include "muster/cuda_device.h"
#include "tests/unit/worker_runtime/cuda/cuda_device_contract.h"

namespace muster::testing {

std::unique_ptr<Device> OpenDevice(uint64_t, std::string& why) {
  auto device = OpenCudaDevice(0, {.attention = CudaAttention::kOwn});
  why = std::string(device.status().message());
  return device.ok() ? *std::move(device) : nullptr;
}

namespace {

INSTANTIATE_TEST_SUITE_P(Gpu, CudaDeviceContract, ::testing::Values(0));

}  // namespace
}  // namespace muster::testing
