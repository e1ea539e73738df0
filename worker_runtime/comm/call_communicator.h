// What all backends share: checks a call, gives it its sequence number, writes it to the ring, and
// hands it on as a value.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "muster/communicator.h"
#include "proto/base/mutex.h"
#include "worker_runtime/comm/abort_switch.h"
#include "worker_runtime/comm/agreed_backend.h"
#include "worker_runtime/comm/captured_calls.h"
#include "worker_runtime/comm/completion.h"
#include "worker_runtime/comm/launch_order.h"
#include "worker_runtime/comm/operation.h"
#include "worker_runtime/comm/operation_ring.h"
#include "worker_runtime/comm/staged_call.h"
#include "worker_runtime/comm/stream_call.h"

namespace muster::comm {

// What a communicator of one process shares with those that are split from it.
struct CallFamily {
  CaptureState capture;
  LaunchOrder order;
};

// The group of a communicator, its rank in it, and what it shares with other communicators.
struct Membership {
  std::string group = "world";
  uint32_t group_id = 0;  // tells groups of one name apart, see OperationRing::Group
  int rank = 0;
  int size = 1;
  CommunicatorOptions options;
  // Shared with the runtime and other communicators, any of which may be the last to write; null:
  // no record.
  std::shared_ptr<OperationRing> ring;
  // The family that it belongs to; null: it begins one.
  std::shared_ptr<CallFamily> family;
  // Ends it with all others of its runtime; null: nothing does.
  std::shared_ptr<AbortSwitch> abort_switch;
  // Another may be made from it once it has failed (RemakeCommunicator): it keeps what that needs.
  bool may_be_remade = false;
  AgreedBackend backend;
};

// One checked call. Its buffers hold operation.count elements per block.
struct Call {
  Operation operation;
  std::vector<const void*> inputs;  // roots of an ordered sum; one or none otherwise
  void* output = nullptr;
  // Both are for backends that reach devices; null where the host may touch the buffers. The queue
  // is the call's, for as long as Start runs; what is done on another stream follows it by
  // `on_stream`, and is followed.
  Queue* queue = nullptr;
  std::shared_ptr<StreamCompletion> on_stream;
  // It is put on a stream that joins a capture by `on_stream`, and ends when it is posted: it does
  // not run.
  bool captured = false;
  MonoTime deadline;
  absl::Duration timeout;
  std::shared_ptr<Completion> completion;
  std::shared_ptr<OperationRing> ring;
  absl::InlinedVector<OperationRing::Ticket, 1> tickets;  // of a launch those of all calls in it

  void MarkStarted() const;
  // Ends the call: its waiters wake. The buffers are not touched afterwards.
  void Finish(absl::Status status) const;
};

// Threads: safe.
class CallCommunicator : public Communicator {
 public:
  int rank() const final { return membership_.rank; }
  int size() const final { return membership_.size; }
  const std::string& group() const final { return membership_.group; }
  std::string backend() const final { return membership_.backend.name; }
  const AgreedBackend& agreed_backend() const { return membership_.backend; }
  std::string notes() const override { return membership_.backend.note; }

  Work AllReduce(Buffer buffer, ReduceOptions options) final;
  Work ReduceScatter(ConstBuffer input, Buffer output, ReduceOptions options) final;
  Work AllReduceSubtrees(absl::Span<const ConstBuffer> roots, Buffer output,
                         SubtreeOptions options) final;
  Work ReduceScatterSubtrees(absl::Span<const ConstBuffer> roots, Buffer output,
                             SubtreeOptions options) final;
  Work AllGather(ConstBuffer input, Buffer output, CallOptions options) final;
  Work Broadcast(Buffer buffer, int root, CallOptions options) final;
  Work AllToAll(ConstBuffer input, Buffer output, CallOptions options) final;
  Work Barrier(CallOptions options) final;
  Work Send(ConstBuffer buffer, int to, CallOptions options) final;
  Work Recv(Buffer buffer, int from, CallOptions options) final;
  absl::StatusOr<std::unique_ptr<Communicator>> Split(std::optional<int> color, int key,
                                                      std::string name) final;
  bool captures() const final { return size() == 1 || CapturesCalls(); }
  absl::Status BeginCapture(Queue& queue) final;
  absl::StatusOr<std::unique_ptr<CapturedCalls>> EndCapture(Queue& queue) final;
  absl::StatusOr<Registration> Register(Buffer memory) final;

  // --- For launches of what was captured (captured_calls.h).

