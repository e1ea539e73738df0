// Products by cuBLASLt.
#include <array>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "muster/cuda_device.h"
#include "proto/base/mutex.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/cuda/cublaslt_library.h"
#include "worker_runtime/cuda/products.h"

namespace muster {
namespace {

// What NVIDIA recommends for Hopper. Source: cuBLAS manual, "cublasSetWorkspace"
constexpr size_t kWorkspaceBytes = kCudaWorkspaceBytes;
// That are tried in turn, where some are named and cannot be started.
constexpr int kAlgorithmsMax = 8;
// Pointers that are aligned better are all alike.
constexpr uint32_t kBestAlignment = 256;

uint32_t AlignmentOf(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  uint32_t alignment = kBestAlignment;
  while (address % alignment != 0) alignment /= 2;
  return alignment;
}

cudaDataType_t TypeOf(DType dtype) {
  if (dtype == DType::kBf16) return CUDA_R_16BF;
  return dtype == DType::kF16 ? CUDA_R_16F : CUDA_R_32F;
}

// What an algorithm is chosen for.
using Key = std::tuple<int64_t, int64_t, int64_t, bool, bool, bool, DType, DType, Epilogue,
                       std::array<uint32_t, 6>>;
Key KeyOf(const CudaProduct& p) {
  return {p.m,
          p.n,
          p.k,
          p.transpose_a,
          p.transpose_b,
          p.addend != nullptr,
          p.type,
          p.result,
          p.epilogue,
          {AlignmentOf(p.a), AlignmentOf(p.b), AlignmentOf(p.c), AlignmentOf(p.addend),
           AlignmentOf(p.bias), AlignmentOf(p.pre)}};
}

cublasLtEpilogue_t Named(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kNone:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::kBiasGelu:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case Epilogue::kGeluGradient:
      return CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::kBiasGradient:
      return CUBLASLT_EPILOGUE_BGRADB;  // our a is its b
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

// What lies beside the result must begin its rows on multiples of this. Source: cublasLt.h,
// CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD
constexpr int64_t kPreMultiple = 8;

// cuBLASLt has columns where we have rows, so it is asked for c^T = op(b)^T op(a)^T: its first
// operand is our b, its second our a, and each lies there as its transpose already. A bias of our
// columns is one of its rows, as it wants it.
class CublasLtProducts final : public Products {
 public:
  CublasLtProducts(CudaApi& cuda, const CublasLt& library) : cuda_(cuda), library_(library) {}
  ~CublasLtProducts() override {
    for (const auto& [key, plan] : plans_) {
      if (plan.ok()) Destroy(*plan);
    }
    if (handle_ != nullptr) library_.destroy(handle_);
    cuda_.Free(workspace_).IgnoreError();
  }

  absl::Status Begin() {
    MUSTER_ASSIGN_OR_RETURN(workspace_, cuda_.Allocate(kWorkspaceBytes));
    return ToStatus(library_.create(&handle_), "cublasLtCreate");
  }

  absl::Status Multiply(CudaStream stream, const CudaProduct& product) override {
    base::MutexLock lock(mu_);
    absl::StatusOr<Plan>& found = PlanOf(product);
    MUSTER_RETURN_IF_ERROR(found.status());
    Plan& plan = *found;
    MUSTER_RETURN_IF_ERROR(SetPointers(plan.product, product));
    const float alpha = 1;
    const float beta = product.addend != nullptr ? 1 : 0;
    const void* const addend = product.addend != nullptr ? product.addend : product.c;
    // The first that starts is kept.
    while (!plan.algorithms.empty()) {
      const cublasStatus_t status =
          library_.matmul(handle_, plan.product, &alpha, product.b, plan.b, product.a, plan.a,
                          &beta, addend, plan.c, product.c, plan.c, &plan.algorithms.front(),
                          workspace_, kWorkspaceBytes, static_cast<cudaStream_t>(stream));
      if (status != CUBLAS_STATUS_NOT_SUPPORTED) return ToStatus(status, "cublasLtMatmul");
      plan.algorithms.erase(plan.algorithms.begin());
    }
    Destroy(plan);
    found = absl::UnimplementedError(
        absl::StrCat("cuBLASLt named algorithms and started none of them", ShapeOf(product)));
    return found.status();
  }

  // What it has no algorithm for it does not have.
  bool HasInOnePass(const CudaProduct& product) override {
    base::MutexLock lock(mu_);
    return PlanOf(product).ok();
  }

 private:
  struct Plan {
    cublasLtMatmulDesc_t product = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
    std::vector<cublasLtMatmulAlgo_t> algorithms;  // the best first
  };

  absl::Status ToStatus(cublasStatus_t status, absl::string_view what) const {
    if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(what, " failed: ", library_.status_string(status)));
  }

  void Destroy(const Plan& plan) const {
    for (const cublasLtMatrixLayout_t layout : {plan.a, plan.b, plan.c}) {
      if (layout != nullptr) library_.destroy_layout(layout);
    }
    if (plan.product != nullptr) library_.destroy_product(plan.product);
  }

  absl::StatusOr<Plan>& PlanOf(const CudaProduct& product) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const Key key = KeyOf(product);
    const auto found = plans_.find(key);
    if (found != plans_.end()) return found->second;
    return plans_.emplace(key, MakePlan(product)).first->second;
  }

