// A program that is linked without CUDA says so, and what to do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/cuda_device.h"
#include "tests/support/status_matchers.h"

namespace muster::testing {
namespace {

TEST(WithoutCuda, SaysSoWhenAGpuIsAskedFor) {
  const auto says_so =
      StatusIs(absl::StatusCode::kUnimplemented, ::testing::HasSubstr("linked without CUDA"));
  EXPECT_THAT(CountCudaDevices(), says_so);
  EXPECT_THAT(OpenCudaDevice(0), says_so);
}

}  // namespace
}  // namespace muster::testing
