#include "worker_runtime/comm/nccl/nccl_run.h"

#include <cstring>

#include "proto/base/status_macros.h"
#include "worker_runtime/comm/reduce_kernels.h"

namespace muster::comm {
namespace {

ncclDataType_t ToNccl(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return ncclFloat64;
    case DType::kF32:
      return ncclFloat32;
    case DType::kBf16:
      return ncclBfloat16;
    case DType::kF16:
      return ncclFloat16;
    case DType::kI64:
      return ncclInt64;
    case DType::kI32:
      return ncclInt32;
    case DType::kU8:
      return ncclUint8;
  }
  return ncclUint8;
}

ncclRedOp_t ToNccl(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return ncclSum;
    case ReduceOp::kMax:
      return ncclMax;
    case ReduceOp::kMin:
      return ncclMin;
  }
  return ncclSum;
}

}  // namespace

NcclRun::~NcclRun() {
  if (event_ != nullptr) place_.stream.GiveBackEvent(event_);
}

absl::Status NcclRun::Check(ncclResult_t result) const {
  return place_.ranks.library().ToStatus(result, Name(call_.operation), place_.ranks.get());
}

// What a run puts on the stream, in this order: copies of host inputs to the device, the collective
// (Post); once NCCL has enqueued it, which it does on a thread of its own while it still connects,
// the copy of a host output and an event (AfterPost). Copies before that would overtake it. An
// ordered sum has a second part: the host adds what was gathered, and the result goes back behind
// an event of its own (AddInOrder).
absl::Status NcclRun::Post() {
  const Operation& op = call_.operation;
  MUSTER_RETURN_IF_ERROR(FollowQueue());
  const bool is_ordered = op.is_reduction() && op.order == SumOrder::kOrdered;
  return is_ordered ? PostOrdered() : PostPlain();
}

// What the device has not come to yet: its queue did not wait for the call.
absl::Status NcclRun::FollowQueue() {
  if (call_.on_stream == nullptr) return absl::OkStatus();
  void* const filled = call_.on_stream->filled().native();
  if (filled == nullptr) return absl::InternalError("the device has no event for its queue");
  MUSTER_CUDA_RETURN_IF_ERROR(
      cudaStreamWaitEvent(place_.stream.get(), static_cast<cudaEvent_t>(filled), 0));
  return absl::OkStatus();
}

// Called behind the last work of the call that is put on the stream.
absl::Status NcclRun::LetQueuesFollow() {
  if (call_.on_stream == nullptr) return absl::OkStatus();
  void* const finished = call_.on_stream->finished().native();
  if (finished == nullptr) return absl::InternalError("the device has no event for its queue");
  MUSTER_CUDA_RETURN_IF_ERROR(
      cudaEventRecord(static_cast<cudaEvent_t>(finished), place_.stream.get()));
  call_.on_stream->MarkPosted();
  return absl::OkStatus();
}

absl::Status NcclRun::PostPlain() {
  const Operation& op = call_.operation;
  const NcclLibrary& nccl = place_.ranks.library();
  const ncclComm_t comm = place_.ranks.get();
  const cudaStream_t stream = place_.stream.get();
  if (op.kind == OperationKind::kBarrier) {
    // NCCL has none: a byte that everybody adds to.
    MUSTER_ASSIGN_OR_RETURN(void* const byte, buffers_.OnDevice(1));
    return Check(nccl.all_reduce(byte, byte, 1, ncclUint8, ncclSum, comm, stream));
  }
  const BlockCounts blocks = CountBlocks(op.kind, place_.size);
  const size_t bytes = op.bytes();
  const void* input = nullptr;
  void* output = nullptr;
  if (blocks.input > 0) {
    MUSTER_ASSIGN_OR_RETURN(input, buffers_.Input(call_.inputs[0], bytes * blocks.input));
  }
  if (blocks.output > 0) {
    MUSTER_ASSIGN_OR_RETURN(output, buffers_.Output(call_.output, bytes * blocks.output));
  }
  const ncclDataType_t type = ToNccl(op.dtype);
  switch (op.kind) {
    case OperationKind::kAllReduce:
      return Check(nccl.all_reduce(input, output, op.count, type, ToNccl(op.reduce), comm, stream));
    case OperationKind::kReduceScatter:
      return Check(
          nccl.reduce_scatter(input, output, op.count, type, ToNccl(op.reduce), comm, stream));
    case OperationKind::kAllGather:
      return Check(nccl.all_gather(input, output, op.count, type, comm, stream));
    case OperationKind::kBroadcast:
      return Check(nccl.broadcast(input, output, op.count, type, op.peer, comm, stream));
    case OperationKind::kAllToAll:
      return PostAllToAll(static_cast<const uint8_t*>(input), static_cast<uint8_t*>(output));
    case OperationKind::kSend:
      return Check(nccl.send(input, op.count, type, place_.peer, comm, stream));
    case OperationKind::kRecv:
      return Check(nccl.recv(output, op.count, type, place_.peer, comm, stream));
    case OperationKind::kBarrier:
      break;
  }
  return absl::InternalError("an operation that NCCL does not know");
}

// ncclAlltoAll came with 2.28; this is what it does.
absl::Status NcclRun::PostAllToAll(const uint8_t* input, uint8_t* output) {
  const Operation& op = call_.operation;
  const NcclLibrary& nccl = place_.ranks.library();
  MUSTER_RETURN_IF_ERROR(Check(nccl.group_start()));
  absl::Status first;
  for (int peer = 0; peer < place_.size; ++peer) {
    const size_t at = peer * op.bytes();
    first.Update(Check(nccl.send(input + at, op.count, ToNccl(op.dtype), peer, place_.ranks.get(),
                                 place_.stream.get())));
    first.Update(Check(nccl.recv(output + at, op.count, ToNccl(op.dtype), peer, place_.ranks.get(),
                                 place_.stream.get())));
  }
  first.Update(Check(nccl.group_end()));
  return first;
}

