// The agent's end of the workers' socket (agent/worker_service.h), without an agent: a store in
// memory, and whatever a test says of the job.
//
// Threads: safe; one thread per worker serves it.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/condition.h"
#include "proto/base/environment.h"
#include "proto/base/ids.h"
#include "proto/base/mono_time.h"
#include "proto/base/mutex.h"
#include "proto/base/stop_state.h"
#include "proto/base/store_messages.h"
#include "tests/support/files.h"
#include "worker_runtime/comm/memory_store.h"

namespace muster::proto {
class WorkerMessage;
class WorkerReply;
}  // namespace muster::proto

namespace muster::testing {

class FakeAgent {
 public:
  explicit FakeAgent(Round round, Instance instance = Instance(1));
  ~FakeAgent();
  FakeAgent(const FakeAgent&) = delete;
  FakeAgent& operator=(const FakeAgent&) = delete;

  std::string path() const { return directory_.File("agent"); }
  // What worker `rank` of `size`, all on this node, finds in its environment.
  EnvironmentMap EnvironmentOf(int rank, int size) const;

  // Tells the workers that obey, now and later.
  void Tell(const StopState& stop);
  // Answers commits with it from now on.
  void AnswerCommitsWith(absl::Status status);
  // Called with the worker's pid at the next commit, before it is answered; once.
  void AtNextCommit(std::function<void(pid_t)> act);
  // Tells all that survive rounds, now and later.
  void EndRound(bool is_followed, const std::string& reason);
  // Gives a worker that awaits a round its place in it.
  void GiveRound(int local_rank, const EnvironmentMap& environment);
  // Closes every connection.
  void HangUp();

  // Each waits for so many workers; false at the deadline.
  bool WaitForObeying(int num_workers) { return WaitFor(Sign::kObeys, num_workers); }
  bool WaitForFloors(int num_workers) { return WaitFor(Sign::kFloor, num_workers); }
  bool WaitForGoodbyes(int num_workers) { return WaitFor(Sign::kGoodbye, num_workers); }
  bool WaitForSurvivors(int num_workers) { return WaitFor(Sign::kSurvives, num_workers); }
  bool WaitForParked(int num_workers) { return WaitFor(Sign::kAwaitsRound, num_workers); }
  // The newest that each has sent, keyed by local rank.
  std::map<int, int64_t> floors();
  std::map<int, int64_t> goodbyes();

 private:
  enum class Sign { kObeys, kFloor, kGoodbye, kSurvives, kAwaitsRound };
  struct Worker {
    int fd = -1;
    int local_rank = -1;
    pid_t pid = -1;
    bool obeys = false;
    bool survives = false;
    bool awaits_round = false;
  };

  void Accept();
  void Serve(size_t worker);
  // False once the connection is to be closed.
  bool Handle(size_t worker, const proto::WorkerMessage& message);
  StoreReply Perform(size_t worker, const StoreRequest& request);
  absl::StatusOr<std::string> WaitInRound(const std::string& key, MonoTime deadline);
  absl::Status AnswerCommit(size_t worker);
  void Send(size_t worker, const proto::WorkerReply& reply) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SendRoundOver(size_t worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SendStop(size_t worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool WaitFor(Sign sign, int num_workers);
  int Count(Sign sign) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Round round_;
  const Instance instance_;
  const TemporaryDirectory directory_;
  int listener_ = -1;
  comm::MemoryStore store_;

  base::Mutex mu_;
  base::Condition changed_;
  std::vector<Worker> workers_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mu_);
  StopState stop_ ABSL_GUARDED_BY(mu_);
  // Once the round is over: whether another follows, and why.
  std::optional<std::pair<bool, std::string>> round_over_ ABSL_GUARDED_BY(mu_);
  absl::Status commit_answer_ ABSL_GUARDED_BY(mu_);
  std::function<void(pid_t)> at_commit_ ABSL_GUARDED_BY(mu_);
  std::map<int, int64_t> floors_ ABSL_GUARDED_BY(mu_);
  std::map<int, int64_t> goodbyes_ ABSL_GUARDED_BY(mu_);
  std::thread acceptor_;  // last: it uses everything above
};

}  // namespace muster::testing
