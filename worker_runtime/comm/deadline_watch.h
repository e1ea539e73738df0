// One thread that calls back when deadlines pass.
#pragma once

#include <cstdint>
#include <thread>

#include "absl/container/btree_map.h"
#include "absl/functional/any_invocable.h"
#include "proto/base/condition.h"
#include "proto/base/mono_time.h"
#include "proto/base/mutex.h"

namespace muster::comm {

// Bounded by what its callers have in flight. Callbacks run on the watch's thread, under no lock,
// and must be short.
//
// Threads: safe.
class DeadlineWatch {
 public:
  using Entry = uint64_t;

  DeadlineWatch();
  ~DeadlineWatch();  // no callback runs afterwards
  DeadlineWatch(const DeadlineWatch&) = delete;
  DeadlineWatch& operator=(const DeadlineWatch&) = delete;

  Entry Add(MonoTime deadline, absl::AnyInvocable<void()> on_expiry);
  // After it returns the callback neither runs nor will run, unless this is called from it.
  void Remove(Entry entry);

 private:
  struct Waiting {
    MonoTime deadline;
    absl::AnyInvocable<void()> on_expiry;
  };

  void Run();
  MonoTime Earliest() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  base::Mutex mu_;
  base::Condition changed_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  Entry next_entry_ ABSL_GUARDED_BY(mu_) = 1;
  Entry running_ ABSL_GUARDED_BY(mu_) = 0;
  // When the thread wakes by itself; an entry that is due later need not wake it.
  MonoTime wakes_at_ ABSL_GUARDED_BY(mu_);
  absl::btree_map<Entry, Waiting> waiting_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;  // last: it uses everything above
};

}  // namespace muster::comm
