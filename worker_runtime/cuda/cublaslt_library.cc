#include "worker_runtime/cuda/cublaslt_library.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "proto/io/optional_library.h"

namespace muster {

absl::StatusOr<CublasLt> OpenCublasLt() {
  MUSTER_ASSIGN_OR_RETURN(
      const OptionalLibrary opened,
      OptionalLibrary::Open(
          {.name = "device cuda: the cuBLASLt library",
           .file_names = {absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR)},
           .folders = FoldersOfPackages(OwnPythonEnvironments(),
                                        {absl::StrCat("cu", CUBLAS_VER_MAJOR), "cublas"}),
           .last_path = MUSTER_CUBLASLT_LIBRARY_PATH,
           .advice = "install CUDA's libraries, or add their folder to LD_LIBRARY_PATH"}));
  CublasLt library{.path = opened.path()};
  MUSTER_RETURN_IF_ERROR(
      opened.Load({{"cublasLtCreate", library.create},
                   {"cublasLtDestroy", library.destroy},
                   {"cublasLtGetStatusString", library.status_string},
                   {"cublasLtMatmul", library.matmul},
                   {"cublasLtMatmulAlgoGetHeuristic", library.heuristic},
                   {"cublasLtMatmulDescCreate", library.make_product},
                   {"cublasLtMatmulDescDestroy", library.destroy_product},
                   {"cublasLtMatmulDescSetAttribute", library.set_product},
                   {"cublasLtMatrixLayoutCreate", library.make_layout},
                   {"cublasLtMatrixLayoutDestroy", library.destroy_layout},
                   {"cublasLtMatmulPreferenceCreate", library.make_preference},
                   {"cublasLtMatmulPreferenceDestroy", library.destroy_preference},
                   {"cublasLtMatmulPreferenceSetAttribute", library.set_preference}}));
  return library;
}

absl::StatusOr<std::unique_ptr<Products>> MakeCublasLtProducts(CudaApi& cuda) {
  MUSTER_ASSIGN_OR_RETURN(const CublasLt library, OpenCublasLt());
  return MakeProductsOf(library, cuda);
}

absl::StatusOr<std::string> NameCublasLt() {
  MUSTER_ASSIGN_OR_RETURN(const CublasLt library, OpenCublasLt());
  return absl::StrCat("cuBLASLt (", library.path, ")");
}

}  // namespace muster
