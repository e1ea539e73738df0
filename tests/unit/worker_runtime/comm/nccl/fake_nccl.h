// A library in NCCL's place, for ranks that are threads: communicators that come together, are
// revoked, shrunk and ended; their calls run on streams of FakeCuda. It is stricter than NCCL: what
// is against its rules is written down (CheckRules), where NCCL would crash, hang or leak.
//
// Source of the rules: NCCL's guide ("Communicator Creation and Management Functions") and
// src/init.cc of 2.31.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "proto/base/mutex.h"
#include "tests/unit/worker_runtime/comm/nccl/fake_nccl_traffic.h"
#include "worker_runtime/comm/nccl/nccl_library.h"

namespace muster::comm {

// One at a time in a process: NCCL's functions know no object of ours.
//
// Threads: safe.
class FakeNccl {
 public:
  enum class Fate { kWell, kFails, kHangs };

  FakeNccl();
  ~FakeNccl();

  std::shared_ptr<const NcclLibrary> library() const;
  // A library from before 2.28.7.
  std::shared_ptr<const NcclLibrary> older_library() const;

  // What comes of the next of `function` ("init", "call", "revoke", "shrink") on that rank of its
  // communicator.
  void Destine(const std::string& function, int rank, Fate fate);
  // That rank of the communicators that there are meets the end of a peer on the network.
  void LoseConnection(int rank);

  // Calls of this thread, in order: "a/1 init" for rank 1 of the first group to be connected,
  // "a-0,2/0 abort" for rank 0 of what was shrunk from it without ranks 0 and 2.
  std::vector<std::string> CallsOfThisThread() const;
  // How much memory is registered with the communicators that there are.
  int num_registered() const;
  // That no rule was broken and that nothing is left.
  void CheckRules() const;

 private:
  struct Comm {
    std::string group;
    int rank = 0;
    int size = 1;
    std::string under_way;  // "init", "call", "revoke", "shrink", "finalize"
    Fate fate = Fate::kWell;
    ncclResult_t error = ncclSuccess;  // the communicator's own; it stays
    bool is_revoked = false;
    bool is_finalized = false;
    bool is_gone = false;
    std::string shrinks_to;  // a group
    ncclComm_t* child = nullptr;
    std::vector<FakeCall> calls{};  // that are under way
    cudaStream_t stream = nullptr;  // of them
    bool was_asked = false;         // for their state: the first answer is that they are not ready
    int64_t num_calls = 0;
    std::set<void*> registered{};  // handles

    FakeRank place() const { return {group, rank, size}; }
  };
  struct Gathering {
    int size = 0;
    int arrived = 0;
    bool is_left = false;  // by somebody who had arrived
  };

  static FakeNccl& Current();
  Comm* Find(ncclComm_t comm, const std::string& function) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  ncclComm_t Add(Comm comm) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Break(const std::string& rule) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Fate TakeFate(const std::string& function, int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HaveAllCome(const std::string& group) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GoOn(Comm& comm) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndShrink(Comm& comm) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GiveChild(Comm& comm) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Nothing of it runs any more.
  void Kill(Comm& comm) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PutCalls(Comm& comm) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  ncclResult_t GetUniqueId(ncclUniqueId* id);
  ncclResult_t Init(ncclComm_t* comm, int size, const ncclUniqueId& id, int rank,
                    const ncclConfig_t* config);
  ncclResult_t Revoke(ncclComm_t comm, int flags);
  ncclResult_t Shrink(ncclComm_t comm, const std::vector<int>& without, ncclComm_t* child,
                      const ncclConfig_t* config, int flags);
  ncclResult_t GetAsyncError(ncclComm_t comm, ncclResult_t* error);
  // Between GroupStart and GroupEnd of this thread, calls are put on their stream together.
  ncclResult_t Call(ncclComm_t comm, const FakeCall& call, cudaStream_t stream);
  ncclResult_t GroupStart();
  ncclResult_t GroupEnd();
  ncclResult_t Register(ncclComm_t comm, void* memory, void** handle);
  ncclResult_t Deregister(ncclComm_t comm, void* handle);
  ncclResult_t Finalize(ncclComm_t comm);
  ncclResult_t End(ncclComm_t comm, const std::string& function);

  mutable base::Mutex mu_;
  int num_ids_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::unique_ptr<Comm>> comms_ ABSL_GUARDED_BY(mu_);     // gone ones too: handles stay
  std::map<std::string, Gathering> gatherings_ ABSL_GUARDED_BY(mu_);  // by group
  std::map<std::string, std::set<std::string>> children_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<std::string, int>, Fate> fates_ ABSL_GUARDED_BY(mu_);
  std::map<std::thread::id, std::vector<std::string>> calls_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> broken_ ABSL_GUARDED_BY(mu_);
  FakeNcclTraffic traffic_;
};

}  // namespace muster::comm
