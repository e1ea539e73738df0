// The rendezvous as a whole, for `musterd` and for the embedded server of `muster run`: the jobs,
// the ways in, the end.
//
//   RendezvousServer -- JobLoop (job_loop.h): JobTable, timer, who attends
//                    -- AgentDoor (agent_door.h): listens, ends
//                         -- AgentSessions (agent_sessions.h), after Listen: handshakes, queues
//                              -- RendezvousService (rendezvous_service.h): gRPC,
//                                 ConnectionListeners
//                    -- LocalLink (local_link.h) for the agent of this process
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "asio/io_context.hpp"
#include "proto/base/endpoint.h"
#include "proto/io/credentials.h"
#include "proto/io/unique_fd.h"
#include "rendezvous/link/rendezvous_link.h"
#include "rendezvous/server/job_loop.h"

namespace muster::rendezvous {

class AgentDoor;

struct RendezvousServerOptions {
  ServerTerm term;  // 0: the wall clock's (TermOfStart)
  // The first term whose records were kept, with durable state (JobTableOptions).
  ServerTerm first_term;
  // Another server may have been at this endpoint before, whose agents come back: no round is
  // completed for a lease, so that none is formed beside one that runs.
  bool may_have_predecessor = false;
  LeaseSettings lease;
  std::string only_run_id;              // not empty: an embedded server of this one job
  std::vector<std::string> node_names;  // of that job, by --node_rank; empty: not known
  std::vector<OwnerKey> owners;  // one at least before Listen; an embedded server's is named ""
  TlsMode tls = TlsMode::kOn;
  std::string host_name;  // of this machine, for messages
  // The file of the one owner's secret, or "MUSTER_TOKEN": a node that is refused for its secret is
  // told of here, with the command that lets it in. Empty: no command is known.
  std::string secret_origin;
  absl::Duration handshake_timeout = absl::Seconds(5);
  // Descriptors that connections leave to the rest of the process: the workers of an embedded
  // server's own node, files, libraries.
  int reserved_descriptors = 128;
  AnnounceSink announce;  // empty: the log
};

// Loop thread only. Until Listen there is no gRPC, no port and no thread. The loop must be kept
// running (a work guard).
class RendezvousServer {
 public:
  // `loop` must outlive the server. With `keeper` its state is durable: it goes on with `jobs`, and
  // what it decides leaves once it is kept.
  static std::unique_ptr<RendezvousServer> Create(asio::io_context& loop,
                                                  RendezvousServerOptions options,
                                                  std::unique_ptr<RecordKeeper> keeper = nullptr,
                                                  std::vector<KeptJob> jobs = {});
  // Breaks off what is open.
  ~RendezvousServer();
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;

  // The way for agents of other processes. AgentDoor says what these do and which errors they have.
  absl::StatusOr<int> Listen(const std::string& address, int port);
  absl::StatusOr<std::vector<Endpoint>> ListenOn(std::vector<UniqueFd> sockets);
  absl::Status ListenAlso(const std::string& address);
  // `on_closed` is the moment to destroy the server.
  void Shutdown(absl::Duration deadline, std::function<void()> on_closed);
  size_t num_streams() const;

  // The way for the agent of this process, whose owner is the first. The link may outlive the
  // server, not the loop.
  std::unique_ptr<RendezvousLink> MakeLocalLink(const std::string& run_id, Incarnation incarnation);

  // The process that hosts this server leaves: every agent of every job is told.
  void HostLeaving(const Departure& departure, const std::string& host_name);

  // The status of each job of `owner`.
  std::vector<status::StatusPage> PagesOf(const std::string& owner) {
    return jobs_->PagesOf(owner);
  }

  const JobTable& table() const { return jobs_->table(); }

 private:
  RendezvousServer(asio::io_context& loop, const RendezvousServerOptions& options,
                   std::unique_ptr<RecordKeeper> keeper);

  asio::io_context& loop_;
  const std::string local_owner_;  // of the agent of this process
  // Shared with local links by weak pointers only. Outlives the door, whose sessions detach from
  // it.
  const std::shared_ptr<JobLoop> jobs_;
  const std::unique_ptr<AgentDoor> door_;
};

}  // namespace muster::rendezvous
