#include "rendezvous/server/rendezvous_server.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/base/mono_time.h"
#include "proto/io/log.h"
#include "rendezvous/server/agent_door.h"
#include "rendezvous/server/local_link.h"

namespace muster::rendezvous {
namespace {

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

MonoTime YoungUntil(const RendezvousServerOptions& options) {
  if (!options.may_have_predecessor) return MonoTime();
  return MonoNow() + options.lease.duration + options.lease.margin;
}

}  // namespace

RendezvousServer::RendezvousServer(asio::io_context& loop, const RendezvousServerOptions& options,
                                   std::unique_ptr<RecordKeeper> keeper)
    : loop_(loop),
      local_owner_(options.owners.empty() ? "" : options.owners.front().owner),
      jobs_(std::make_shared<JobLoop>(loop,
                                      JobTableOptions{.term = options.term,
                                                      .lease = options.lease,
                                                      .only_run_id = options.only_run_id,
                                                      .young_until = YoungUntil(options),
                                                      .node_names = options.node_names,
                                                      .keeps_records = keeper != nullptr,
                                                      .first_term = options.first_term},
                                      options.announce ? options.announce : LogAnnouncement,
                                      std::move(keeper))),
      door_(std::make_unique<AgentDoor>(
          loop, *jobs_,
          SessionOptions{.term = options.term,
                         .owners = options.owners,
                         .tls = options.tls,
                         .host_name = options.host_name,
                         .handshake_timeout = options.handshake_timeout,
                         .on_refused = RefusalLog(options.secret_origin)},
          options.reserved_descriptors)) {}

std::unique_ptr<RendezvousServer> RendezvousServer::Create(asio::io_context& loop,
                                                           RendezvousServerOptions options,
                                                           std::unique_ptr<RecordKeeper> keeper,
                                                           std::vector<KeptJob> jobs) {
  if (options.term == ServerTerm()) options.term = TermOfStart(absl::ToUnixMillis(absl::Now()));
  std::unique_ptr<RendezvousServer> server(new RendezvousServer(loop, options, std::move(keeper)));
  if (!jobs.empty()) server->jobs_->Restore(std::move(jobs));
  return server;
}

RendezvousServer::~RendezvousServer() = default;

absl::StatusOr<int> RendezvousServer::Listen(const std::string& address, int port) {
  return door_->Listen(address, port);
}

absl::StatusOr<std::vector<Endpoint>> RendezvousServer::ListenOn(std::vector<UniqueFd> sockets) {
  return door_->ListenOn(std::move(sockets));
}

absl::Status RendezvousServer::ListenAlso(const std::string& address) {
  return door_->ListenAlso(address);
}

void RendezvousServer::Shutdown(absl::Duration deadline, std::function<void()> on_closed) {
  door_->Shutdown(deadline, std::move(on_closed));
}

size_t RendezvousServer::num_streams() const { return door_->num_streams(); }

std::unique_ptr<RendezvousLink> RendezvousServer::MakeLocalLink(const std::string& run_id,
                                                                Incarnation incarnation) {
  jobs_->SetHost(incarnation);
  return std::make_unique<LocalLink>(loop_, jobs_, AgentKey{{local_owner_, run_id}, incarnation});
}

void RendezvousServer::HostLeaving(const Departure& departure, const std::string& host_name) {
  jobs_->OnHostLeaving(departure, host_name);
}

}  // namespace muster::rendezvous
