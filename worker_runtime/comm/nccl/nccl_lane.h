// A thread that runs operations of one NCCL communicator, and its NCCL communicator: nobody else
// touches it, so that an abort cannot meet a call.
//
// Included in this folder alone: it brings in the CUDA headers.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "worker_runtime/comm/call_communicator.h"
#include "worker_runtime/comm/lane_queue.h"
#include "worker_runtime/comm/nccl/nccl_run.h"
#include "worker_runtime/comm/nccl/nccl_runs.h"

namespace muster::comm {

struct NcclLaneOptions {
  int device = 0;
  int rank = 0;
  int size = 1;
  int peer = 0;  // of sends and receives
  // A failure revokes its NCCL communicator, so that another can be shrunk from it, instead of
  // aborting it; but where calls of it have been captured.
  bool revokes = false;
  // Connects, on the lane's thread; called once, of a lane that is made without ranks.
  std::function<absl::StatusOr<std::unique_ptr<NcclRanks>>(MonoTime deadline)> connect;
};

// The communicator whose calls a lane runs.
class NcclLaneOwner {
 public:
  virtual ~NcclLaneOwner() = default;
  // The failure of the whole communicator; ok while there is none. Any thread.
  virtual absl::Status failure() = 0;
  // `call` is late: its deadline has passed (kDeadlineExceeded) or something has failed. Sets a
  // failure. On the lane's thread.
  virtual void OnTrouble(const Call& call, const absl::Status& why) = 0;
  // `call` takes longer than NcclLane::kSuspiciousTime; called once for it. On the lane's thread.
  virtual void OnSuspicion(const Call& call) = 0;
};

// Threads: safe.
class NcclLane {
 public:
  // Beyond it, launches could wait for the device, and this thread could not watch deadlines.
  static constexpr size_t kMaxRunning = 128;
  static constexpr absl::Duration kSuspiciousTime = absl::Seconds(1);

  // `owner` outlives it. `order`: that in which its calls stand; null: none. `ranks`: null: it
  // connects at its first call.
  NcclLane(NcclLaneOptions options, NcclLaneOwner& owner, std::shared_ptr<LaunchOrder> order,
           DeviceStream stream, std::unique_ptr<NcclRanks> ranks);
  // Ends what is left with the communicator's failure, which there is by now if anything is left.
  ~NcclLane();

  // False if the queue is full; the call is untouched then.
  bool Push(Call& call) { return queue_.Push(call); }
  // A launch that is on its way, to be watched until its end.
  bool PushLaunch(Call& call) { return queue_.PushLaunch(call); }
  // `body`, on the lane's thread, once what was pushed before has ended; the lane is connected.
  // Waits.
  //
  // Errors: its own; the communicator's failure, if the lane ends before; kResourceExhausted: the
  // queue is full.
  absl::Status RunBetweenCalls(std::string name,
                               std::function<absl::Status(NcclRanks& ranks)> body);
  // There is a failure.
  void Wake() { queue_.Wake(); }
  // The destructor's first half, so that several lanes end at the same time.
  void BeginClose() { queue_.Close(LaneQueue::End::kClosed); }
  // Ends the lane as a failure does, which there is by now, and gives what it leaves; null where it
  // never connected. Called at most once, and nothing but the destructor after it.
  std::unique_ptr<NcclRanks> GiveUp();

 private:
  LaneQueue::UnderWay under_way() const;
  void Run();
  absl::Status AskWhetherPosted();
  absl::Status Advance();
  // Called after a failure: nothing runs any more.
  void Stop();
  // What follows NCCL's having enqueued the last call.
  void EndPosting();
  // False: there is a failure now.
  bool StartNext();
  bool Start(LaneQueue::Item item, const NcclPlace& place);
  bool Connect(const LaneQueue::Item& item);
  void WatchLaunch(Call call, const NcclPlace& place);
  absl::Status FinishFront();
  void Watch();
  void EndAll(const absl::Status& failure);

  const NcclLaneOptions options_;
  NcclLaneOwner& owner_;
  LaneQueue queue_;

  // The lane's thread only; GiveUp's once that has ended.
  std::optional<DeviceStream> stream_;
  // The lane's ranks; null before the first call of a late lane, and after a failure.
  std::unique_ptr<NcclRanks> ranks_;
  NcclRuns runs_;
  bool has_captured_ = false;  // there may be a graph that names ranks_
  std::thread aborts_;

  std::thread thread_;  // last: it uses everything above
};

}  // namespace muster::comm
