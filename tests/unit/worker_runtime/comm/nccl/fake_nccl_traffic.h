// What calls of FakeNccl move between ranks: each runs on a stream's thread, and there it waits
// for the others, as NCCL's kernels do.
//
// Sums of 16 bits are rounded once, where NCCL's are at each hop.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "proto/base/condition.h"
#include "proto/base/mutex.h"

namespace muster::comm {

// A rank of a group of FakeNccl.
struct FakeRank {
  std::string group;
  int rank = 0;
  int size = 1;
};

struct FakeCall {
  enum class Kind : uint8_t { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kSend, kRecv };
  Kind kind = Kind::kAllReduce;
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;  // as NCCL counts it
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t op = ncclSum;
  int peer = 0;  // the root of a broadcast, the other rank of a transfer

  bool is_transfer() const { return kind == Kind::kSend || kind == Kind::kRecv; }
};

// Threads: safe.
class FakeNcclTraffic {
 public:
  // One collective, or transfers of one group; collectives of a rank have a `number` each. Returns
  // once they are done, or once the rank is killed, after which no memory of it is touched. Calls
  // that do not go together hang.
  void Run(const FakeRank& at, int64_t number, const std::vector<FakeCall>& calls);
  void Kill(const FakeRank& at);

 private:
  struct Meeting {
    std::map<int, FakeCall> calls;  // by rank
    bool is_done = false;
  };
  struct Message {
    FakeCall call;
    bool is_taken = false;
  };
  using Mailbox = std::deque<std::shared_ptr<Message>>;

  void RunCollective(const FakeRank& at, int64_t number, const FakeCall& call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RunTransfers(const FakeRank& at, const std::vector<FakeCall>& calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // False: the rank was killed.
  bool Receive(const FakeRank& at, const FakeCall& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsKilled(const FakeRank& at) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AwaitChange() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Mailbox& MailboxOf(const FakeRank& at, int from, int to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  base::Mutex mu_;
  base::Condition changed_;
  std::map<std::pair<std::string, int64_t>, Meeting> meetings_ ABSL_GUARDED_BY(mu_);
  std::map<std::tuple<std::string, int, int>, Mailbox> mailboxes_ ABSL_GUARDED_BY(mu_);
  std::set<std::pair<std::string, int>> killed_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster::comm
