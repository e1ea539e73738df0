// One NCCL communicator: its creation through the store or from an earlier one, its state, and its
// end.
//
// What NCCL's source says of the end (src/init.cc of 2.31), which its manual does not:
// ncclCommRevoke stops what runs and the communicator's proxy, asynchronously, and leaves the
// memory; an error that the proxy has met stays its state, and ncclCommShrink refuses it.
// ncclCommShrink wants somebody to be left out, and nothing in progress; it is a job of the former
// communicator, whose state tells of its end, and whose abort waits for it; so what it writes may
// be read then. It takes over the former's bootstrap connections and, once that is revoked, no
// others. Where one rank aborts a communicator, all do (ncclCommDestroy waits for the others of the
// machine); so those that were revoked are aborted. Unlike one that was not, it does not wait then
// for graphs that name it: such a one is not revoked (NcclLane).
//
// Included in this folder alone: it brings in nccl.h.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/store.h"
#include "proto/base/mono_time.h"
#include "worker_runtime/comm/nccl/nccl_library.h"
#include "worker_runtime/comm/shrink_agreement.h"

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
  // The same ranks but those in `without` (ranks of `former`, ascending, one at least), in the same
  // order. `former` has been revoked. All that are left call it, with the same list, and nobody
  // ends `former` before all have come through. On a failure `former` is aborted; the others' may
  // last until they give up (options.failure).
  //
  // Errors: kFailedPrecondition: `former` is not revoked; kDeadlineExceeded; options.failure's;
  // else NCCL's words.
  static absl::StatusOr<std::unique_ptr<NcclRanks>> Shrink(NcclRanks& former,
                                                           std::vector<int> without,
                                                           const NcclRanksOptions& options);
  // Aborts unless it was closed.
  ~NcclRanks();

  // What DecideShrink needs of it, which can be shrunk once it has been revoked.
  FormerPlace place() const;

  ncclComm_t get() const { return comm_; }
  const NcclLibrary& library() const { return *library_; }

  // False while NCCL has not enqueued what was last called; no CUDA call may use its stream until
  // then.
  //
  // Errors: a failure of the communicator, also of operations that were enqueued before.
  absl::StatusOr<bool> IsReady() const;
  // Kills what runs; afterwards no memory of an operation is touched. `why`: for place().hindrance.
  void Abort(absl::string_view why);
  // The same, and keeps it for Shrink, where NCCL can and has done with it at `deadline`; else
  // aborts.
  void Revoke(MonoTime deadline);
  // Says that memory is registered with it: Revoke aborts from now on. The memory goes after a
  // failure, and a revoked communicator would keep the registration, without the proxy that gives
  // it up.
  void HoldsMemory() { holds_memory_ = true; }
  // Lets what was sent reach the peers, until `deadline`; then aborts.
  void Close(MonoTime deadline);

 private:
  NcclRanks(std::shared_ptr<const NcclLibrary> library, ncclComm_t comm, FormerPlace place);

  // Waits until NCCL has done what was last called. `late`: what is said at the deadline.
  absl::Status AwaitReady(const NcclRanksOptions& options, absl::string_view late) const;
  absl::Status AwaitQuiet(MonoTime deadline) const;

  const std::shared_ptr<const NcclLibrary> library_;
  ncclComm_t comm_ = nullptr;  // null once it has ended
  FormerPlace place_;
  bool holds_memory_ = false;
};

}  // namespace muster::comm
