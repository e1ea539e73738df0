#include "rendezvous/server/rendezvous_server.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "asio/ip/tcp.hpp"
#include "proto/base/mono_time.h"
#include "proto/base/status_macros.h"
#include "proto/io/descriptors.h"
#include "proto/io/log.h"
#include "rendezvous/server/agent_sessions.h"
#include "rendezvous/server/connection_listener.h"
#include "rendezvous/server/local_link.h"

namespace muster::rendezvous {
namespace {

// Fewer would not serve a job of any size.
constexpr int kMinConnections = 32;

// A server of many jobs says of which job it speaks.
void LogAnnouncement(const JobKey& job, const Announce& announce) {
  const std::string of = job.owner.empty() ? "" : absl::StrCat(" of ", job.owner);
  log::Write(log::Level::kInfo, announce.event,
             absl::StrCat("job ", absl::CHexEscape(job.run_id), of, ": ", announce.reason),
             {{"run", job.run_id}, {"owner", job.owner}, {"round", ToString(announce.round)}});
}

// Says who was turned away, at most once a second: a scan of ports must not fill the log.
class RefusalLog {
 public:
  explicit RefusalLog(std::string secret_origin) : secret_origin_(std::move(secret_origin)) {}

  void operator()(const std::string& peer_address, const absl::Status& why) {
    if (MonoNow() < silent_until_) {
      ++num_silent_;
      return;
    }
    const std::string more =
        num_silent_ == 0 ? ""
                         : absl::StrCat(" (and ", num_silent_, " more since the last such line)");
    log::Write(log::Level::kWarning, "agent_refused",
               absl::StrCat("refused a connection from ", peer_address, ": ", why.message(), more,
                            absl::IsUnauthenticated(why) ? HowToLetIn(peer_address) : ""),
               {{"peer", peer_address}});
    num_silent_ = 0;
    silent_until_ = MonoNow() + absl::Seconds(1);
  }

 private:
  // One command, to be run here.
  std::string HowToLetIn(const std::string& peer_address) const {
    if (secret_origin_.empty()) return "";
    if (!absl::StrContains(secret_origin_, '/')) {
      return absl::StrCat("; if it is a node of yours, set ", secret_origin_,
                          " there to the value that it has here");
    }
    const absl::StatusOr<Endpoint> peer = ParseEndpoint(peer_address, 0);
    return absl::StrCat("; if it is a node of yours, run here: scp -p ", secret_origin_, " ",
                        peer.ok() ? peer->host : "NODE", ":.config/muster/token");
  }

