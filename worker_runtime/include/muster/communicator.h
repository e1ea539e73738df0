// Operations that the ranks of a group call together.
//
//   std::vector<float> gradients = ...;
//   Work work = communicator.AllReduce(BufferOf(gradients));
//   ...                                       // compute something else
//   MUSTER_RETURN_IF_ERROR(work.Wait());      // now every rank holds the sum
//
// Every rank of a group calls the same operations in the same order; the n-th call is sequence
// number n. If a rank calls something else, or passes another size or type, the operation fails on
// all ranks with a sentence that names that rank. The first failure ends the communicator:
// operations in flight and later ones return it.
//
// Costs are given per rank for n ranks and S bytes, S being what one rank holds of the full tensor.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "muster/buffer.h"
#include "muster/device.h"
#include "muster/dtype.h"
#include "muster/registration.h"
#include "muster/work.h"

namespace muster {

enum class ReduceOp { kSum, kMax, kMin };

enum class SumOrder {
  // Whatever is fastest; every rank still gets the same bits.
  kFast,
  // One binary tree over the ranks, split at the largest power of two below n, in fp32 (fp64 for
  // f64). The bits depend on the contributions alone: not on the backend, the size or the timing.
  // See also the *Subtrees calls.
  kOrdered,
};

struct CallOptions {
  // Time from the call until the operation must have finished; by default the communicator's.
  std::optional<absl::Duration> timeout;
  // The queue of the device whose memory holds the buffers. They are touched once the work that was
  // queued before the call has run. Null: the buffers are in host memory and already filled.
  Queue* queue = nullptr;
};

struct ReduceOptions {
  ReduceOp op = ReduceOp::kSum;
  SumOrder order = SumOrder::kFast;
  std::optional<absl::Duration> timeout;
  Queue* queue = nullptr;  // as CallOptions::queue
};

struct SubtreeOptions {
  // Each rank stands for this many leaves of the tree: rank r for [r * leaves_per_rank, (r + 1) *
  // leaves_per_rank).
  int64_t leaves_per_rank = 1;
  std::optional<absl::Duration> timeout;
  Queue* queue = nullptr;  // as CallOptions::queue
};

struct CommunicatorOptions {
  absl::Duration timeout = absl::Minutes(10);         // of an operation that names none
  absl::Duration connect_timeout = absl::Minutes(2);  // until all ranks have come together
  // gloo: ranks of one machine exchange data through memory that both map.
  bool shared_memory = true;
  // Whose memory the buffers of most calls are in; null: the host's. A GPU is the one that nccl
  // works on, and by it a back end is chosen where none is named (Runtime::MakeCommunicator). It is
  // looked at while the communicator is made, and not afterwards.
  const Device* device = nullptr;
};

// Work of a device that was captured with the calls in it (Communicator::BeginCapture). The
// communicators that were called outlive it.
class CapturedCalls {
 public:
  virtual ~CapturedCalls() = default;
  // Replays the captured work on the queue and with the arguments that it was captured with. Each
  // call takes a new sequence number and a fresh timeout. Ranks that captured together launch
  // together: a launch counts as one call of all communicators in it, and no rank may make those
  // calls one by one.
  //
  // Errors: those of the first call that fails, as Work::Wait tells them. If a communicator in the
  //         launch has failed before, the launch ends all the others. Memory of their calls may be
  //         in use until they and the launch have ended.
  virtual Work Launch(Queue& queue) = 0;
};

// One rank's end of a group.
//
// Sums of bf16 and f16 are taken in fp32 and rounded once (backend nccl: at each hop, unless
// ordered); integers wrap around. Buffers lie in host memory unless the call names a queue. With
// nccl they may also lie, for speed, in the memory of the rank's GPU; without a queue they must be
// filled before the call. Errors of every operation: see Work::Wait. A call that is wrong in itself
// (a negative count, sizes that do not fit together, a rank out of range) returns kInvalidArgument,
// takes no sequence number and affects no other rank. Send and Recv are counted apart, per peer and
// direction: they match in the order of their calls, and block neither each other nor collectives.
//
// The destructor ends what is in flight with kAborted and takes about a second at most.
// Threads: safe; calls of several threads need an order of their own that is the same on every
// rank.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::string& group() const = 0;
  // What carries the data: "gloo", "nccl" or "loopback". Empty for groups made by Split.
  virtual std::string backend() const { return ""; }

  // Every rank's `buffer` becomes the reduction of all of them.
  //
  // Cost: ring: 2(n-1) steps, 2(n-1)/n * S bytes sent. Small buffers: recursive doubling, about
  //       log2(n) steps of S bytes (of fp32 for bf16 and f16). bf16, f16 and ordered sums: 2(n-1)
  //       messages, the same bytes as the ring; ordered sums of backend nccl (n-1) * S, since it
  //       has no such exchange and gathers what is to be added.
  virtual Work AllReduce(Buffer buffer, ReduceOptions options = {}) = 0;

  // `output` becomes block rank() of the reduction of every rank's `input`.
  //
  // Shapes: input [size * count], output [count]; output may be block rank() of input itself, and
  //         overlap it no other way.
  // Cost:   (n-1)/n * S bytes sent, S the input's; n-1 messages or steps. Ordered with nccl: (n-1)
  // * S.
  virtual Work ReduceScatter(ConstBuffer input, Buffer output, ReduceOptions options = {}) = 0;

