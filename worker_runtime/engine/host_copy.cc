#include "worker_runtime/engine/host_copy.h"

#include <algorithm>

#include "proto/base/status_macros.h"
#include "worker_runtime/nn/operations.h"

namespace muster::engine {
namespace {

// How many initial values are made on the host at once before they go to the device.
constexpr int64_t kElementsAtOnce = 1 << 22;

void Cast(const Tensor& from, const Tensor& to) {
  if (from.dtype() != to.dtype() && SizeOf(from.dtype()) == 2 && SizeOf(to.dtype()) == 2) {
    const Tensor wide = TensorPool().Allocate(DType::kF32, from.shape());
    Cast(from, wide);
    return Cast(wide, to);
  }
  Queue host(Device::Cpu());
  host.device().operations(from.dtype()).cast(host, from, to);
}

}  // namespace

absl::StatusOr<Tensor> OnHost(Queue& queue, const Tensor& x) {
  if (x.host_reads()) return x;
  Tensor copy = TensorPool().Allocate(x.dtype(), x.shape());
  MUSTER_RETURN_IF_ERROR(
      queue.device().Download(queue, x.raw_data(), copy.raw_data(), x.num_bytes()));
  return copy;
}

absl::Status CopyAcross(Queue& queue, const Tensor& from, const Tensor& to) {
  MUSTER_ASSIGN_OR_RETURN(const Tensor source, OnHost(queue, from));
  if (to.host_reads()) {
    Cast(source, to);
    return absl::OkStatus();
  }
  Tensor rounded = source;
  if (from.dtype() != to.dtype()) {
    rounded = TensorPool().Allocate(to.dtype(), from.shape());
    Cast(source, rounded);
  }
  queue.device().Upload(queue, rounded.raw_data(), to.raw_data(), to.num_bytes());
  return absl::OkStatus();
}

absl::Status WaitForQueue(Queue& queue, const Tensor& any) {
  return OnHost(queue, any.Slice(0, {1})).status();
}

void FillInitial(Queue& queue, const Parameter& parameter, uint64_t seed, int64_t first,
                 const Tensor& out) {
  if (out.host_reads()) return InitializeElements(parameter, seed, first, out);
  TensorPool pool;
  for (int64_t done = 0; done < out.num_elements(); done += kElementsAtOnce) {
    const int64_t count = std::min(kElementsAtOnce, out.num_elements() - done);
    const Tensor part = pool.Allocate(out.dtype(), {count});
    InitializeElements(parameter, seed, first + done, part);
    queue.device().Upload(queue, part.raw_data(), out.Slice(done, {count}).raw_data(),
                          part.num_bytes());
  }
}

}  // namespace muster::engine
