// The rendezvous as a whole, for `musterd` and for the embedded server of `muster run`: the jobs,
// the ways in, the end.
//
//   RendezvousServer -- JobLoop (job_loop.h): JobTable, timer, who attends
//                    -- AgentSessions (agent_sessions.h), after Listen: handshakes, queues
//                         -- RendezvousService (rendezvous_service.h): gRPC, ConnectionListeners
//                    -- LocalLink (local_link.h) for the agent of this process
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"
#include "proto/base/endpoint.h"
#include "proto/io/credentials.h"
#include "proto/io/loop_mailbox.h"
#include "proto/io/unique_fd.h"
#include "rendezvous/link/rendezvous_link.h"
#include "rendezvous/server/job_loop.h"

namespace muster::rendezvous {

class AgentSessions;
class ConnectionListener;

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

  // Raises the process's limit on open files, and listens on exactly `address`, a numeric address
  // or a name that is resolved here (its first IPv4 address, else its first), and returns the port;
  // 0 takes a free one. All addresses only if asked for: "0.0.0.0" or "::". Once.
  //
  // Errors: kAlreadyExists: another process listens there.
  //         kInvalidArgument: the name cannot be resolved, or is no address of this machine.
  //         kPermissionDenied: a port below 1024.
  //         kFailedPrecondition: it listens already, or has no owner.
  //         kResourceExhausted: not enough threads (ulimit -u) or descriptors (ulimit -n).
  //         kUnavailable: anything else.
  absl::StatusOr<int> Listen(const std::string& address, int port);

  // Called in place of Listen. Takes what comes on sockets that listen already, one at least, and
  // returns their numeric addresses.
  //
  // Errors: kFailedPrecondition, kResourceExhausted and kUnavailable as of Listen.
  absl::StatusOr<std::vector<Endpoint>> ListenOn(std::vector<UniqueFd> sockets);

  // Listens on a further numeric address, after Listen and on its port.
  //
  // Errors: as of Listen.
  absl::Status ListenAlso(const std::string& address);

  // The way for the agent of this process, whose owner is the first. The link may outlive the
  // server, not the loop.
  std::unique_ptr<RendezvousLink> MakeLocalLink(const std::string& run_id, Incarnation incarnation);

  // The process that hosts this server leaves: every agent of every job is told.
  void HostLeaving(const Departure& departure, const std::string& host_name);

  // Takes no new streams and ends those that are open: after the last directive has been written,
  // and where that was EndJob by the agent's own closing. `on_closed` follows when all have gone,
  // or at `deadline`, and is the moment to destroy the server.
  void Shutdown(absl::Duration deadline, std::function<void()> on_closed);

  // The status of each job of `owner`.
  std::vector<status::StatusPage> PagesOf(const std::string& owner) {
    return jobs_->PagesOf(owner);
  }

  const JobTable& table() const { return jobs_->table(); }
  size_t num_streams() const;

 private:
  RendezvousServer(asio::io_context& loop, RendezvousServerOptions options,
                   std::unique_ptr<RecordKeeper> keeper);
  // Connections have descriptors below this number.
  int MaxDescriptor() const;
  // Returns MaxDescriptor. Errors: kFailedPrecondition and kResourceExhausted as of Listen.
  absl::StatusOr<int> PrepareToListen() const;
  absl::Status StartSessions(std::unique_ptr<ConnectionListener> listener);
  void FinishShutdownOnLoop();

  asio::io_context& loop_;
  const LoopMailbox mailbox_;
  const RendezvousServerOptions options_;
  // Shared with local links by weak pointers only. Outlives the sessions, which detach from it.
  std::shared_ptr<JobLoop> jobs_;
  std::unique_ptr<AgentSessions> sessions_;
  asio::steady_timer shutdown_timer_;
  std::function<void()> on_closed_;
};

}  // namespace muster::rendezvous
