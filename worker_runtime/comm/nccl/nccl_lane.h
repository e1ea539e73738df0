// A thread that runs operations of one NCCL communicator, and its NCCL communicator: nobody else
// touches it, so that an abort cannot meet a call.
//
// Included in this folder alone: it brings in the CUDA headers.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "proto/base/condition.h"
#include "proto/base/mutex.h"
#include "worker_runtime/comm/call_communicator.h"
#include "worker_runtime/comm/lane_task.h"
#include "worker_runtime/comm/launch_order.h"
#include "worker_runtime/comm/nccl/nccl_run.h"

namespace muster::comm {

struct NcclLaneOptions {
  int device = 0;
  int rank = 0;
  int size = 1;
  int peer = 0;  // of sends and receives
  // The order in which its calls stand; null: none.
  std::shared_ptr<LaunchOrder> order;
  // A failure revokes its NCCL communicator, so that another can be shrunk from it, instead of
  // aborting it; but where calls of it have been captured.
  bool revokes = false;
  // Connects, on the lane's thread; called once, of a lane that is made without ranks.
  std::function<absl::StatusOr<std::unique_ptr<NcclRanks>>(MonoTime deadline)> connect;
  // The failure of the whole communicator; ok while there is none.
  std::function<absl::Status()> failure;
  // `call` is late: its deadline has passed (kDeadlineExceeded) or something has failed. Sets a
  // failure. On the lane's thread.
  std::function<void(const Call& call, const absl::Status& why)> on_trouble;
  // `call` takes longer than kSuspiciousTime; called once for it. On the lane's thread.
  std::function<void(const Call& call)> on_suspicion;
};

// Threads: safe.
class NcclLane {
 public:
  static constexpr size_t kMaxQueued = size_t{1} << 16;
  // Beyond it, launches could wait for the device, and this thread could not watch deadlines.
  static constexpr size_t kMaxRunning = 128;
  static constexpr absl::Duration kSuspiciousTime = absl::Seconds(1);

  NcclLane(NcclLaneOptions options, DeviceStream stream, std::unique_ptr<NcclRanks> ranks);
  // Ends what is left with the communicator's failure, which there is by now if anything is left.
  ~NcclLane();

  // False if the queue is full; the call is untouched then.
  bool Push(Call& call);
  // A launch that is on its way, to be watched until its end.
  bool PushLaunch(Call& call);
  // `body`, on the lane's thread, once what was pushed before has ended; the lane is connected.
  // Waits.
  //
  // Errors: its own; the communicator's failure, if the lane ends before; kResourceExhausted: the
  // queue is full.
  absl::Status RunBetweenCalls(std::string name,
                               std::function<absl::Status(NcclRanks& ranks)> body);
  // There is a failure.
  void Wake();
  // The destructor's first half, so that several lanes end at the same time.
  void BeginClose();
  // Ends the lane as a failure does, which there is by now, and gives what it leaves; null where it
  // never connected. Called at most once, and nothing but the destructor after it.
  std::unique_ptr<NcclRanks> GiveUp();

 private:
  struct Running {
    std::unique_ptr<NcclRun> run;
    MonoTime since;
    bool is_suspected = false;
  };

  struct Queued {
    Call call;
    LaunchOrder::Place place = 0;  // not of a launch, which had its own
    bool is_launch = false;
    std::optional<LaneTask> task;  // `call` stands for it
  };

  bool PushAs(Call& call, bool is_launch);
  bool StandsInLine(const Queued& queued) const;
  void Run();
  // Waits for something to do; false: the lane ends.
  bool WaitForWork();
  absl::Status AskWhetherPosted();
  absl::Status Advance();
  // Called after a failure: nothing runs any more.
  void Stop();
  // What follows NCCL's having enqueued the last call.
  void EndPosting();
  // False: there is a failure now.
  bool StartNext();
  bool Connect(const Queued& queued);
  void WatchLaunch(Call call, const NcclPlace& place);
  absl::Status FinishFront();
  void Watch();
  void EndAll(const absl::Status& failure);
  std::optional<Queued> TakeQueued();
  bool IsTurnOfQueued() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Leave(const Queued& queued);

  const NcclLaneOptions options_;

  base::Mutex mu_;
  base::Condition changed_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  bool gives_up_ ABSL_GUARDED_BY(mu_) = false;
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Queued> queue_ ABSL_GUARDED_BY(mu_);

  // The lane's thread only; GiveUp's once that has ended.
  std::optional<DeviceStream> stream_;
  // The lane's ranks; null before the first call of a late lane, and after a failure.
  std::unique_ptr<NcclRanks> ranks_;
  std::deque<Running> running_;     // in the order of the stream
  bool is_posting_ = false;         // NCCL has not enqueued the last of them yet
  LaunchOrder::Place posting_ = 0;  // its place
  bool has_captured_ = false;       // there may be a graph that names ranks_
  std::thread aborts_;

  std::thread thread_;  // last: it uses everything above
};

}  // namespace muster::comm