  absl::StatusOr<Plan> MakePlan(const CudaProduct& p) {
    if (p.pre != nullptr && p.n % kPreMultiple != 0) {
      return absl::UnimplementedError("cuBLASLt has no epilogue for rows of such a size");
    }
    Plan plan;
    const absl::Status status = Fill(p, plan);
    if (status.ok()) return plan;
    Destroy(plan);
    return absl::Status(status.code(), absl::StrCat(status.message(), ShapeOf(p)));
  }

  static std::string ShapeOf(const CudaProduct& p) {
    return absl::StrCat(" (a product of ", p.m, " x ", p.k, " and ", p.k, " x ", p.n, " in ",
                        ToString(p.type), ")");
  }

  absl::Status Fill(const CudaProduct& p, Plan& plan) {
    // The product is not made by tensor cores in tf32, whose numbers have 10 bits.
    MUSTER_RETURN_IF_ERROR(
        ToStatus(library_.make_product(&plan.product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                 "cublasLtMatmulDescCreate"));
    const auto transposed = [](bool is) { return is ? CUBLAS_OP_T : CUBLAS_OP_N; };
    const cublasOperation_t first = transposed(p.transpose_b), second = transposed(p.transpose_a);
    MUSTER_RETURN_IF_ERROR(Set(plan.product, CUBLASLT_MATMUL_DESC_TRANSA, first));
    MUSTER_RETURN_IF_ERROR(Set(plan.product, CUBLASLT_MATMUL_DESC_TRANSB, second));
    MUSTER_RETURN_IF_ERROR(Set(plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE, Named(p.epilogue)));
    if (p.pre != nullptr) {
      MUSTER_RETURN_IF_ERROR(Set(plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.n));
    }
    MUSTER_RETURN_IF_ERROR(SetPointers(plan.product, p));  // their alignment is looked at
    MUSTER_RETURN_IF_ERROR(p.transpose_a ? MakeLayout(plan.a, p.type, p.k, p.m)
                                         : MakeLayout(plan.a, p.type, p.m, p.k));
    MUSTER_RETURN_IF_ERROR(p.transpose_b ? MakeLayout(plan.b, p.type, p.n, p.k)
                                         : MakeLayout(plan.b, p.type, p.k, p.n));
    MUSTER_RETURN_IF_ERROR(MakeLayout(plan.c, p.result, p.m, p.n));
    return ChooseAlgorithm(p, plan);
  }

  template <typename T>
  absl::Status Set(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t which,
                   const T& value) {
    return ToStatus(library_.set_product(product, which, &value, sizeof(value)),
                    "cublasLtMatmulDescSetAttribute");
  }

  absl::Status SetPointers(cublasLtMatmulDesc_t product, const CudaProduct& p) {
    if (p.bias != nullptr) {
      MUSTER_RETURN_IF_ERROR(Set(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias));
    }
    if (p.pre == nullptr) return absl::OkStatus();
    return Set(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.pre);
  }

  // Makes the layout of an array of ours with so many rows and columns.
  absl::Status MakeLayout(cublasLtMatrixLayout_t& layout, DType dtype, int64_t rows,
                          int64_t columns) {
    return ToStatus(library_.make_layout(&layout, TypeOf(dtype), columns, rows, columns),
                    "cublasLtMatrixLayoutCreate");
  }

  absl::Status ChooseAlgorithm(const CudaProduct& p, Plan& plan) {
    cublasLtMatmulPreference_t preference = nullptr;
    MUSTER_RETURN_IF_ERROR(
        ToStatus(library_.make_preference(&preference), "cublasLtMatmulPreferenceCreate"));
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t which, const auto& value) {
      library_.set_preference(preference, which, &value, sizeof(value));
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, AlignmentOf(p.b));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, AlignmentOf(p.a));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
        AlignmentOf(p.addend != nullptr ? p.addend : p.c));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, AlignmentOf(p.c));
    // Neither atomic additions nor an order that depends on time.
    const uint32_t schemes =
        CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
    cublasLtMatmulHeuristicResult_t best[kAlgorithmsMax] = {};
    int found = 0;
    const absl::Status status =
        ToStatus(library_.heuristic(handle_, plan.product, plan.b, plan.a, plan.c, plan.c,
                                    preference, kAlgorithmsMax, best, &found),
                 "cublasLtMatmulAlgoGetHeuristic");
    library_.destroy_preference(preference);
    MUSTER_RETURN_IF_ERROR(status);
    if (found == 0) return absl::InternalError("cuBLASLt has no algorithm");
    for (int i = 0; i < found; ++i) {
      if (best[i].state == CUBLAS_STATUS_SUCCESS) plan.algorithms.push_back(best[i].algo);
    }
    if (plan.algorithms.empty()) return absl::InternalError("cuBLASLt has no algorithm");
    return absl::OkStatus();
  }

  CudaApi& cuda_;
  const CublasLt library_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  base::Mutex mu_;
  // The plans of products, or why a product cannot be.
  std::map<Key, absl::StatusOr<Plan>> plans_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<Products>> MakeProductsOf(const CublasLt& library, CudaApi& cuda) {
  auto products = std::make_unique<CublasLtProducts>(cuda, library);
  MUSTER_RETURN_IF_ERROR(products->Begin());
  return products;
}

}  // namespace muster
