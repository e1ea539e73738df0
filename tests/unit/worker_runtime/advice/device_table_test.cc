#include "worker_runtime/advice/device_table.h"

#include <gtest/gtest.h>

namespace muster::advice {
namespace {

TEST(PeakOperations, AreKnownByTheNamesThatCudaGives) {
  EXPECT_EQ(PeakOperations("NVIDIA H100 80GB HBM3", DType::kBf16), 989e12);
  EXPECT_EQ(PeakOperations("NVIDIA H100 PCIe", DType::kBf16), 756e12);
  EXPECT_EQ(PeakOperations("NVIDIA H100 NVL", DType::kBf16), 835e12);
  EXPECT_EQ(PeakOperations("NVIDIA A100-SXM4-80GB", DType::kF16), 312e12);
  EXPECT_EQ(PeakOperations("NVIDIA A100-SXM4-80GB", DType::kF32), 19.5e12);
  EXPECT_EQ(PeakOperations("NVIDIA B200", DType::kBf16), 2250e12);
  EXPECT_EQ(PeakOperations("NVIDIA GB200", DType::kBf16), 2500e12);
  EXPECT_EQ(PeakOperations("an emulated GPU", DType::kBf16), 0);
}

TEST(PeakOperations, AreThoseByWhichAStepIsPredicted) {
  for (const std::string& name : DeviceNames()) {
    const DeviceFacts device = *FindDevice(name);
    EXPECT_EQ(PeakOperations("NVIDIA " + device.cuda_name, DType::kBf16), device.narrow_flops);
    EXPECT_EQ(PeakOperations("NVIDIA " + device.cuda_name, DType::kF32), device.wide_flops);
  }
}

TEST(DeviceOfMemory, IsTheQuickestOfThoseWithAsMuch) {
  EXPECT_EQ(DeviceOfMemory(24).name, "rtx4090");
  EXPECT_EQ(DeviceOfMemory(80).name, "h100");
  EXPECT_EQ(DeviceOfMemory(90).name, "h100");
  EXPECT_EQ(DeviceOfMemory(141).name, "h200");
}

}  // namespace
}  // namespace muster::advice
