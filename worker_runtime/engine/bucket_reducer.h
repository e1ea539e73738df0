// Starts the reduction of each bucket as soon as all its gradients are there, and waits for them.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "muster/work.h"
#include "proto/base/mono_time.h"
#include "worker_runtime/plan/bucket_plan.h"

namespace muster::engine {

// Reductions are started in the order of buckets whatever the order of gradients, so that all ranks
// start the same sequence.
//
// Threads: thread-compatible.
class BucketReducer {
 public:
  explicit BucketReducer(std::vector<plan::Bucket> buckets);

  // Reduces the gradients of a bucket, without waiting.
  using Reduce = std::function<Work(const plan::Bucket& bucket)>;

  // A backward pass begins whose gradients are to be reduced.
  void Begin(Reduce reduce);
  // The gradient of parameter number `parameter` is complete. Once per parameter and pass.
  void MarkReady(int parameter);
  // Starts what MarkReady has not, since no operation used some parameters.
  void StartRest();
  // Waits for all that was started. Returns the first error.
  absl::Status Wait();

  // For how long a reduction was under way, from Begin until Wait returned.
  absl::Duration busy() const { return busy_; }
  const std::vector<plan::Bucket>& buckets() const { return buckets_; }

 private:
  struct Started {
    Work work;
    MonoTime since;
  };
  void StartNext();

  // Constant after construction.
  const std::vector<plan::Bucket> buckets_;
  std::vector<int> bucket_of_;  // by parameter

  Reduce reduce_;
  std::vector<int> missing_;      // by bucket: gradients that are not there yet
  std::vector<Started> started_;  // by bucket, in order
  absl::Duration busy_;
};

}  // namespace muster::engine
