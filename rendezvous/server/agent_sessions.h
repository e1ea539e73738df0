// The agents that attend over gRPC, the people who ask for a stop, and observers: each stream's
// handshake, what it sends and what waits for it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/statusor.h"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"
#include "rendezvous/link/parts_wire.h"
#include "rendezvous/server/job_loop.h"
#include "rendezvous/server/rendezvous_service.h"

namespace muster::rendezvous {

struct SessionOptions {
  ServerTerm term;
  std::vector<OwnerKey> owners;
  TlsMode tls = TlsMode::kOn;
  std::string host_name;  // where agents find the secret, for messages
  absl::Duration handshake_timeout = absl::Seconds(5);
  // A connection or stream that was turned away: who and why.
  std::function<void(const std::string& peer_address, const absl::Status& why)> on_refused;
};

// Replies that all agents of one job together may leave unread; the one that goes beyond is given
// up.
inline constexpr size_t kMaxUnreadBytesPerJob = size_t{512} << 20;

// Loop thread only.
class AgentSessions {
 public:
  // Errors: those of RendezvousService::Start. `loop` and `jobs` must outlive this.
  static absl::StatusOr<std::unique_ptr<AgentSessions>> Start(
      asio::io_context& loop, JobLoop& jobs, std::unique_ptr<ConnectionListener> listener,
      SessionOptions options);
  ~AgentSessions();

  void ListenAlso(std::unique_ptr<ConnectionListener> listener) {
    service_->ListenAlso(std::move(listener));
  }
  int port() const { return service_->port(); }
  size_t num_streams() const { return sessions_.size(); }

  // Ends every stream once its pending messages have been written; if the last one was the job's
  // end, the agent ends the stream itself. Calls `on_drained` when the last stream has gone. A
  // caller that cannot wait longer destroys this object.
  void Drain(std::function<void()> on_drained);

 private:
  class Session;

  AgentSessions(asio::io_context& loop, JobLoop& jobs, SessionOptions options);
  void OnOpen(StreamId id, const std::string& address, TlsPeer peer);
  void OnMessage(StreamId id, const proto::FromAgent& message);
  void OnWritten(StreamId id);
  void OnHandshakeTimeout(StreamId id);
  void Remove(StreamId id);
  Session* Find(StreamId id);
  size_t& unread_bytes_of(const JobKey& job) { return unread_bytes_[job]; }

  asio::io_context& loop_;
  const LoopMailbox mailbox_;
  JobLoop& jobs_;
  const SessionOptions options_;
  std::function<void()> on_drained_;
  bool is_draining_ = false;
  // Replies of each job that its agents have not read: their memory is every user's.
  absl::btree_map<JobKey, size_t> unread_bytes_;
  EncodedParts encoded_parts_;
  std::unique_ptr<RendezvousService> service_;
  // Ends before the service, which it writes to.
  absl::btree_map<StreamId, std::unique_ptr<Session>> sessions_;
};

}  // namespace muster::rendezvous
