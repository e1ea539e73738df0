// Operations that the ranks of a group call together.
//
//   std::vector<float> gradients = ...;
//   Work work = communicator.AllReduce(BufferOf(gradients));
//   ...                                       // compute something else
//   MUSTER_RETURN_IF_ERROR(work.Wait());      // now every rank holds the sum
//
// Every rank of a group calls the same operations in the same order; the n-th call is sequence
// number n. A rank that calls something else, or with another size or type, makes the operation
// fail on all of them with a sentence that names it. The first failure is the end of the
// communicator: operations in flight and later ones return it.
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
  // From the call until the operation must have finished; nothing: the communicator's.
  std::optional<absl::Duration> timeout;
  // The buffers lie in the memory of this queue's device, and are touched once what was put on it
  // before the call has run. Null: in the host's memory, and what fills them has finished.
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
};

// Work of a device that was captured with the calls in it (Communicator::BeginCapture). The
// communicators that were called outlive it.
class CapturedCalls {
 public:
  virtual ~CapturedCalls() = default;
  // All of it once more, on the queue that it was captured on, with the arguments that it was
  // captured with. Each call counts as called again: it takes its sequence number, and has the time
  // that it was captured with, from now on. For all ranks it is one call of all communicators in
  // it: they launch what they have captured together, and nobody calls one by one what others
  // launch.
  //
  // Errors: of the first call that fails, as Work::Wait tells them. Where one communicator has
  // failed before, the launch
  //         ends all that are in it. Memory of the others' calls may be in use until they have
  //         ended too, and the launch with them.
  virtual Work Launch(Queue& queue) = 0;
};

// One rank's end of a group.
//
// Sums of bf16 and f16 are taken in fp32 and rounded once (backend nccl: at each hop, unless
// ordered); integers wrap around. Buffers lie in host memory, unless the call names a queue; with
// nccl also, and better, in the memory of the rank's GPU, and what fills them must have finished
// before the call, unless it names a queue. Errors of every operation: see Work::Wait. A call that
// is wrong in itself (a negative count, sizes that do not fit together, a rank out of range)
// returns kInvalidArgument, takes no sequence number and harms nobody. Send and Recv are counted
// apart, per peer and direction: they match in the order of their calls and hold up neither each
// other nor collectives.
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

  // Whether BeginCapture may be called: of one rank, or of a backend that works on streams of a
  // device. The same on all ranks.
  virtual bool captures() const { return false; }
  // Until EndCapture, what `queue` is given is kept instead of run (Device::BeginCapture), and so
  // is what this thread calls with that queue: of this communicator and of all that were split from
  // it or from one with it. Such a call takes no sequence number. Ordered sums and calls without a
  // queue are refused (kFailedPrecondition). Of other threads, calls of these communicators wait
  // until the capture has ended. All ranks capture the same calls at the same time.
  //
  // Errors: kUnimplemented: captures() is false; Device::BeginCapture's.
  virtual absl::Status BeginCapture(Queue& queue);
  // Errors: what went wrong since BeginCapture, in the calls or on the device. Nothing has run, and
  // everything goes on as
  //         if nothing had been.
  virtual absl::StatusOr<std::unique_ptr<CapturedCalls>> EndCapture(Queue& queue);

  // Tells the backend of memory of this rank's device that collectives of this communicator will
  // work in, so that it can read and write there directly. What calls do stays the same. Every rank
  // of the group calls it between the same two operations, each with memory of its own: sizes may
  // differ, and a rank may have none (count 0). Waits. All ranks have registered then, or none.
  //
  // From then on, the buffers that a collective works in lie in registered memory on all ranks or
  // on none, inputs as outputs, and each wholly in one piece of it: a mixture is undefined (NCCL's
  // user guide, "User Buffer Registration"). Memory counts by whole pages of the host's size: what
  // shares its first or last page is registered with it. Sends and receives, ordered sums and calls
  // on memory of the host have nothing to do with it, nor have the groups that were split off or
  // will be: they register by themselves.
  //
  // A backend that has no use for it (gloo, loopback, any of one rank) gives back an empty
  // registration at once and exchanges nothing.
  //
  // Errors: of the first rank that has failed, on all alike: kUnimplemented: NCCL is older
  // than 2.19; kInvalidArgument:
  //         the memory is no device's; NCCL's. kFailedPrecondition: within a capture. As an
  //         operation's.
  virtual absl::StatusOr<Registration> Register(Buffer memory);

  // Bytes that this rank has sent to others so far: gloo counts them where they leave. loopback,
  // which sends nothing, and nccl, which does not tell, count what a ring would send.
  virtual int64_t bytes_sent() const = 0;

  // Memory that this rank took to exchange in, at its most so far: what gloo stages messages in,
  // and rings of shared memory that others send to it through. loopback takes none, and nccl does
  // not tell.
  virtual int64_t bytes_reserved() const { return 0; }

  // Ends the communicator on every rank: all waiters get kAborted with `reason` within a second.
  virtual void Abort(absl::string_view reason) = 0;

  // Called by every rank of the group, between the same two operations: ranks of one `color` make a
  // new communicator, ordered by `key` and then by rank here. Null for a rank without a colour.
  // Waits; `name` (the same on all ranks of a colour) is for messages, by default
  // "<group>.<color>".
  //
  // Errors: as an operation's; kInvalidArgument: a negative colour.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Split(std::optional<int> color, int key,
                                                              std::string name = "") = 0;
};

}  // namespace muster
