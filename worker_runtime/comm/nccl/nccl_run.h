// One operation on its way through NCCL.
//
// Included in this folder alone: it brings in the CUDA headers.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/comm/call_communicator.h"
#include "worker_runtime/comm/nccl/cuda_resources.h"
#include "worker_runtime/comm/nccl/nccl_ranks.h"
#include "worker_runtime/comm/nccl/stream_buffers.h"

namespace muster::comm {

// The ranks and the stream that operations of one NCCL communicator run on.
struct NcclPlace {
  const NcclRanks& ranks;
  DeviceStream& stream;
  int rank = 0;
  int size = 1;
  int peer = 0;  // of sends and receives: the other of the two ranks
};

// Post, then AfterPost once NCCL is ready, then, whenever IsDone says so, Proceed until it returns
// true. Buffers in host memory are staged through pinned memory. An ordered sum gathers every
// contribution and adds on the host, by the tree and with the arithmetic of the other backends: it
// is the oracle, not the fast way.
//
// A captured call is over with AfterPost: it joins the capture by its queue's event and comes back
// by its own. Of a launch there is nothing to post: its end is the call's own event.
//
// One thread at a time. After a failure or an abort of the ranks it is destroyed; NCCL and the
// stream are idle then.
class NcclRun {
 public:
  NcclRun(Call call, const NcclPlace& place, bool is_launched = false)
      : call_(std::move(call)), place_(place), is_launched_(is_launched), buffers_(place.stream) {}
  ~NcclRun();
  NcclRun(const NcclRun&) = delete;
  NcclRun& operator=(const NcclRun&) = delete;

  const Call& call() const { return call_; }

  absl::Status Post();
  absl::Status AfterPost();
  // Follows a launch: what is posted from now on runs behind it.
  absl::Status FollowLaunch();
  absl::StatusOr<bool> IsDone() const;
  // True: the output is in its place.
  absl::StatusOr<bool> Proceed();

 private:
  absl::Status Check(ncclResult_t result) const;
  absl::Status PostPlain();
  absl::Status PostAllToAll(const uint8_t* input, uint8_t* output);
  absl::Status PostOrdered();
  absl::StatusOr<bool> AddInOrder();
  absl::Status RecordEvent();
  absl::Status FollowQueue();
  absl::Status LetQueuesFollow();
  cudaEvent_t EndOfLaunch() const;

  int64_t WholeElements() const;  // of one rank's contribution to an ordered sum

  const Call call_;
  const NcclPlace place_;
  const bool is_launched_;
  StreamBuffers buffers_;
  cudaEvent_t event_ = nullptr;

  // State of ordered sums.
  bool is_added_ = false;
  int64_t slots_per_rank_ = 0;       // contributions, padded to the rank with the most
  const void* gathered_ = nullptr;   // [size * slots_per_rank * WholeElements()], on the device
  void* gathered_pinned_ = nullptr;  // the same
};

}  // namespace muster::comm
