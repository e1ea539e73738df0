// A GPU as a device of tensors, and what its kernels (cuda_operations.cc) need of it.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "muster/cuda_device.h"
#include "muster/device.h"
#include "muster/tensor.h"
#include "proto/base/mutex.h"
#include "worker_runtime/cuda/attention_library.h"
#include "worker_runtime/cuda/cuda_api.h"
#include "worker_runtime/cuda/gelu_ways.h"
#include "worker_runtime/cuda/make_cuda_device.h"
#include "worker_runtime/cuda/products.h"
#include "worker_runtime/cuda/staging.h"
#include "worker_runtime/kernels/launch.h"

namespace muster {

// A lane is a stream. What fails later than its call is kept, and said by Download: the first
// failure for good, since what comes after it works on what it left.
class CudaDevice final : public Device {
 public:
  explicit CudaDevice(CudaParts parts);
  ~CudaDevice() override;
  // Once, before anything else. Errors: CudaApi's.
  absl::Status Begin();

  absl::string_view name() const override { return "cuda"; }
  bool has_elements() const override { return true; }
  bool ComputesIn(DType dtype) const override { return CudaComputesIn(dtype); }
  const Operations& operations(DType dtype) const override { return parts_.operations(dtype); }
  std::optional<GpuIdentity> gpu() const override;
  std::optional<DeviceMemory> memory() const override;
  void* TakeMemory(size_t bytes) const override;
  void GiveMemory(void* memory) const override;
  void CopyBytes(Queue& queue, const void* from, void* to, size_t bytes) const override;
  void Upload(Queue& queue, const void* from, void* to, size_t bytes) const override;
  absl::Status Download(Queue& queue, const void* from, void* to, size_t bytes) const override;
  std::unique_ptr<Event> MakeEvent() const override;
  bool captures() const override { return true; }
  const Device& meta() const override;
  std::string notes() const override;
  absl::Status BeginCapture(Queue& queue) const override;
  absl::StatusOr<std::unique_ptr<CapturedWork>> EndCapture(Queue& queue) const override;

  // --- for kernels

  static const CudaDevice& Of(const Queue& queue) {
    return static_cast<const CudaDevice&>(queue.device());
  }
  CudaApi& cuda() const { return *parts_.cuda; }
  Products& products() const { return *parts_.products; }
  int64_t logits_at_once() const { return parts_.logits_at_once; }
  size_t shared_bytes_max() const { return shared_bytes_max_; }  // of a block
  // Attention's library. Null: our kernels compute it, as they do what it has not, unless it must.
  AttentionLibrary* attention() const { return parts_.attention.get(); }
  bool attention_same_bits() const { return parts_.attention_same_bits; }
  // What time has told of GELU; null: it is not asked.
  GeluWays* gelu_ways() const { return gelu_ways_.get(); }
  // What `attention` has not: whether our kernels do it, which is said once, or it is a failure,
  // which is kept.
  bool DoesWithout(const absl::Status& refusal) const;
  // The stream of `queue`. Makes the device current for what this thread puts there next.
  CudaStream stream(const Queue& queue) const {
    Keep(cuda().MakeCurrent());
    return streams_[static_cast<size_t>(queue.lane())];
  }
  // Within a capture nothing crosses to the host or from it: the host's side of a copy would not
  // outlive it.
  absl::Status CheckMayCross() const;
  bool is_capturing() const;
  // Memory to work in, which is another's as soon as the handle is gone, for what comes later on
  // the queue.
  Tensor Scratch(Queue& queue, DType dtype, int64_t count) const;
  const float* one() const { return one_; }  // the number, in the device's memory

  void Keep(const absl::Status& status) const;
  void Keep(kernels::LaunchError error) const;
  absl::Status status() const;

 private:
  static constexpr size_t kNumLanes = 3;

  // Constant after Begin, in the order of use.
  CudaParts parts_;
  std::array<CudaStream, kNumLanes> streams_ = {};
  float* one_ = nullptr;
  size_t shared_bytes_max_ = 0;
  const std::unique_ptr<Staging> staging_;
  const std::unique_ptr<GeluWays> gelu_ways_;
  const std::unique_ptr<const Device> meta_;  // where attention is a library's
  // The memory of queues that bring none.
  std::array<std::unique_ptr<TensorPool>, kNumLanes> pools_;

  // Events are used again, and may be dropped after the device: calls of communicators hold some.
  struct Events {
    base::Mutex mu;
    std::vector<CudaEvent> all ABSL_GUARDED_BY(mu);
    std::vector<CudaEvent> free ABSL_GUARDED_BY(mu);
  };
  class DeviceEvent;
  absl::StatusOr<CudaEvent> TakeEvent() const;
  const std::shared_ptr<Events> events_ = std::make_shared<Events>();

  mutable base::Mutex mu_;
  mutable absl::Status failure_ ABSL_GUARDED_BY(mu_);
  mutable bool is_capturing_ ABSL_GUARDED_BY(mu_) = false;
  mutable bool said_without_ ABSL_GUARDED_BY(mu_) = false;
  mutable absl::Status capture_failure_ ABSL_GUARDED_BY(mu_);  // in place of failure_ meanwhile
};

}  // namespace muster
