// A library's attention on an emulated GPU: the host's, when the stream comes to it. It has what
// cuDNN has, and spoils the memory that it is given to work in, and all of that.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "proto/base/mutex.h"
#include "worker_runtime/cuda/attention_library.h"

namespace muster::testing {

// Threads: safe.
class EmulatedAttention final : public AttentionLibrary {
 public:
  struct Options {
    // Whether it has a shape that cuDNN has; null: it has them all.
    std::function<absl::Status(const LibraryAttention& attention)> has;
    // Counted by those that share it; may be null, else outlives it.
    struct Calls {
      base::Mutex mu;
      int forward ABSL_GUARDED_BY(mu) = 0;
      int backward ABSL_GUARDED_BY(mu) = 0;
      bool same_bits ABSL_GUARDED_BY(mu) = false;  // of the last
    };
    Calls* calls = nullptr;
    int64_t more_bytes = 0;  // that each pass works in than is planned
  };

  EmulatedAttention() : EmulatedAttention(Options()) {}
  explicit EmulatedAttention(Options options) : options_(std::move(options)) {}

  std::string name() const override { return "an emulated library"; }
  absl::Status Prepare(const LibraryAttention& attention) override;
  kernels::AttentionWorkspace WorkspaceOf(const LibraryAttention& attention) override;
  absl::Status Forward(CudaStream stream, const LibraryAttention& attention,
                       const AttentionForwardArrays& arrays) override;
  absl::Status Backward(CudaStream stream, const LibraryAttention& attention,
                        const AttentionBackwardArrays& arrays) override;

 private:
  // Refused: what was not prepared, or was refused then.
  absl::Status CheckPrepared(const LibraryAttention& attention) const;

  const Options options_;
  mutable base::Mutex mu_;
  std::set<LibraryAttention> prepared_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster::testing
