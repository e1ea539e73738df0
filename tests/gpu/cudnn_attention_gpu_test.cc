// cuDNN's attention on a GPU, beside our kernels and the host.
#include <memory>
#include <string>

#include "muster/cuda_device.h"
#include "tests/unit/worker_runtime/cuda/attention_library_contract.h"

namespace muster::testing {

std::unique_ptr<Device> OpenAttention(CudaAttention attention, bool same_bits, std::string& why) {
  auto device = OpenCudaDevice(0, {.attention = attention, .same_bits = same_bits});
  why = std::string(device.status().message());
  return device.ok() ? *std::move(device) : nullptr;
}

namespace {

constexpr kernels::AttentionShape kUsual = {
    .batch = 2, .sequence = 256, .heads = 4, .head_width = 64};
constexpr kernels::AttentionShape kOdd = {
    .batch = 3, .sequence = 129, .heads = 3, .head_width = 80};
constexpr kernels::AttentionShape kWide = {
    .batch = 1, .sequence = 383, .heads = 2, .head_width = 128};
constexpr kernels::AttentionShape kShort = {
    .batch = 2, .sequence = 2, .heads = 2, .head_width = 96};
constexpr kernels::AttentionShape kGrouped = {
    .batch = 2, .sequence = 257, .heads = 8, .kv_heads = 2, .head_width = 128};
constexpr kernels::AttentionShape kOneOfKeys = {.batch = 1,
                                                .sequence = 129,
                                                .heads = 6,
                                                .kv_heads = 1,
                                                .head_width = 80,
                                                .score_scale = 0.0625};

INSTANTIATE_TEST_SUITE_P(Gpu, AttentionContract,
                         ::testing::Values(AttentionCase{kUsual, DType::kBf16, false},
                                           AttentionCase{kUsual, DType::kF16, false},
                                           AttentionCase{kUsual, DType::kBf16, true},
                                           AttentionCase{kOdd, DType::kBf16, false},
                                           AttentionCase{kOdd, DType::kF16, true},
                                           AttentionCase{kWide, DType::kBf16, false},
                                           AttentionCase{kWide, DType::kBf16, true},
                                           AttentionCase{kShort, DType::kF16, false},
                                           AttentionCase{kGrouped, DType::kBf16, false},
                                           AttentionCase{kGrouped, DType::kF16, true},
                                           AttentionCase{kOneOfKeys, DType::kBf16, false},
                                           AttentionCase{kOneOfKeys, DType::kBf16, true}));

}  // namespace
}  // namespace muster::testing
