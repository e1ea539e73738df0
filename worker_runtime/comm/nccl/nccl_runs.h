// The calls that run on the stream of a lane, in its order, and the launches that are watched
// there. The last of them may still be posted: NCCL has not enqueued it yet.
//
// Included in this folder alone: it brings in the CUDA headers.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>

#include "absl/time/time.h"
#include "proto/base/mono_time.h"
#include "worker_runtime/comm/launch_order.h"
#include "worker_runtime/comm/nccl/nccl_run.h"

namespace muster::comm {

// One thread at a time.
class NcclRuns {
 public:
  bool empty() const { return running_.empty(); }
  size_t size() const { return running_.size(); }
  bool is_posting() const { return is_posting_; }

  // A call that is posted from now on; `place`: of it in line, if it stands there. None is posted.
  NcclRun& BeginPosting(std::unique_ptr<NcclRun> run, std::optional<LaunchOrder::Place> place);
  // NCCL has enqueued it, or never will. Its place, which is to be left.
  std::optional<LaunchOrder::Place> EndPosting();
  // A launch, which is on its way.
  NcclRun& Add(std::unique_ptr<NcclRun> run);

  NcclRun& oldest() { return *running_.front().run; }
  NcclRun& newest() { return *running_.back().run; }
  std::unique_ptr<NcclRun> TakeNewest();
  // The oldest that is not posted any more; null: there is none.
  NcclRun* OldestOnStream();
  std::unique_ptr<NcclRun> TakeOldest();
  // Whose deadline has passed; null: nobody's.
  const Call* FindLate(MonoTime now) const;
  // The oldest, once, where it has run for `limit`; else null.
  const Call* FindSuspicious(MonoTime now, absl::Duration limit);

 private:
  struct Running {
    std::unique_ptr<NcclRun> run;
    MonoTime since;
    bool is_suspected = false;
  };

  std::deque<Running> running_;
  bool is_posting_ = false;
  std::optional<LaunchOrder::Place> place_;  // of the one that is posted
};

}  // namespace muster::comm