  const std::string secret_origin_;
  MonoTime silent_until_;
  int num_silent_ = 0;
};

absl::StatusOr<asio::ip::tcp::endpoint> Resolve(asio::io_context& loop, const std::string& name,
                                                int port) {
  asio::ip::tcp::resolver resolver(loop);
  asio::error_code error;
  const auto found = resolver.resolve(
      name, absl::StrCat(port),
      asio::ip::tcp::resolver::passive | asio::ip::tcp::resolver::numeric_service, error);
  if (error || found.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot listen on ", name, ": ", error.message()));
  }
  for (const auto& entry : found) {
    if (entry.endpoint().address().is_v4()) return entry.endpoint();
  }
  return found.begin()->endpoint();
}

RendezvousServerOptions WithTerm(RendezvousServerOptions options) {
  if (options.term == ServerTerm()) options.term = TermOfStart(absl::ToUnixMillis(absl::Now()));
  return options;
}

MonoTime YoungUntil(const RendezvousServerOptions& options) {
  if (!options.may_have_predecessor) return MonoTime();
  return MonoNow() + options.lease.duration + options.lease.margin;
}

}  // namespace

RendezvousServer::RendezvousServer(asio::io_context& loop, RendezvousServerOptions options,
                                   std::unique_ptr<RecordKeeper> keeper)
    : loop_(loop),
      mailbox_(loop),
      options_(WithTerm(std::move(options))),
      jobs_(std::make_shared<JobLoop>(loop,
                                      JobTableOptions{.term = options_.term,
                                                      .lease = options_.lease,
                                                      .only_run_id = options_.only_run_id,
                                                      .young_until = YoungUntil(options_),
                                                      .node_names = options_.node_names,
                                                      .keeps_records = keeper != nullptr,
                                                      .first_term = options_.first_term},
                                      options_.announce ? options_.announce : LogAnnouncement,
                                      std::move(keeper))),
      shutdown_timer_(loop) {}

std::unique_ptr<RendezvousServer> RendezvousServer::Create(asio::io_context& loop,
                                                           RendezvousServerOptions options,
                                                           std::unique_ptr<RecordKeeper> keeper,
                                                           std::vector<KeptJob> jobs) {
  std::unique_ptr<RendezvousServer> server(
      new RendezvousServer(loop, std::move(options), std::move(keeper)));
  if (!jobs.empty()) server->jobs_->Restore(std::move(jobs));
  return server;
}

RendezvousServer::~RendezvousServer() { mailbox_.Close(); }

int RendezvousServer::MaxDescriptor() const {
  return RaiseDescriptorLimit() - options_.reserved_descriptors;
}

absl::StatusOr<int> RendezvousServer::PrepareToListen() const {
  if (sessions_ != nullptr) return absl::FailedPreconditionError("the server listens already");
  if (options_.owners.empty()) return absl::FailedPreconditionError("the server has no secret");
  MUSTER_RETURN_IF_ERROR(CheckCanStartThreads());
  const int max_descriptor = MaxDescriptor();
  if (max_descriptor >= kMinConnections) return max_descriptor;
  const int reserved = options_.reserved_descriptors;
  return absl::ResourceExhaustedError(absl::StrCat(
      "cannot serve: this process may have ", max_descriptor + reserved, " open files, but needs ",
      reserved + kMinConnections, " at least; raise the limit (ulimit -n)"));
}

absl::Status RendezvousServer::StartSessions(std::unique_ptr<ConnectionListener> listener) {
  MUSTER_ASSIGN_OR_RETURN(sessions_,
                          AgentSessions::Start(loop_, *jobs_, std::move(listener),
                                               {.term = options_.term,
                                                .owners = options_.owners,
                                                .tls = options_.tls,
                                                .host_name = options_.host_name,
                                                .handshake_timeout = options_.handshake_timeout,
                                                .on_refused = RefusalLog(options_.secret_origin)}));
  return absl::OkStatus();
}

absl::StatusOr<int> RendezvousServer::Listen(const std::string& address, int port) {
  MUSTER_ASSIGN_OR_RETURN(const int max_descriptor, PrepareToListen());
  MUSTER_ASSIGN_OR_RETURN(const asio::ip::tcp::endpoint endpoint, Resolve(loop_, address, port));
  MUSTER_ASSIGN_OR_RETURN(auto listener,
                          ConnectionListener::Listen(loop_, endpoint, max_descriptor));
  MUSTER_RETURN_IF_ERROR(StartSessions(std::move(listener)));
  return sessions_->port();
}

absl::StatusOr<std::vector<Endpoint>> RendezvousServer::ListenOn(std::vector<UniqueFd> sockets) {
  MUSTER_CHECK(!sockets.empty());
  MUSTER_ASSIGN_OR_RETURN(const int max_descriptor, PrepareToListen());
  std::vector<Endpoint> addresses;
  for (UniqueFd& socket : sockets) {
    MUSTER_ASSIGN_OR_RETURN(auto listener,
                            ConnectionListener::Adopt(loop_, std::move(socket), max_descriptor));
    const asio::ip::tcp::endpoint address = listener->address();
    addresses.push_back({.host = address.address().to_string(), .port = address.port()});
    if (sessions_ != nullptr) {
      sessions_->ListenAlso(std::move(listener));
    } else {
      MUSTER_RETURN_IF_ERROR(StartSessions(std::move(listener)));
    }
  }
  return addresses;
}

absl::Status RendezvousServer::ListenAlso(const std::string& address) {
  if (sessions_ == nullptr) return absl::FailedPreconditionError("the server does not listen");
  MUSTER_ASSIGN_OR_RETURN(const asio::ip::tcp::endpoint endpoint,
                          Resolve(loop_, address, sessions_->port()));
  MUSTER_ASSIGN_OR_RETURN(auto listener,
                          ConnectionListener::Listen(loop_, endpoint, MaxDescriptor()));
  sessions_->ListenAlso(std::move(listener));
  return absl::OkStatus();
}

std::unique_ptr<RendezvousLink> RendezvousServer::MakeLocalLink(const std::string& run_id,
                                                                Incarnation incarnation) {
  jobs_->SetHost(incarnation);
  const std::string owner = options_.owners.empty() ? std::string() : options_.owners.front().owner;
  return std::make_unique<LocalLink>(loop_, jobs_, AgentKey{{owner, run_id}, incarnation});
}

void RendezvousServer::HostLeaving(const Departure& departure, const std::string& host_name) {
  jobs_->OnHostLeaving(departure, host_name);
}

void RendezvousServer::Shutdown(absl::Duration deadline, std::function<void()> on_closed) {
  on_closed_ = std::move(on_closed);
  if (sessions_ == nullptr) {
    mailbox_.Post([this] { FinishShutdownOnLoop(); });
    return;
  }
  shutdown_timer_.expires_after(absl::ToChronoNanoseconds(deadline));
  shutdown_timer_.async_wait([this, mailbox = mailbox_](const asio::error_code& error) {
    if (error) return;
    mailbox.Post([this] { FinishShutdownOnLoop(); });
  });
  sessions_->Drain([this] { FinishShutdownOnLoop(); });
}

void RendezvousServer::FinishShutdownOnLoop() {
  shutdown_timer_.cancel();
  sessions_.reset();
  // Moved out, since the callee may destroy this server.
  const auto on_closed = std::exchange(on_closed_, nullptr);
  if (on_closed) on_closed();
}

size_t RendezvousServer::num_streams() const {
  return sessions_ == nullptr ? 0 : sessions_->num_streams();
}

}  // namespace muster::rendezvous
