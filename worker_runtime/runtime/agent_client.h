// A worker's end of its agent's Unix socket (MUSTER_AGENT_SOCKET). The agent's end:
// agent/worker_service.h.
//
// A thread of its own reads replies, so that requests of several threads may be open at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/store.h"
#include "proto/base/condition.h"
#include "proto/base/environment.h"
#include "proto/base/ids.h"
#include "proto/base/mutex.h"
#include "proto/base/store_messages.h"
#include "worker_runtime/runtime/agent_socket.h"
#include "worker_runtime/runtime/stop_gate.h"

namespace muster {

namespace proto {
class StopState;
class WorkerReply;
}  // namespace proto

struct AgentAddress {
  std::string socket_path;
  Instance instance;
  Round round;
  LocalRank local_rank;
};

// Threads: safe.
class AgentClient final : public Store {
 public:
  // Greets the agent and waits for its welcome.
  //
  // Errors: kUnavailable: there is no agent, or it refused us (another round has begun, another
  //         version); kDeadlineExceeded.
  static absl::StatusOr<std::unique_ptr<AgentClient>> Connect(const AgentAddress& address,
                                                              MonoTime deadline);
  ~AgentClient() override;

  absl::Status Set(const std::string& key, const std::string& value, MonoTime deadline) override;
  absl::StatusOr<std::string> Wait(const std::string& key, MonoTime deadline) override;
  // May the checkpoint of `step` be published? See Runtime::CommitCheckpoint.
  absl::Status CommitCheckpoint(int64_t step, MonoTime deadline);
  // See Runtime::ShouldStop; one thread asks. The first time it tells the agent that this worker
  // obeys.
  bool ShouldStop(int64_t step);
  // Why it said yes.
  std::string stop_reason() const { return stop_gate_.reason(); }
  absl::Status SendGoodbye(int64_t step, MonoTime deadline);
  // See Runtime::SurviveRounds. `on_round_over` is called once, on the reader's thread.
  void SurviveRounds(std::function<void(const std::string& reason)> on_round_over);
  // See Runtime::NextRound: the environment of a worker in this one's new place. The agent has
  // closed this connection then.
  absl::StatusOr<EnvironmentMap> AwaitRound(MonoTime patience_ends);

 private:
  struct Pending {
    bool done = false;
    StoreReply reply;
  };

  AgentClient(std::unique_ptr<AgentSocket> socket, Round round);
  absl::Status Greet(const AgentAddress& address, MonoTime deadline);
  absl::StatusOr<StoreReply> Ask(StoreOperation operation, MonoTime deadline);

  void ReadReplies();
  void OnReply(const proto::WorkerReply& reply);
  void OnStop(const proto::StopState& stop);
  void OnRoundOver(bool is_followed, const std::string& reason);
  void OnLost(absl::Status why);

  // Constant after construction.
  const std::unique_ptr<AgentSocket> socket_;
  const Round round_;

  StopGate stop_gate_;
  std::atomic<bool> obeys_stop_ = false;  // the agent has been told so

  base::Mutex mu_;
  base::Condition changed_;
  bool welcome_ ABSL_GUARDED_BY(mu_) = false;
  // Why the agent is gone, or has refused this process; ok while it is there.
  absl::Status lost_ ABSL_GUARDED_BY(mu_);
  uint64_t next_request_id_ ABSL_GUARDED_BY(mu_) = 1;
  absl::btree_map<uint64_t, Pending> pending_ ABSL_GUARDED_BY(mu_);
  std::function<void(const std::string&)> on_round_over_ ABSL_GUARDED_BY(mu_);
  // The end of the round as the agent has told it: kAborted once it is over, kCancelled if no other
  // follows.
  absl::Status round_over_ ABSL_GUARDED_BY(mu_);
  std::optional<EnvironmentMap> next_round_ ABSL_GUARDED_BY(mu_);
  std::thread reader_;  // last: it uses everything above
};

}  // namespace muster