  // Ordered sums over leaves (micro-batches) that do not follow the ranks one to one. The tree is
  // over size() * leaves_per_rank leaves; a rank passes the roots of the complete subtrees that
  // cover its range, left to right (CoverWithSubtrees in muster/sum_tree.h says which), each
  // already summed by it. One rank that adds the same leaves by the same tree gets the same bits.
  //
  // Shapes: roots[i] [count] of f32 or f64; output [count] (all-reduce), or roots[i] [size * count]
  //         (reduce-scatter). output may be one of the roots (all-reduce), or block rank() of one.
  // Cost:   as AllReduce and ReduceScatter, the reducing half times the number of roots.
  virtual Work AllReduceSubtrees(absl::Span<const ConstBuffer> roots, Buffer output,
                                 SubtreeOptions options = {}) = 0;
  virtual Work ReduceScatterSubtrees(absl::Span<const ConstBuffer> roots, Buffer output,
                                     SubtreeOptions options = {}) = 0;

  // `output` becomes every rank's `input`, in the order of ranks.
  //
  // Shapes: input [count], output [size * count]; input may be block rank() of output.
  // Cost:   ring: n-1 steps, (n-1)/n * S bytes sent, S the output's.
  virtual Work AllGather(ConstBuffer input, Buffer output, CallOptions options = {}) = 0;

  // Every rank's `buffer` becomes that of rank `root`.
  //
  // Cost: small: binomial tree, log2(n) steps; large: a pipelined chain, S bytes sent by all but
  // the last.
  virtual Work Broadcast(Buffer buffer, int root, CallOptions options = {}) = 0;

  // Block r of rank s's `input` becomes block s of rank r's `output`.
  //
  // Shapes: input and output [size * count], not overlapping.
  // Cost:   n-1 messages, (n-1)/n * S bytes sent.
  virtual Work AllToAll(ConstBuffer input, Buffer output, CallOptions options = {}) = 0;

  // Cost: log2(n) steps without data.
  virtual Work Barrier(CallOptions options = {}) = 0;

  // One buffer from one rank to another. A send is done when its buffer may be used again, which
  // may be before or after the peer has received.
  //
  // Cost: S bytes, one message and a small one before it.
  virtual Work Send(ConstBuffer buffer, int to, CallOptions options = {}) = 0;
  virtual Work Recv(Buffer buffer, int from, CallOptions options = {}) = 0;

  // Whether BeginCapture may be called: true with one rank, or if the backend works on streams of a
  // device. The same on all ranks.
  virtual bool captures() const { return false; }
  // Until EndCapture, work given to `queue` is recorded instead of run (Device::BeginCapture), and
  // so are this thread's calls with that queue on this communicator, on those split from it, and on
  // those that share its origin. Such a call takes no sequence number. Ordered sums and calls
  // without a queue are refused (kFailedPrecondition). Other threads' calls on these communicators
  // wait until the capture has ended. All ranks must capture the same calls at the same time.
  //
  // Errors: kUnimplemented: captures() is false; Device::BeginCapture's.
  virtual absl::Status BeginCapture(Queue& queue);
  // Errors: what went wrong since BeginCapture, in the calls or on the device. Nothing has run, and
  //         the communicator can be used as before.
  virtual absl::StatusOr<std::unique_ptr<CapturedCalls>> EndCapture(Queue& queue);

  // Registers memory of this rank's device that collectives of this communicator will use, so that
  // the backend can access it directly. Results stay the same. Every rank of the group calls it
  // between the same two operations, with memory of its own: sizes may differ, and a rank may
  // register nothing (count 0). The call waits until all ranks have registered, or none.
  //
  // From then on, all buffers of a collective, inputs and outputs, must lie in registered memory on
  // all ranks or on none, each wholly in one registration: a mixture is undefined (NCCL's user
  // guide, "User Buffer Registration"). Registrations cover whole pages of the host's size. Sends
  // and receives, ordered sums and calls on host memory are not affected. Groups made by Split need
  // registrations of their own.
  //
  // A backend that needs no registration (gloo, loopback, any backend with one rank) returns an
  // empty one at once and exchanges nothing.
  //
  // Errors: those of the first rank that failed, on all ranks: kUnimplemented: NCCL is older than
  //         2.19; kInvalidArgument: the memory is not a device's; kFailedPrecondition: within a
  //         capture; NCCL's, and those of an operation.
  virtual absl::StatusOr<Registration> Register(Buffer memory);

  // Bytes that this rank has sent to others so far. gloo counts them as they leave; loopback, which
  // sends nothing, and nccl, which does not tell, count what a ring would send.
  virtual int64_t bytes_sent() const = 0;

  // Peak memory that this rank has used for exchange so far: gloo's staging buffers, and the rings
  // of shared memory through which others send to it. 0 for loopback, which needs none, and for
  // nccl, which does not tell.
  virtual int64_t bytes_reserved() const { return 0; }

  // Notes on what carries the data, for a log: which library, or why it is gloo where ranks with
  // GPUs named no back end; may be empty.
  virtual std::string notes() const { return ""; }

  // Ends the communicator on every rank: all waiters get kAborted with `reason` within a second.
  virtual void Abort(absl::string_view reason) = 0;

  // Makes a new communicator of the ranks with the same `color`, ordered by `key` and then by rank
  // in this group. Every rank of the group calls it between the same two operations and waits. A
  // rank without a colour gets null. `name` (the same on all ranks of a colour) is for messages, by
  // default "<group>.<color>".
  //
  // Errors: as an operation's; kInvalidArgument: a negative colour.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Split(std::optional<int> color, int key,
                                                              std::string name = "") = 0;
};

}  // namespace muster
