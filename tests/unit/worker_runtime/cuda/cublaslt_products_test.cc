// Products over a library in cuBLASLt's place, which multiplies on the host and starts what it is
// told to: it may name algorithms that it does not start.
#include "worker_runtime/cuda/cublaslt_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/support/emulation/emulated_cuda.h"
#include "tests/support/emulation/emulated_products.h"
#include "tests/unit/worker_runtime/cuda/device_numbers.h"
#include "tests/unit/worker_runtime/numbers.h"
#include "worker_runtime/cuda/make_cuda_device.h"
#include "worker_runtime/nn/operations.h"

namespace muster::testing {
namespace {

struct StandInProduct {
  cublasOperation_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;
  void* pre = nullptr;
  int64_t pre_stride = 0;
};
struct StandInLayout {
  cudaDataType type;
  int64_t rows, columns, stride;
};

// What one test's library does, and what it saw.
struct StandIn {
  // Whether that algorithm starts, of how many are named.
  std::function<bool(cublasLtEpilogue_t, int)> starts = [](auto, int) { return true; };
  int algorithms = 2;
  EmulatedProducts host;
  int questions = 0;
  std::vector<std::pair<cublasLtEpilogue_t, int>> tried;
  int held = 0;  // of products, layouts, preferences and handles
};
StandIn* the_library = nullptr;

template <typename Handle, typename Content>
Handle Give(Content* content) {
  ++the_library->held;
  return reinterpret_cast<Handle>(content);
}
template <typename Content, typename Handle>
cublasStatus_t Take(Handle handle) {
  --the_library->held;
  delete reinterpret_cast<Content*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t SetProduct(cublasLtMatmulDesc_t handle, cublasLtMatmulDescAttributes_t which,
                          const void* from, size_t bytes) {
  auto& product = *reinterpret_cast<StandInProduct*>(handle);
  const auto set = [&](auto& to) {
    if (bytes != sizeof(to)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&to, from, bytes);
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (which) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(product.transpose_a);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(product.transpose_b);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(product.epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(product.bias);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return set(product.pre);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return set(product.pre_stride);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t NameAlgorithms(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                              cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int most,
                              cublasLtMatmulHeuristicResult_t* best, int* found) {
  ++the_library->questions;
  *found = std::min(most, the_library->algorithms);
  for (int i = 0; i < *found; ++i) {
    best[i] = {};
    best[i].algo.data[0] = static_cast<uint64_t>(i);
    best[i].state = CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}

DType TypeOf(cudaDataType type) {
  if (type == CUDA_R_16BF) return DType::kBf16;
  return type == CUDA_R_16F ? DType::kF16 : DType::kF32;
}

Epilogue Meant(cublasLtEpilogue_t epilogue) {
  switch (epilogue) {
    case CUBLASLT_EPILOGUE_BIAS:
      return Epilogue::kBias;
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
      return Epilogue::kBiasGelu;
    case CUBLASLT_EPILOGUE_DGELU:
      return Epilogue::kGeluGradient;
    case CUBLASLT_EPILOGUE_BGRADB:
      return Epilogue::kBiasGradient;
    default:
      return Epilogue::kNone;
  }
}

// Columns after columns, as cuBLASLt has them: d = op(a) op(b) is our c transposed.
cublasStatus_t Multiply(cublasLtHandle_t, cublasLtMatmulDesc_t handle, const void*, const void* a,
                        cublasLtMatrixLayout_t of_a, const void* b, cublasLtMatrixLayout_t of_b,
                        const void* beta, const void* c, cublasLtMatrixLayout_t, void* d,
                        cublasLtMatrixLayout_t of_d, const cublasLtMatmulAlgo_t* algorithm, void*,
                        size_t, cudaStream_t stream) {
  const auto& product = *reinterpret_cast<StandInProduct*>(handle);
  const auto layout = [](cublasLtMatrixLayout_t of) -> const StandInLayout& {
    return *reinterpret_cast<StandInLayout*>(of);
  };
  const int number = static_cast<int>(algorithm->data[0]);
  the_library->tried.emplace_back(product.epilogue, number);
  if (!the_library->starts(product.epilogue, number)) return CUBLAS_STATUS_NOT_SUPPORTED;
  for (const cublasLtMatrixLayout_t of : {of_a, of_b, of_d}) {
    if (layout(of).stride != layout(of).rows) return CUBLAS_STATUS_INVALID_VALUE;
  }
  const bool first = product.transpose_a == CUBLAS_OP_T,
             second = product.transpose_b == CUBLAS_OP_T;
  const CudaProduct meant = {.m = layout(of_d).columns,
                             .n = layout(of_d).rows,
                             .k = first ? layout(of_a).rows : layout(of_a).columns,
                             .transpose_a = second,
                             .transpose_b = first,
                             .type = TypeOf(layout(of_a).type),
                             .result = TypeOf(layout(of_d).type),
                             .a = b,
                             .b = a,
                             .addend = *static_cast<const float*>(beta) == 1 ? c : nullptr,
                             .c = d,
                             .epilogue = Meant(product.epilogue),
                             .bias = product.bias,
                             .pre = product.pre};
  if (meant.pre != nullptr && product.pre_stride != meant.n) return CUBLAS_STATUS_INVALID_VALUE;
  return the_library->host.Multiply(stream, meant).ok() ? CUBLAS_STATUS_SUCCESS
                                                        : CUBLAS_STATUS_EXECUTION_FAILED;
}

struct StandInHandle {};
struct StandInPreference {};

CublasLt StandInFunctions() {
  return {.create =
              [](cublasLtHandle_t* to) {
                *to = Give<cublasLtHandle_t>(new StandInHandle());
                return CUBLAS_STATUS_SUCCESS;
              },
          .destroy = &Take<StandInHandle, cublasLtHandle_t>,
          .status_string = [](cublasStatus_t) { return "not what it does"; },
          .matmul = &Multiply,
          .heuristic = &NameAlgorithms,
          .make_product =
              [](cublasLtMatmulDesc_t* to, cublasComputeType_t, cudaDataType_t) {
                *to = Give<cublasLtMatmulDesc_t>(new StandInProduct());
                return CUBLAS_STATUS_SUCCESS;
              },
          .destroy_product = &Take<StandInProduct, cublasLtMatmulDesc_t>,
          .set_product = &SetProduct,
          .make_layout =
              [](cublasLtMatrixLayout_t* to, cudaDataType type, uint64_t rows, uint64_t columns,
                 int64_t stride) {
                *to = Give<cublasLtMatrixLayout_t>(new StandInLayout{
                    type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), stride});
                return CUBLAS_STATUS_SUCCESS;
              },
          .destroy_layout = &Take<StandInLayout, cublasLtMatrixLayout_t>,
          .make_preference =
              [](cublasLtMatmulPreference_t* to) {
                *to = Give<cublasLtMatmulPreference_t>(new StandInPreference());
                return CUBLAS_STATUS_SUCCESS;
              },
          .destroy_preference = &Take<StandInPreference, cublasLtMatmulPreference_t>,
          .set_preference = [](cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
                               const void*, size_t) { return CUBLAS_STATUS_SUCCESS; }};
}

class CublasLtProducts : public ::testing::Test {
 protected:
  void SetUp() override {
    the_library = &library_;
    auto cuda = std::make_unique<EmulatedCuda>(EmulatedCuda::Options{.seed = 4});
    auto products = *MakeProductsOf(StandInFunctions(), *cuda);
    device_ = *MakeCudaDevice(
        {.cuda = std::move(cuda), .products = std::move(products), .operations = &CudaOperations});
    pool_ = std::make_unique<TensorPool>(*device_);
    queue_ = std::make_unique<Queue>(*device_, pool_.get());
  }
  void TearDown() override {
    queue_.reset();
    pool_.reset();
    device_.reset();
    EXPECT_EQ(library_.held, 0);
  }

  static constexpr int64_t kRows = 8, kInputs = 24, kOutputs = 16;
  Tensor Make(const char* name, int64_t rows, int64_t width) {
    return OnDevice(*pool_, DType::kBf16, RandomNumbers<float>(rows * width, name))
        .Reshaped({rows, width});
  }
  // A layer with GELU behind it, and its numbers.
  std::vector<float> Forward(int64_t rows = kRows) {
    const Tensor pre = pool_->Allocate(DType::kBf16, {rows, kOutputs});
    const Tensor gelu = pool_->Allocate(DType::kBf16, {rows, kOutputs});
    device_->operations(DType::kBf16)
        .linear_gelu(*queue_,
                     {.x = Make("x", rows, kInputs),
                      .weight = Make("w", kOutputs, kInputs),
                      .bias = Make("b", 1, kOutputs).Reshaped({kOutputs})},
                     pre, gelu);
    return OnHost(*device_, gelu);
  }
  int Tried(cublasLtEpilogue_t epilogue) const {
    int count = 0;
    for (const auto& [of, number] : library_.tried) count += of == epilogue ? 1 : 0;
    return count;
  }

  StandIn library_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<TensorPool> pool_;
  std::unique_ptr<Queue> queue_;
};

TEST_F(CublasLtProducts, TakeTheBestAlgorithmAndAskForItOnceForAShape) {
  Forward();
  Forward();
  EXPECT_EQ(library_.questions, 1);
  EXPECT_THAT(library_.tried,
              ::testing::ElementsAre(std::pair(CUBLASLT_EPILOGUE_GELU_AUX_BIAS, 0),
                                     std::pair(CUBLASLT_EPILOGUE_GELU_AUX_BIAS, 0)));
}

TEST_F(CublasLtProducts, KeepTheNextAlgorithmWhereTheBestDoesNotStart) {
  library_.starts = [](cublasLtEpilogue_t, int number) { return number == 1; };
  Forward();
  Forward();
  EXPECT_EQ(library_.tried.size(), 3u);
  EXPECT_EQ(library_.tried.back().second, 1);
}

TEST_F(CublasLtProducts, FallBackToPassesForAShapeThatTheLibraryNamedAndDoesNotStart) {
  const std::vector<float> in_one_pass = Forward();
  library_.starts = [](cublasLtEpilogue_t epilogue, int) {
    return epilogue == CUBLASLT_EPILOGUE_DEFAULT;
  };
  library_.tried.clear();
  constexpr int64_t kOther = 2 * kRows;  // the first shape is known to start
  const std::vector<float> in_passes = Forward(kOther);
  EXPECT_EQ(Tried(CUBLASLT_EPILOGUE_GELU_AUX_BIAS), 2);  // both algorithms
  library_.tried.clear();
  EXPECT_EQ(Forward(kOther), in_passes);
  EXPECT_EQ(Tried(CUBLASLT_EPILOGUE_GELU_AUX_BIAS), 0);
  EXPECT_EQ(Tried(CUBLASLT_EPILOGUE_DEFAULT), 1);
  library_.starts = [](auto, int) { return true; };
  EXPECT_EQ(Forward(), in_one_pass);  // of the first shape still in one
  EXPECT_EQ(Tried(CUBLASLT_EPILOGUE_GELU_AUX_BIAS), 1);
}

TEST_F(CublasLtProducts, WithoutABiasAreOneProductWithWhatItIsAddedTo) {
  const Tensor y = pool_->Allocate(DType::kBf16, {kRows, kOutputs});
  const Tensor x = Make("x", kRows, kInputs), weight = Make("w", kOutputs, kInputs);
  const Tensor residual = Make("r", kRows, kOutputs);
  const auto forward = [&](const Tensor& onto) {
    device_->operations(DType::kBf16)
        .linear_forward(*queue_, {.x = x, .weight = weight, .bias = {}}, onto, y);
    return OnHost(*device_, y);
  };
  const std::vector<float> alone = forward({}), sum = forward(residual);
  const std::vector<float> before = OnHost(*device_, residual);
  for (size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(sum[i], alone[i] + before[i], 0.1);
  EXPECT_NE(sum, alone);
  EXPECT_EQ(library_.tried.size(), 2u);
  EXPECT_EQ(Tried(CUBLASLT_EPILOGUE_DEFAULT), 2);
}

TEST_F(CublasLtProducts, OfWhichNoneStartsWithoutAnEpilogueAreTheDevicesFailure) {
  library_.starts = [](auto, int) { return false; };
  const Tensor a = Make("a", kRows, kInputs), b = Make("b", kInputs, kOutputs);
  const Tensor c = pool_->Allocate(DType::kBf16, {kRows, kOutputs});
  device_->operations(DType::kBf16)
      .multiply(*queue_, {.m = kRows, .n = kOutputs, .k = kInputs}, a, b, c);
  float number = 0;
  EXPECT_THAT(device_->Download(*queue_, c.raw_data(), &number, sizeof(uint16_t)),
              StatusIs(absl::StatusCode::kUnimplemented,
                       ::testing::HasSubstr("started none of them (a product of 8 x 24 and 24 x "
                                            "16 in bf16)")));
}

}  // namespace
}  // namespace muster::testing
