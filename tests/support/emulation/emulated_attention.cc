#include "tests/support/emulation/emulated_attention.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "proto/base/status_macros.h"
#include "tests/support/emulation/emulated_stream.h"
#include "tests/support/emulation/narrow_numbers.h"

namespace muster::testing {
namespace {

constexpr int kSpoiled = 0xff;  // floats that are no numbers

struct Sizes {
  explicit Sizes(const kernels::AttentionShape& s)
      : rows(s.query_rows()),
        qkv(s.batch * s.sequence * s.line_width()),
        out(s.batch * s.sequence * s.out_width()) {}
  int64_t rows, qkv, out;
};

void RunForward(const LibraryAttention& attention, const AttentionForwardArrays& arrays) {
  const Sizes sizes(attention.shape);
  const auto qkv = Widened(arrays.qkv, sizes.qkv, attention.type);
  std::vector<float> out(sizes.out), largest(sizes.rows), scale(sizes.rows);
  std::vector<float> scratch(kernels::AttentionScratchElements(attention.shape));
  kernels::Attention<float>().forward(attention.shape, qkv.data(), out.data(),
                                      {largest.data(), scale.data()}, scratch.data());
  Store(out, arrays.out, attention.type);
  for (int64_t row = 0; row < sizes.rows; ++row) {
    arrays.log_sums[row] = largest[row] - std::log(scale[row]);
  }
}

// The host's backward pass, of exp(S - largest) * scale with the logarithms for the largest and 1
// for the scale.
void RunBackward(const LibraryAttention& attention, const AttentionBackwardArrays& arrays) {
  const Sizes sizes(attention.shape);
  const auto qkv = Widened(arrays.qkv, sizes.qkv, attention.type);
  const auto out = Widened(arrays.out, sizes.out, attention.type);
  const auto dout = Widened(arrays.dout, sizes.out, attention.type);
  std::vector<float> log_sums(arrays.log_sums, arrays.log_sums + sizes.rows);
  std::vector<float> scale(sizes.rows, 1), dqkv(sizes.qkv);
  std::vector<float> scratch(kernels::AttentionScratchElements(attention.shape));
  kernels::Attention<float>().backward(attention.shape, qkv.data(), {log_sums.data(), scale.data()},
                                       {out.data(), dout.data()}, dqkv.data(), scratch.data());
  Store(dqkv, arrays.dqkv, attention.type);
}

template <typename Run>
absl::Status Enqueue(CudaStream stream, Run run) {
  const kernels::LaunchError error = EmulatedStream::Of(stream).Enqueue([run = std::move(run)] {
    run();
    return std::string();
  });
  return error == nullptr ? absl::OkStatus() : absl::InternalError(error);
}

}  // namespace

absl::Status EmulatedAttention::Prepare(const LibraryAttention& attention) {
  MUSTER_RETURN_IF_ERROR(CheckCudnnHas(attention));
  if (options_.has != nullptr) MUSTER_RETURN_IF_ERROR(options_.has(attention));
  base::MutexLock lock(mu_);
  prepared_.insert(attention);
  return absl::OkStatus();
}

absl::Status EmulatedAttention::CheckPrepared(const LibraryAttention& attention) const {
  base::MutexLock lock(mu_);
  return prepared_.contains(attention) ? absl::OkStatus()
                                       : absl::InternalError("emulated attention: not prepared");
}

kernels::AttentionWorkspace EmulatedAttention::WorkspaceOf(const LibraryAttention& attention) {
  kernels::AttentionWorkspace bytes = PlannedWorkspace(attention);
  bytes.forward += options_.more_bytes;
  bytes.backward += options_.more_bytes;
  return bytes;
}

absl::Status EmulatedAttention::Forward(CudaStream stream, const LibraryAttention& attention,
                                        const AttentionForwardArrays& arrays) {
  MUSTER_RETURN_IF_ERROR(CheckPrepared(attention));
  if (options_.calls != nullptr) {
    base::MutexLock lock(options_.calls->mu);
    ++options_.calls->forward;
    options_.calls->same_bits = attention.same_bits;
  }
  return Enqueue(stream, [attention, arrays, bytes = WorkspaceOf(attention).forward] {
    std::memset(arrays.workspace, kSpoiled, bytes);
    RunForward(attention, arrays);
  });
}

absl::Status EmulatedAttention::Backward(CudaStream stream, const LibraryAttention& attention,
                                         const AttentionBackwardArrays& arrays) {
  MUSTER_RETURN_IF_ERROR(CheckPrepared(attention));
  if (options_.calls != nullptr) {
    base::MutexLock lock(options_.calls->mu);
    ++options_.calls->backward;
    options_.calls->same_bits = attention.same_bits;
  }
  return Enqueue(stream, [attention, arrays, bytes = WorkspaceOf(attention).backward] {
    std::memset(arrays.workspace, kSpoiled, bytes);
    RunBackward(attention, arrays);
  });
}

}  // namespace muster::testing