  // Gives `operations` their sequence numbers, and the launch's `call` the first of them and all of
  // their records.
  void CallAgain(absl::Span<Operation> operations, MonoTime now, Call& call);
  LaunchOrder& launch_order() { return membership_.family->order; }
  // `put`, unless the communicator has failed: it neither fails nor ends as long as it runs.
  virtual absl::Status WhileAlive(absl::FunctionRef<absl::Status()> put) { return put(); }
  // `operations`, all of one CounterOf, are on their way. Finishes `call` once
  // call.on_stream->finished() has come, or with what failed.
  virtual void WatchLaunch(Call call, absl::Span<const Operation> operations);

 protected:
  explicit CallCommunicator(Membership membership);

  const Membership& membership() const { return membership_; }
  // Back ends that processes use call these once they are complete, and first of all in their
  // destructors.
  void EnterSwitch() {
    if (membership_.abort_switch == nullptr) return;
    place_in_switch_ =
        membership_.abort_switch->Enter([this](absl::string_view reason) { Abort(reason); });
  }
  void LeaveSwitch() {
    if (membership_.abort_switch != nullptr) membership_.abort_switch->Leave(place_in_switch_);
  }

  // Runs `call`, now or later, and then Finishes it. Called in the order of sequence numbers.
  virtual void Start(Call call) = 0;
  // Whether it works on the memory of a device as on the host's, and looks at Call::on_stream. Else
  // such buffers are copied.
  virtual bool ReachesDevices() const { return false; }
  // Whether it looks at Call::captured, and has WhileAlive and WatchLaunch.
  virtual bool CapturesCalls() const { return false; }
  // Whether it has RegisterHere; the same on all ranks.
  virtual bool RegistersMemory() const { return false; }
  // This rank's part of Register, of memory that is not empty. The others' may fail: then it is
  // given up at once.
  virtual absl::StatusOr<Registration> RegisterHere(Buffer memory);
  // Makes the communicator of a group split from this one. `members` are ranks here, in their new
  // order; `path` names the group uniquely among those that come from this communicator.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> MakeChild(Membership membership,
                                                                  const std::vector<int>& members,
                                                                  const std::string& path) = 0;

  // The position of this rank, which remembers its last kRememberedCalls collectives. Any thread.
  static constexpr int64_t kRememberedCalls = 256;
  Position PositionAt(int64_t sequence);

 private:
  // `queue`: of CallOptions.
  Work Issue(Operation operation, CallBuffers buffers, std::optional<absl::Duration> timeout,
             Queue* queue);
  // What ends with the call; whose buffers are copied, if there is a queue and this reaches no
  // device.
  absl::Status MakeCompletion(CallBuffers& buffers, Queue* queue, Call& call);
  // Part of a capture under way.
  Work IssueCaptured(const Operation& operation, CallBuffers buffers,
                     std::optional<absl::Duration> timeout, Queue* queue);
  // `operation` has its number now, on all of this rank's records.
  void Enter(const Operation& operation, MonoTime now, Call& call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(issue_mu_);
  Work Refuse(const Operation& operation, absl::string_view why) const;
  static Work Failed(absl::Status status);
  Work Reduce(Operation operation, absl::Span<const ConstBuffer> inputs, Buffer output,
              int64_t blocks, std::optional<absl::Duration> timeout, Queue* queue);
  int64_t NextSequence(const Operation& operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(issue_mu_);

  // Constant after construction.
  const Membership membership_;
  uint16_t ring_group_ = kUnlistedGroup;
  uint64_t place_in_switch_ = 0;  // none

  // Held while a call is given its number and handed to the backend, so that numbers are the order
  // of starting.
  base::Mutex issue_mu_;
  // The next number of each counter, keyed by CounterOf.
  std::map<std::pair<OperationKind, int>, int64_t> next_sequence_ ABSL_GUARDED_BY(issue_mu_);
  uint64_t chain_ ABSL_GUARDED_BY(issue_mu_) = 0;

  // Taken under issue_mu_; apart from it because control threads read while a call is being
  // started.
  base::Mutex issued_mu_;
  absl::btree_map<int64_t, Operation> issued_ ABSL_GUARDED_BY(issued_mu_);
  int64_t num_issued_ ABSL_GUARDED_BY(issued_mu_) = 0;
  int64_t num_splits_ ABSL_GUARDED_BY(issued_mu_) = 0;
};

}  // namespace muster::comm
