#include "tests/support/emulation/emulated_products.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/emulation/emulated_stream.h"
#include "worker_runtime/kernels/cast.h"
#include "worker_runtime/kernels/matmul.h"

namespace muster::testing {
namespace {

// A copy in float of [count] numbers that are stored as `type`.
std::vector<float> Widened(const void* from, int64_t count, DType type) {
  std::vector<float> wide(count);
  if (type == DType::kBf16) {
    kernels::Cast().bf16_to_f32(static_cast<const uint16_t*>(from), wide.data(), count);
  } else {
    const auto* numbers = static_cast<const float*>(from);
    wide.assign(numbers, numbers + count);
  }
  return wide;
}

void Run(const CudaProduct& p) {
  const auto a = Widened(p.a, p.m * p.k, p.type);
  const auto b = Widened(p.b, p.k * p.n, p.type);
  std::vector<float> c(p.m * p.n);
  if (p.accumulate) c = Widened(p.c, p.m * p.n, p.result);
  const auto operand = [](const std::vector<float>& of, bool transposed, int64_t rows,
                          int64_t columns) {
    return kernels::MatmulOperand<float>{
        .data = of.data(),
        .stride = transposed ? rows : columns,
        .transpose = transposed ? kernels::Transpose::kYes : kernels::Transpose::kNo};
  };
  kernels::Matmul({.m = p.m, .n = p.n, .k = p.k}, 1.0f, operand(a, p.transpose_a, p.m, p.k),
                  operand(b, p.transpose_b, p.k, p.n),
                  kernels::MatmulResult<float>{
                      .data = c.data(), .stride = p.n, .beta = p.accumulate ? 1.0f : 0.0f});
  const auto count = static_cast<int64_t>(c.size());
  if (p.result == DType::kBf16) {
    kernels::Cast().f32_to_bf16(c.data(), static_cast<uint16_t*>(p.c), count);
  } else {
    std::copy(c.begin(), c.end(), static_cast<float*>(p.c));
  }
}

}  // namespace

absl::Status EmulatedProducts::Multiply(CudaStream stream, const CudaProduct& product) {
  const kernels::LaunchError error = EmulatedStream::Of(stream).Enqueue([product] {
    Run(product);
    return std::string();
  });
  return error == nullptr ? absl::OkStatus() : absl::InternalError(error);
}

}  // namespace muster::testing
