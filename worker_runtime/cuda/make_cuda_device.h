// A device out of its parts: CUDA's own in a program (OpenCudaDevice), emulated ones in tests.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/cuda_device.h"
#include "muster/device.h"
#include "worker_runtime/cuda/attention_library.h"
#include "worker_runtime/cuda/cuda_api.h"
#include "worker_runtime/cuda/products.h"
#include "worker_runtime/kernels/logit_chunks.h"

namespace muster {

struct CudaParts {
  std::unique_ptr<CudaApi> cuda;
  std::unique_ptr<Products> products;  // may use `cuda`; null: `operations` needs none
  std::string products_note;           // what computes them; empty: not worth telling
  // The kernels, by type, which work on the device that is made (CudaDevice::Of): CudaOperations,
  // but for tests that bring others.
  const Operations& (*operations)(DType dtype);
  // Numbers of logits that are there at a time, but a row at least.
  int64_t logits_at_once = kernels::kLogitsAtOnce;
  // 16-bit attention; may use `cuda`. Null: our kernels do it, and `attention_note` may say why.
  std::unique_ptr<AttentionLibrary> attention;
  std::string attention_note;
  bool attention_must = false;  // what `attention` has not is a failure; else our kernels do it
  bool attention_same_bits = false;  // LibraryAttention::same_bits
  // GELU on a product's way and in a pass of its own are timed once for a shape, and the quicker is
  // kept; else it is on its way where `products` has it. Their bits differ.
  bool times_gelu = false;
};

// Ends the process for a type that they do not compute in.
const Operations& CudaOperations(DType dtype);

using MakeAttention = absl::StatusOr<std::unique_ptr<AttentionLibrary>> (*)(CudaApi& cuda);
// Completes `parts`, whose `cuda` is there, as `options` ask for.
//
// Errors: those of `make`, where there must be one.
absl::Status ChooseAttention(const CudaDeviceOptions& options, MakeAttention make,
                             CudaParts& parts);

// Errors: CudaApi's.
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(CudaParts parts);

}  // namespace muster
