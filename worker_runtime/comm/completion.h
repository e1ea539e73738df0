// The end of one operation: set once by its backend, waited for through Work.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proto/base/condition.h"
#include "proto/base/mono_time.h"
#include "proto/base/mutex.h"
#include "worker_runtime/comm/operation_ring.h"

namespace muster {
class Queue;
}  // namespace muster

namespace muster::comm {

// Threads: safe.
class Completion {
 public:
  virtual ~Completion() = default;

  // `description` makes the message of a waiter that gives up. `num_parts`: that Finish is called
  // for.
  explicit Completion(std::function<std::string()> description, int num_parts = 1)
      : description_(std::move(description)), parts_left_(num_parts) {}

  // Waiters are shown on the progress board, at each operation that this was told of. Before
  // anybody can wait.
  void ShowWaits(const std::shared_ptr<OperationRing>& ring, OperationRing::Ticket ticket) {
    ring_ = ring;
    tickets_.push_back(ticket);
  }

  // Later calls of the same change nothing.
  void MarkStarted();
  // It has ended once all parts were finished, or one with an error.
  void Finish(absl::Status status);
  // All of it is on a stream.
  void MarkPosted();
  virtual absl::Status Wait(MonoTime deadline);
  // Work::Await: of operations that run on the host.
  virtual absl::Status Await(Queue&) { return Wait(MonoTime::InfiniteFuture()); }
  virtual bool IsDone();

  // InfiniteFuture until then.
  virtual MonoTime started_at();
  virtual MonoTime finished_at();

 protected:
  // Called for a queue to go on behind it: waits until it is on a stream, or has ended, and returns
  // the failure that it ended with. From the call on the board shows that the program waits for it,
  // until its end. What threads wait for it later does not count as waiting for other ranks: it is
  // the device's own work as well.
  absl::Status WaitUntilPosted();

 private:
  // Constant once anybody can wait.
  const std::function<std::string()> description_;
  std::shared_ptr<OperationRing> ring_;
  std::vector<OperationRing::Ticket> tickets_;

  void SetAwaited(bool awaited);

  base::Mutex mu_;
  base::Condition changed_;
  int parts_left_ ABSL_GUARDED_BY(mu_);
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  bool posted_ ABSL_GUARDED_BY(mu_) = false;
  bool followed_ ABSL_GUARDED_BY(mu_) = false;  // by a queue
  MonoTime started_at_ ABSL_GUARDED_BY(mu_) = MonoTime::InfiniteFuture();
  MonoTime finished_at_ ABSL_GUARDED_BY(mu_) = MonoTime::InfiniteFuture();
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster::comm
