#include "tests/support/emulation/emulated_products.h"

#include <cstdint>
#include <string>
#include <vector>

#include "proto/base/status_macros.h"
#include "tests/support/emulation/emulated_stream.h"
#include "tests/support/emulation/narrow_numbers.h"
#include "worker_runtime/kernels/bias.h"
#include "worker_runtime/kernels/gelu.h"
#include "worker_runtime/kernels/matmul.h"

namespace muster::testing {
namespace {

// op(a) op(b) [+ addend]
std::vector<float> Multiplied(const CudaProduct& p, const std::vector<float>& a,
                              const std::vector<float>& b) {
  std::vector<float> c(p.m * p.n);
  if (p.addend != nullptr) c = Widened(p.addend, p.m * p.n, p.result);
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
                      .data = c.data(), .stride = p.n, .beta = p.addend != nullptr ? 1.0f : 0.0f});
  return c;
}

void AddBias(const CudaProduct& p, std::vector<float>& c) {
  const auto bias = Widened(p.bias, p.n, p.result);
  kernels::Bias<float>().fill({.rows = p.m, .width = p.n}, bias.data(), c.data(), c.data());
}

void Run(const CudaProduct& p) {
  const auto a = Widened(p.a, p.m * p.k, p.type);
  const auto b = Widened(p.b, p.k * p.n, p.type);
  std::vector<float> c = Multiplied(p, a, b);
  const auto count = static_cast<int64_t>(c.size());
  switch (p.epilogue) {
    case Epilogue::kNone:
      break;
    case Epilogue::kBias:
      AddBias(p, c);
      break;
    case Epilogue::kBiasGelu:
      AddBias(p, c);
      Store(c, p.pre, p.result);
      kernels::Gelu<float>().forward(c.data(), c.data(), count);
      break;
    case Epilogue::kGeluGradient:
      kernels::Gelu<float>().backward(Widened(p.pre, count, p.result).data(), c.data(), c.data(),
                                      count);
      break;
    case Epilogue::kBiasGradient: {
      MUSTER_CHECK(p.transpose_a);
      std::vector<float> sums(p.m);
      kernels::Bias<float>().gradient({.rows = p.k, .width = p.m}, a.data(), sums.data(),
                                      /*accumulate=*/false);
      Store(sums, p.bias, p.result);
      break;
    }
  }
  Store(c, p.c, p.result);
}

}  // namespace

absl::Status EmulatedProducts::Multiply(CudaStream stream, const CudaProduct& product) {
  if (product.epilogue != Epilogue::kNone && epilogues_ == Epilogues::kRefusedWhenTried) {
    return absl::UnimplementedError("no algorithm starts");
  }
  EmulatedStream& on = EmulatedStream::Of(stream);
  kernels::LaunchError error = on.Enqueue([product] {
    Run(product);
    return std::string();
  });
  const bool has_gelu =
      product.epilogue == Epilogue::kBiasGelu || product.epilogue == Epilogue::kGeluGradient;
  if (epilogues_ == Epilogues::kSlowGelu && has_gelu) {
    constexpr int kPieces = 20;
    for (int i = 0; i < kPieces && error == nullptr; ++i) {
      error = on.Enqueue([] { return std::string(); });
    }
  }
  return error == nullptr ? absl::OkStatus() : absl::InternalError(error);
}

}  // namespace muster::testing
