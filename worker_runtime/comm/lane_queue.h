// What the thread of a lane is asked for: calls in the order of their calling, launches to be
// watched, tasks between two calls, and its end.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "proto/base/condition.h"
#include "proto/base/mono_time.h"
#include "proto/base/mutex.h"
#include "worker_runtime/comm/call_communicator.h"
#include "worker_runtime/comm/lane_task.h"
#include "worker_runtime/comm/launch_order.h"

namespace muster::comm {

// Threads: safe; WaitForWork and what takes are the lane's thread's.
class LaneQueue {
 public:
  static constexpr size_t kMaxQueued = size_t{1} << 16;

  struct Item {
    Call call;
    std::optional<LaunchOrder::Place> place;  // of a call that stands in line
    bool is_launch = false;                   // it is on its way already
    std::optional<LaneTask> task;             // `call` stands for it
  };
  enum class End { kNone, kClosed, kGivenUp };
  // What the lane has under way.
  struct UnderWay {
    bool is_idle = true;   // nothing: a task may run
    bool has_room = true;  // another call may start
  };

  // `order`: the order in which its calls stand; null: none.
  explicit LaneQueue(std::shared_ptr<LaunchOrder> order) : order_(std::move(order)) {}

  // False if it is full; the call is untouched then. A call takes its place in line.
  bool Push(Call& call);
  bool PushLaunch(Call& call);
  bool PushTask(const LaneTask& task);
  // There is something to look at that does not stand here.
  void Wake();
  // The lane ends; the first to close it says how.
  void Close(End how);
  End end();

  // Waits until there is something to do: at most `poll` while something is under way or waits for
  // its turn. False: the lane ends.
  bool WaitForWork(UnderWay under_way, absl::Duration poll);
  // The first if its turn has come.
  std::optional<Item> TakeNext(bool is_idle);
  // The first, whosever turn it is.
  std::optional<Item> TakeFirst();
  // One whose deadline has passed.
  std::optional<Call> FindLate(MonoTime now);
  // What stood there was started, or never will be.
  void Leave(const std::optional<LaunchOrder::Place>& place);

 private:
  bool Add(Item item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // It is closed, or was woken.
  bool HasNews() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsTurn(bool is_idle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<Item> Take() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<LaunchOrder> order_;

  base::Mutex mu_;
  base::Condition changed_;
  End end_ ABSL_GUARDED_BY(mu_) = End::kNone;
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Item> items_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster::comm
