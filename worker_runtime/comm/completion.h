// The end of one operation: set once by its backend, waited for through Work.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "proto/base/condition.h"
#include "proto/base/mono_time.h"
#include "proto/base/mutex.h"

namespace muster::comm {

// Threads: safe.
class Completion {
 public:
  // `description` makes the message of a waiter that gives up.
  explicit Completion(std::function<std::string()> description)
      : description_(std::move(description)) {}

  // Later calls of the same change nothing.
  void MarkStarted();
  void Finish(absl::Status status);
  absl::Status Wait(MonoTime deadline);
  bool IsDone();

  // InfiniteFuture until then.
  MonoTime started_at();
  MonoTime finished_at();

 private:
  const std::function<std::string()> description_;

  base::Mutex mu_;
  base::Condition changed_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  MonoTime started_at_ ABSL_GUARDED_BY(mu_) = MonoTime::InfiniteFuture();
  MonoTime finished_at_ ABSL_GUARDED_BY(mu_) = MonoTime::InfiniteFuture();
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster::comm
