// A build without cuDNN's headers: it says so when cuDNN is asked for.
#include "worker_runtime/cuda/attention_library.h"

namespace muster {
namespace {

absl::Status BuiltWithout() {
  return absl::UnavailableError("this program was built without cuDNN's headers (9.8 or newer)");
}

}  // namespace

absl::StatusOr<std::unique_ptr<AttentionLibrary>> MakeCudnnAttention(CudaApi&) {
  return BuiltWithout();
}

absl::StatusOr<std::string> NameCudnn() { return BuiltWithout(); }

}  // namespace muster
