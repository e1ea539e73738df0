// A library's attention on a device, beside our kernels and the host: of the host over an emulated
// GPU (cuda_attention_test.cc), and cuDNN's on a real one (tests/gpu/cudnn_attention_gpu_test.cc).
// A file of tests says how a device is opened: OpenAttention is its to define.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "muster/cuda_attention.h"
#include "muster/device.h"
#include "muster/sixteen_bits.h"
#include "muster/tensor.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/cuda/device_numbers.h"
#include "tests/unit/worker_runtime/numbers.h"
#include "worker_runtime/kernels/attention.h"
#include "worker_runtime/nn/operations.h"

namespace muster::testing {

// A device, or null and a reason where there is no GPU or no library.
std::unique_ptr<Device> OpenAttention(CudaAttention attention, bool same_bits, std::string& why);

struct AttentionCase {
  kernels::AttentionShape shape;
  DType dtype;
  bool same_bits;

  int64_t inputs() const { return shape.batch * shape.sequence * shape.line_width(); }
  int64_t outputs() const { return shape.batch * shape.sequence * shape.out_width(); }
  friend std::ostream& operator<<(std::ostream& out, const AttentionCase& c) {
    return out << c.shape.batch << "x" << c.shape.sequence << ", " << c.shape.heads << " heads of "
               << c.shape.head_width << ", keys of " << c.shape.key_heads() << ", in "
               << ToString(c.dtype) << (c.same_bits ? ", the same bits" : "");
  }
};

// What both passes make of random numbers.
struct Attended {
  std::vector<float> out, dqkv;
};

// Rounded as they are stored.
inline std::vector<float> StoredNumbers(int64_t count, DType dtype, const char* purpose) {
  auto numbers = RandomNumbers<float>(count, purpose);
  for (float& x : numbers) x = dtype == DType::kF16 ? FromF16(ToF16(x)) : FromBf16(ToBf16(x));
  return numbers;
}

inline Attended AttendOn(const Device& device, const AttentionCase& c) {
  TensorPool pool(device);
  Queue queue(device, &pool);
  const Operations& operations = device.operations(c.dtype);
  const Tensor qkv = OnDevice(pool, c.dtype, StoredNumbers(c.inputs(), c.dtype, "qkv"));
  const Tensor dout = OnDevice(pool, c.dtype, StoredNumbers(c.outputs(), c.dtype, "dout"));
  const Tensor out = pool.Allocate(c.dtype, {c.outputs()});
  const Tensor dqkv = pool.Allocate(c.dtype, {c.inputs()});
  const Tensor saved = pool.Allocate(DType::kF32, {2, c.shape.query_rows()});
  operations.attention_forward(queue, c.shape, qkv, out, saved, {});
  operations.attention_backward(queue, c.shape, {qkv, saved, out, dout}, dqkv, {});
  return {OnHost(device, out), OnHost(device, dqkv)};
}

inline Attended AttendOnHost(const AttentionCase& c) {
  const auto qkv = StoredNumbers(c.inputs(), c.dtype, "qkv");
  const auto dout = StoredNumbers(c.outputs(), c.dtype, "dout");
  Attended made = {std::vector<float>(c.outputs()), std::vector<float>(c.inputs())};
  std::vector<float> row_max(c.shape.query_rows()), row_scale(c.shape.query_rows());
  std::vector<float> scratch(kernels::AttentionScratchElements(c.shape));
  const auto& host = kernels::Attention<float>();
  host.forward(c.shape, qkv.data(), made.out.data(), {row_max.data(), row_scale.data()},
               scratch.data());
  host.backward(c.shape, qkv.data(), {row_max.data(), row_scale.data()},
                {made.out.data(), dout.data()}, made.dqkv.data(), scratch.data());
  return made;
}

class AttentionContract : public ::testing::TestWithParam<AttentionCase> {
 protected:
  void SetUp() override {
    std::string why;
    library_ = OpenAttention(CudaAttention::kCudnn, GetParam().same_bits, why);
    if (library_ == nullptr) GTEST_SKIP() << why;
    own_ = OpenAttention(CudaAttention::kOwn, false, why);
    ASSERT_NE(own_, nullptr) << why;
  }

  std::unique_ptr<Device> library_, own_;
};

// Values, weights P and dS of 16 bits have 8 bits (bf16) or 11 of their own; sums of some hundred
// have two more at risk.
TEST_P(AttentionContract, IsNearTheHostsAndOurKernels) {
  const double tolerance = GetParam().dtype == DType::kF16 ? 4e-3 : 3e-2;
  const Attended host = AttendOnHost(GetParam());
  const Attended own = AttendOn(*own_, GetParam());
  const Attended library = AttendOn(*library_, GetParam());
  EXPECT_LE(RelativeError(library.out, host.out), tolerance);
  EXPECT_LE(RelativeError(library.dqkv, host.dqkv), tolerance);
  EXPECT_LE(RelativeError(library.out, own.out), tolerance);
  EXPECT_LE(RelativeError(library.dqkv, own.dqkv), tolerance);
}

TEST_P(AttentionContract, HasTheSameBitsAgainButForQuickGradients) {
  const Attended once = AttendOn(*library_, GetParam());
  for (int i = 0; i < 3; ++i) {
    const Attended again = AttendOn(*library_, GetParam());
    EXPECT_TRUE(SameBits(again.out, once.out));
    EXPECT_TRUE(!GetParam().same_bits || SameBits(again.dqkv, once.dqkv));
  }
}

}  // namespace muster::testing
