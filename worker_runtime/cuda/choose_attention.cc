// Chooses what computes attention on a device that is being made.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "muster/cuda_device.h"
#include "worker_runtime/cuda/make_cuda_device.h"
#include "worker_runtime/kernels/library_attention.h"

namespace muster {

kernels::AttentionWorkspace PlannedWorkspace(const LibraryAttention& attention) {
  return {.forward = kernels::LibraryForwardBytes(),
          .backward = kernels::LibraryBackward(attention.shape, attention.same_bits).bytes()};
}

absl::Status ChooseAttention(const CudaDeviceOptions& options, MakeAttention make,
                             CudaParts& parts) {
  if (options.attention == CudaAttention::kOwn) return absl::OkStatus();
  if (options.attention == CudaAttention::kAuto && options.same_bits) {
    parts.attention_note = "attention by our kernels, which have the same bits in every run";
    return absl::OkStatus();
  }
  parts.attention_must = options.attention == CudaAttention::kCudnn;
  parts.attention_same_bits = options.same_bits;
  auto made = make(*parts.cuda);
  if (made.ok()) {
    parts.attention = *std::move(made);
    parts.attention_note = absl::StrCat(
        "attention by ", parts.attention->name(),
        options.same_bits ? ", with the same bits in every run"
                          : ", whose gradients may differ in their last bits from run to run");
    return absl::OkStatus();
  }
  if (!parts.attention_must) {
    parts.attention_note = absl::StrCat("attention by our kernels: ", made.status().message());
    return absl::OkStatus();
  }
  return absl::Status(made.status().code(),
                      absl::StrCat("device cuda, attention by cuDNN: ", made.status().message(),
                                   "; or leave attention to our kernels (own)"));
}

}  // namespace muster
