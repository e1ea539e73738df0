// The nccl backend: data over NCCL, and what NCCL cannot do over a control mesh of the gloo backend
// (who is absent, who called something else, an abort that reaches everybody).
//
// Included in this folder alone: it brings in the CUDA headers.
//
// Collectives run on one lane, a thread with a stream and an NCCL communicator of its own. Sends
// and receives run on a lane per peer and direction, connected at the first of them, since NCCL
// holds up everything behind a receive that waits.
//
// Collectives of a communicator and of those split from it are handed to NCCL in the order of the
// calls (launch_order.h).
//
// A group made by Split gets a fresh id rather than ncclCommSplit: it then shares nothing with its
// parent, so that an abort of one leaves the other alone, and ranks without a colour take no part.
//
// Ordered sums gather all contributions of all ranks everywhere: (n-1) * S bytes times the most
// roots of a rank, far more than communicator.h's cost; they are the oracle here, not the way to
// train.
//
// Differs from the contract: fast sums of bf16 and f16 are rounded at each hop, as NCCL does. Two
// ranks that call something else are named after a second instead of at once, and NCCL may have
// written into the buffers by then. Who waits for a rank that has closed its communicator, or whose
// transfer has another size, is told at the deadline: NCCL says nothing of either.
//
// The next round: one that may be remade keeps what NCCL has of its collectives' lane when it
// fails, revoked instead of aborted where NCCL can (2.28.7), until it is destroyed or another is
// made after it (Make's `former`): shrunk from it by ncclCommShrink if all ranks agree
// (nccl_remake.h), which saves NCCL's bootstrap; its data connections are made again, as those of
// sends and receives are, and groups made by Split, which are aborted. Where a GPU's memory is
// short, let go of what has failed first.
//
// Captures: a call of a capture goes its usual way, and its lane's stream joins the capture by the
// queue's event; NCCL makes it a part of the graph. A launch is watched by the lanes of its calls
// until the event behind it comes. Graphs are destroyed before their communicators, or by whoever
// is told that a launch has failed: NCCL waits for that.
//
// Registered memory: NCCL is told of it and asked to forget it by the lane of collectives, between
// two calls. What is left at the communicator's end NCCL forgets with its own.
//
// Device buffers: a call with a queue runs on the lane's stream behind an event of that queue, and
// Work::Await lets a queue go on behind one of the stream (stream_call.h); the host waits until
// NCCL has enqueued it, and no longer. But for ordered sums, whose end the host has to bring about.
// Without a queue, what fills buffers must have finished before the call (synchronise the stream).
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker_runtime/comm/call_communicator.h"
#include "worker_runtime/comm/failure_cell.h"
#include "worker_runtime/comm/gloo/collective_diagnosis.h"
#include "worker_runtime/comm/gloo/control_channel.h"
#include "worker_runtime/comm/gloo/gloo_mesh.h"
#include "worker_runtime/comm/nccl/nccl_lane.h"
#include "worker_runtime/comm/register_memory.h"

namespace muster::comm {

// What the communicators of one process share.
struct NcclContext {
  std::shared_ptr<const NcclLibrary> library;
  int device = 0;
  std::shared_ptr<GlooDevice> control;  // null for one rank
  std::shared_ptr<Store> store;
};

class NcclCommunicator final : public CallCommunicator, private NcclLaneOwner {
 public:
  // `former`: what the communicator of an earlier round gave up, on the same device; null: this
  // rank is new.
  static absl::StatusOr<std::unique_ptr<Communicator>> Make(
      Membership membership, NcclContext context, const std::string& prefix,
      std::unique_ptr<NcclRanks> former = nullptr);
  ~NcclCommunicator() override;

  // Ends it as the destructor does, which is all that may follow.
  std::unique_ptr<NcclRanks> GiveUp();
  const NcclContext& context() const { return context_; }

  std::string notes() const override { return context_.library->name; }
  void Abort(absl::string_view reason) override;
  int64_t bytes_sent() const override { return bytes_sent_; }
  absl::Status WhileAlive(absl::FunctionRef<absl::Status()> put) override;
  void WatchLaunch(Call call, absl::Span<const Operation> operations) override;

 private:
  enum class TellPeers { kYes, kNo };

  NcclCommunicator(Membership membership, NcclContext context, std::string prefix,
                   std::unique_ptr<GlooMesh> control_mesh);

  void Start(Call call) override;
  bool ReachesDevices() const override { return true; }
  bool CapturesCalls() const override { return true; }
  bool RegistersMemory() const override { return true; }
  // Registers with the NCCL communicator of collectives, on its lane.
  absl::StatusOr<Registration> RegisterHere(Buffer memory) override;
  void GiveUpRegistered(void* handle);
  // Puts the call in its lane, by `push`; if it cannot, the communicator fails, and the call with
  // it.
  void PutInLane(Call call, bool (NcclLane::*push)(Call& call));
  absl::StatusOr<std::unique_ptr<Communicator>> MakeChild(Membership child,
                                                          const std::vector<int>& members,
                                                          const std::string& path) override;

  absl::Status ConnectCollectives(std::unique_ptr<NcclRanks> former);
  // `gives_up`: what GiveUp gives; else nothing is left.
  std::unique_ptr<NcclRanks> End(bool gives_up);
  NcclLaneOptions CollectiveLane() const;
  NcclLaneOptions TransferLane(const Operation& operation);
  absl::StatusOr<NcclLane*> LaneOf(const Operation& operation);
  NcclLaneOwner& owner() { return *this; }
  absl::Status failure() override { return failure_.Get(); }
  void OnTrouble(const Call& call, const absl::Status& why) override;
  void OnSuspicion(const Call& call) override;
  StuckCollective Stuck(const Call& call) const;
  void Fail(absl::Status failure, TellPeers tell);

  // Constant after construction.
  const NcclContext context_;
  const std::string prefix_;
  const std::unique_ptr<GlooMesh> control_mesh_;  // null for one rank

  // Held while a launch is put on its queue: there is no failure before, and none comes meanwhile.
  base::Mutex alive_mu_;
  FailureCell failure_;
  std::atomic<int64_t> bytes_sent_ = 0;
  std::unique_ptr<ControlChannel> control_;

  Registrations registrations_;

  base::Mutex lanes_mu_;
  // Keyed by CounterOf.
  std::map<std::pair<OperationKind, int>, std::unique_ptr<NcclLane>> lanes_
      ABSL_GUARDED_BY(lanes_mu_);
};

}  // namespace muster::comm
