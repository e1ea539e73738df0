// CUDA's runtime does what the emulated one does.
#include <memory>
#include <string>

#include "muster/cuda_device.h"
#include "tests/unit/worker_runtime/cuda/cuda_api_contract.h"

namespace muster::testing {

std::unique_ptr<CudaApi> CudaApiContract::Open(uint64_t, std::string& why) {
  auto cuda = OpenCuda(0);
  why = std::string(cuda.status().message());
  return cuda.ok() ? *std::move(cuda) : nullptr;
}

namespace {

INSTANTIATE_TEST_SUITE_P(Gpu, CudaApiContract, ::testing::Values(0));

TEST(OpenCuda, SaysWhyThereIsNoGpuOrNotThatMany) {
  const auto count = CountCudaDevices();
  const int beyond = count.ok() ? *count : 0;
  const auto cuda = OpenCuda(beyond);
  ASSERT_FALSE(cuda.ok());
  EXPECT_THAT(std::string(cuda.status().message()), ::testing::StartsWith("device cuda: "));
}

}  // namespace
}  // namespace muster::testing