int64_t NcclRun::WholeElements() const {
  const Operation& op = call_.operation;
  return op.kind == OperationKind::kReduceScatter ? op.count * place_.size : op.count;
}

absl::Status NcclRun::PostOrdered() {
  const Operation& op = call_.operation;
  slots_per_rank_ = MostContributions(place_.size, op.leaves_per_rank);
  const size_t whole_bytes = WholeElements() * SizeOf(op.dtype);
  if (whole_bytes == 0) return absl::OkStatus();
  const size_t rank_bytes = slots_per_rank_ * whole_bytes;
  MUSTER_ASSIGN_OR_RETURN(void* const own, buffers_.OnDevice(rank_bytes));
  for (size_t i = 0; i < call_.inputs.size(); ++i) {
    MUSTER_RETURN_IF_ERROR(buffers_.CopyIn(static_cast<uint8_t*>(own) + i * whole_bytes,
                                           call_.inputs[i], whole_bytes));
  }
  MUSTER_ASSIGN_OR_RETURN(void* const all, buffers_.OnDevice(rank_bytes * place_.size));
  MUSTER_ASSIGN_OR_RETURN(gathered_pinned_, buffers_.Pinned(rank_bytes * place_.size));
  gathered_ = all;
  return Check(place_.ranks.library().all_gather(own, all, slots_per_rank_ * WholeElements(),
                                                 ToNccl(op.dtype), place_.ranks.get(),
                                                 place_.stream.get()));
}

absl::Status NcclRun::RecordEvent() {
  if (event_ == nullptr) {
    MUSTER_ASSIGN_OR_RETURN(event_, place_.stream.TakeEvent());
  }
  MUSTER_CUDA_RETURN_IF_ERROR(cudaEventRecord(event_, place_.stream.get()));
  return absl::OkStatus();
}

absl::Status NcclRun::AfterPost() {
  if (gathered_ != nullptr) {
    const size_t bytes =
        place_.size * slots_per_rank_ * WholeElements() * SizeOf(call_.operation.dtype);
    MUSTER_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(gathered_pinned_, gathered_, bytes,
                                                cudaMemcpyDeviceToHost, place_.stream.get()));
  } else if (buffers_.has_host_output()) {
    MUSTER_RETURN_IF_ERROR(buffers_.StartOutput());
  } else {
    MUSTER_RETURN_IF_ERROR(LetQueuesFollow());
  }
  // An event of a capture cannot be asked.
  return call_.captured ? absl::OkStatus() : RecordEvent();
}

// NCCL keeps launches and calls of one communicator apart by itself, unless it was told not to
// (NCCL_GRAPH_MIXING_SUPPORT).
absl::Status NcclRun::FollowLaunch() {
  MUSTER_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(place_.stream.get(), EndOfLaunch(), 0));
  return absl::OkStatus();
}

cudaEvent_t NcclRun::EndOfLaunch() const {
  return static_cast<cudaEvent_t>(call_.on_stream->finished().native());
}

absl::StatusOr<bool> NcclRun::IsDone() const {
  const cudaError_t state = cudaEventQuery(is_launched_ ? EndOfLaunch() : event_);
  if (state == cudaErrorNotReady) return false;
  MUSTER_RETURN_IF_ERROR(CudaStatus(state, "cudaEventQuery"));
  return true;
}

absl::StatusOr<bool> NcclRun::Proceed() {
  if (gathered_ != nullptr && !is_added_) {
    is_added_ = true;
    return AddInOrder();
  }
  buffers_.FinishOutput();
  return true;
}

// The contributions lie in gathered_pinned_; the result goes to the output. False: it is on its way
// to the device.
absl::StatusOr<bool> NcclRun::AddInOrder() {
  const Operation& op = call_.operation;
  const DType wide = AccumulationType(op.dtype);
  const int64_t first = op.kind == OperationKind::kReduceScatter ? place_.rank * op.count : 0;
  const std::vector<LeafRange> ranges = OrderedContributions(place_.size, op.leaves_per_rank);
  std::vector<uint8_t> widened(ranges.size() * op.count * SizeOf(wide));
  std::vector<void*> roots;
  for (int rank = 0; rank < place_.size; ++rank) {
    const int64_t begin = NumContributionsBefore(rank, place_.size, op.leaves_per_rank);
    const int64_t end = NumContributionsBefore(rank + 1, place_.size, op.leaves_per_rank);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t slot = rank * slots_per_rank_ + (i - begin);
      void* const root = At(widened.data(), wide, i * op.count);
      Widen(op.dtype, root, At(gathered_pinned_, op.dtype, slot * WholeElements() + first),
            op.count);
      roots.push_back(root);
    }
  }
  CombineByTree(wide, op.reduce, ranges, roots, op.count);
  Narrow(op.dtype, gathered_pinned_, roots[0], op.count);
  if (!IsDeviceMemory(call_.output)) {
    std::memcpy(call_.output, gathered_pinned_, op.bytes());
    return true;
  }
  MUSTER_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(call_.output, gathered_pinned_, op.bytes(),
                                              cudaMemcpyHostToDevice, place_.stream.get()));
  MUSTER_RETURN_IF_ERROR(LetQueuesFollow());
  MUSTER_RETURN_IF_ERROR(RecordEvent());
  return false;
}

}  // namespace muster::comm
