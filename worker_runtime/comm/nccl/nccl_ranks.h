// One NCCL communicator: its creation through the store, its state, and its end.
//
// Included in this folder alone: it brings in nccl.h.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/store.h"
#include "proto/base/mono_time.h"
#include "worker_runtime/comm/nccl/nccl_library.h"

namespace muster::comm {

struct NcclRanksOptions {
  int rank = 0;
  int size = 1;
  std::string group;   // for messages
  std::string prefix;  // of its keys in the store: the same on all ranks, used once
  MonoTime deadline;   // for coming together
  // Ends the waiting when it is no longer ok; any thread.
  std::function<absl::Status()> failure;
};

// Does not block: NCCL works in the background, and is asked how far it is.
//
// One thread at a time.
class NcclRanks {
 public:
  // Rank 0 makes the id and publishes it; the others wait for it. Above kRanksPerId ranks several
  // of them make one each, which spreads NCCL's own bootstrap.
  //
  // Errors: kDeadlineExceeded; kUnavailable, kInvalidArgument: NCCL's words; options.failure's.
  // Cost:   one key in the store for every kRanksPerId ranks.
  static absl::StatusOr<std::unique_ptr<NcclRanks>> Connect(
      std::shared_ptr<const NcclLibrary> library, Store& store, const NcclRanksOptions& options);
  // Aborts unless it was closed.
  ~NcclRanks();

  ncclComm_t get() const { return comm_; }
  const NcclLibrary& library() const { return *library_; }

  // False while NCCL has not enqueued what was last called; no CUDA call may use its stream until
  // then.
  //
  // Errors: a failure of the communicator, also of operations that were enqueued before.
  absl::StatusOr<bool> IsReady() const;
  // Kills what runs; afterwards no memory of an operation is touched.
  void Abort();
  // Lets what was sent reach the peers, until `deadline`; then aborts.
  void Close(MonoTime deadline);

 private:
  NcclRanks(std::shared_ptr<const NcclLibrary> library, ncclComm_t comm);

  const std::shared_ptr<const NcclLibrary> library_;
  ncclComm_t comm_ = nullptr;
};

}  // namespace muster::comm
