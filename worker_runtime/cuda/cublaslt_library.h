// The functions of cuBLASLt that products take, opened at run time: a program that has this starts
// on machines without it. Included in .cc files alone: it brings in cuBLASLt's header.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker_runtime/cuda/cuda_api.h"
#include "worker_runtime/cuda/products.h"

namespace muster {

struct CublasLt {
  std::string path;  // the file that was opened; empty: a stand-in
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetStatusString) status_string;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmulDescCreate) make_product;
  decltype(&cublasLtMatmulDescDestroy) destroy_product;
  decltype(&cublasLtMatmulDescSetAttribute) set_product;
  decltype(&cublasLtMatrixLayoutCreate) make_layout;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout;
  decltype(&cublasLtMatmulPreferenceCreate) make_preference;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference;
};

// The library from where the dynamic loader looks, else PyTorch's pip packages, else where this
// program was built.
//
// Errors: kUnavailable: it cannot be loaded, or lacks one of them.
absl::StatusOr<CublasLt> OpenCublasLt();

// Products by `library`; `cuda` outlives them. Errors: CudaApi's, and the library's.
absl::StatusOr<std::unique_ptr<Products>> MakeProductsOf(const CublasLt& library, CudaApi& cuda);

}  // namespace muster
