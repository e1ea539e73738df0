// The agent's side of the workers' Unix socket (MUSTER_AGENT_SOCKET): the store, the exchange of
// unique ids, what is said of a stop and of the end of a round, and a worker's goodbye. Messages
// are WorkerMessage and WorkerReply of proto/agent.proto, framed by their length.
//
// While the lease of the node does not hold by the agent's own count, a commit of a checkpoint is
// refused, and what workers write waits (OnLease): a cut of seconds costs them time, not a failure.
//
// Only processes of our own user may connect (SO_PEERCRED), and each speaks as its own worker
// (workers/worker_speaker.h), which it names once, in its hello. What cannot be is answered with
// Refused, the last message of the connection, and logged. A message that is too long or cannot be
// decoded closes its connection. Requests get new numbers on their way up, so that the workers of a
// node cannot collide.
//
// A worker that asks and does not read gets no more of its requests served once kUnreadBytesPause
// wait for it, and is dropped at kUnreadBytesMax (answers to what it asked before still come in).
//
// Loop thread only.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "asio/io_context.hpp"
#include "asio/local/stream_protocol.hpp"
#include "asio/steady_timer.hpp"
#include "proto/base/stop_state.h"
#include "proto/base/store_messages.h"

namespace muster::proto {
class WorkerReply;
}  // namespace muster::proto

namespace muster::agent {

// What a worker has said of itself, all of it (WorkerPromised of core/agent_core.h).
struct WorkerPromise {
  bool obeys = false;
  std::optional<int64_t> floor;
  bool survives = false;
  bool awaits_round = false;
  friend bool operator==(const WorkerPromise&, const WorkerPromise&) = default;
};

inline constexpr size_t kUnreadBytesPause = size_t{1} << 20;
inline constexpr size_t kUnreadBytesMax = 2 * kMaxStoreReplyBytes;

struct WorkerListener {
  // Sends a request towards the rendezvous; its answer comes back through OnReply.
  std::function<void(const StoreRequest&)> forward;
  // Whether it may be sent, or why not.
  std::function<absl::Status()> may_publish;
  // Whether the process `pid` may speak as a worker of the round, or why not.
  std::function<absl::Status(LocalRank, pid_t pid)> may_speak;
  // A worker of the round has come.
  std::function<void(LocalRank)> on_hello;
  // It has closed its connection without a goodbye: it has ended, but not by the intention of its
  // program.
  std::function<void(LocalRank)> on_silent_leave;
  // What it has said of itself has changed; a worker whose connection breaks has promised nothing.
  std::function<void(LocalRank, WorkerPromise)> on_promise;
};

class WorkerService {
 public:
  WorkerService(asio::io_context& loop, WorkerListener listener);
  ~WorkerService();

  // Errors: kInternal with errno in words.
  absl::Status Listen(const std::string& socket_path);
  // Only workers of this round are served; connections of earlier ones are closed, but for those of
  // workers that await a round: SendNextRound or Close ends them.
  void StartRound(Round round, Instance instance);
  void OnReply(const StoreReply& reply);
  // Goes to those workers of the round that obey.
  void TellStop(const StopState& stop);
  // Goes to those workers that survive rounds, also to one that says so later in this round.
  void TellRoundOver(bool is_followed, const std::string& reason);
  // The place of a worker that awaits a round: `environment` as that of a process that is started
  // for it (NAME=value). Its connection ends with this. False: it is not there any more.
  bool SendNextRound(LocalRank worker, const std::vector<std::string>& environment);
  // A request of the agent itself. Its round's end drops `then`.
  void AskForAgent(StoreOperation operation, std::function<void(const StoreReply&)> then);
  // May be called at any time, often: what has waited goes out if it may by now.
  void OnLease();
  void Close();

 private:
  class Connection;
  struct PendingRequest {
    uint64_t connection_id = 0;
    uint64_t worker_request_id = 0;
    std::function<void(const StoreReply&)> own = nullptr;  // the agent's, instead of a worker's
  };

  void Accept();
  void Forget(uint64_t connection_id);
  void ForgetAll();
  void Forward(uint64_t connection_id, StoreRequest request);

  const WorkerListener listener_;
  asio::local::stream_protocol::acceptor acceptor_;
  asio::steady_timer accept_again_;
  Round round_ = kNoRound;
  Instance instance_;
  std::unique_ptr<proto::WorkerReply> round_over_;  // of `round_`; null: it is not
  uint64_t next_id_ = 1;                            // of connections and of requests
  absl::btree_map<uint64_t, std::shared_ptr<Connection>> connections_;
  absl::btree_map<uint64_t, PendingRequest> pending_;
  std::vector<StoreRequest> waiting_;  // of pending_, not sent yet; in order
};

}  // namespace muster::agent
