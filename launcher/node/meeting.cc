#include "launcher/node/meeting.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "agent/guardian/death_notice_wire.h"
#include "agent/machine/port_reservation.h"
#include "launcher/node/host_listening.h"
#include "proto/base/endpoint.h"
#include "proto/base/status_macros.h"
#include "proto/io/log.h"
#include "rendezvous/client/grpc_link.h"

namespace muster::launcher {
namespace {

// Pipes, files, ports and a pidfd.
constexpr int kDescriptorsPerWorker = 16;
constexpr absl::Duration kFarewell = absl::Seconds(5);  // for the other nodes to learn the end
// How long nodes that a scheduler starts later than the others are told, after the end, that the
// job is over.
constexpr absl::Duration kLateNodes = absl::Seconds(30);

}  // namespace

absl::StatusOr<UserSecret> FindSecret(const JobSpec& spec, const EnvironmentMap& environment) {
  if (!spec.authentication) return PublicSecret();
  return LoadUserSecret(SecretSourcesIn(environment));
}

absl::StatusOr<std::unique_ptr<rendezvous::RendezvousLink>> Meeting::MakeLink(
    NodeSetup& setup, const EnvironmentMap& environment, agent::GuardianHandle& guardian) {
  const JobSpec& spec = setup.agent.spec;
  rendezvous::RendezvousServerOptions options = ServerOptions(setup);
  if (!setup.endpoint) {
    server_ = rendezvous::RendezvousServer::Create(loop_, std::move(options));
    return MakeLocalLink(setup);
  }
  MUSTER_ASSIGN_OR_RETURN(UserSecret secret, FindSecret(spec, environment));
  options.tls = spec.tls && spec.authentication ? TlsMode::kOn : TlsMode::kOff;
  options.owners = {OwnerKey{.secret = secret.secret}};
  if (spec.authentication) options.secret_origin = secret.origin;
  if (setup.may_host) {
    MUSTER_ASSIGN_OR_RETURN(const bool hosts, TryToHost(options, setup));
    if (hosts) return MakeLocalLink(setup);
  }
  if (!spec.authentication) {
    log::Write(
        log::Level::kInfo, "authentication_off",
        absl::StrCat("meeting the other nodes at ",
                     ToString(Endpoint{.host = setup.endpoint->host, .port = setup.endpoint->port}),
                     kAuthenticationOff));
  }
  return MakeGrpcLink(setup, std::move(secret), options.tls, guardian);
}

rendezvous::RendezvousServerOptions Meeting::ServerOptions(const NodeSetup& setup) {
  const JobSpec& spec = setup.agent.spec;
  rendezvous::RendezvousServerOptions options;
  options.lease = spec.lease;
  options.only_run_id = spec.run_id;
  options.reserved_descriptors += kDescriptorsPerWorker * setup.agent.node.local_world_size;
  options.host_name = setup.agent.node.name;
  options.node_names = placement_.expected_nodes;
  options.announce = [this, tell = setup.endpoint.has_value()](const rendezvous::JobKey&,
                                                               const rendezvous::Announce& note) {
    if (note.event == "node_seen") ++nodes_seen_;
    // What concerns this node its agent says; the host adds who came and how the round began.
    const bool is_news = note.event == "node_seen" || note.event == "round_completed";
    log::Write(tell && is_news ? log::Level::kInfo : log::Level::kDebug, note.event, note.reason,
               {{"round", ToString(note.round)}});
  };
  return options;
}

absl::StatusOr<bool> Meeting::TryToHost(const rendezvous::RendezvousServerOptions& options,
                                        NodeSetup& setup) {
  server_ = rendezvous::RendezvousServer::Create(loop_, options);
  const JobSpec& spec = setup.agent.spec;
  const ResolvedEndpoint& endpoint = *setup.endpoint;
  const absl::StatusOr<int> port =
      ListenAsHost(endpoint, IncarnationOf(life_key_).value(), *server_);
  if (port.ok()) {
    host_name_ = setup.agent.node.name;
    // A job of one node ends with it anyway.
    const char* const warning =
        spec.is_single_node()
            ? ""
            : "; the job ends if this node is lost (musterd elsewhere would outlive it)";
    log::Write(log::Level::kInfo, "hosting",
               absl::StrCat("hosting the rendezvous at ",
                            ToString(Endpoint{.host = endpoint.host, .port = *port}),
                            spec.authentication ? "" : kAuthenticationOff, warning));
    ListenForOtherMachines(spec, endpoint, setup.agent.node.other_addresses, *server_);
    return true;
  }
  server_.reset();
  if (port.status().code() != absl::StatusCode::kAlreadyExists) return port.status();
  const std::string holder = agent::DescribePortHolder(endpoint.port);
  if (!holder.empty()) absl::StrAppend(&setup.agent.server, " (", holder, " has the port)");
  return false;
}

std::unique_ptr<rendezvous::RendezvousLink> Meeting::MakeLocalLink(NodeSetup& setup) {
  setup.agent.hosts_server = true;
  return server_->MakeLocalLink(setup.agent.spec.run_id, IncarnationOf(life_key_));
}

std::unique_ptr<rendezvous::RendezvousLink> Meeting::MakeGrpcLink(const NodeSetup& setup,
                                                                  UserSecret secret, TlsMode tls,
                                                                  agent::GuardianHandle& guardian) {
  rendezvous::GrpcLinkOptions link;
  // A name is resolved again at each attempt; what it means on this machine is decided.
  link.host = setup.endpoint->is_local ? setup.endpoint->address : setup.endpoint->host;
  link.port = setup.endpoint->port;
  link.secret = std::move(secret);
  link.tls = tls;
  link.run_id = setup.agent.spec.run_id;
  link.incarnation = IncarnationOf(life_key_);
  link.node_name = setup.agent.node.name;
  link.jitter_seed = link.incarnation.value();
  guardian.death_notice =
      agent::Encode(agent::DeathNotice{.host = link.host,
                                       .port = link.port,
                                       .secret = link.secret.secret,
                                       .tls = link.tls == TlsMode::kOn,
                                       .run_id = link.run_id,
                                       .node_name = link.node_name,
                                       .life_key = {life_key_.begin(), life_key_.end()}});
  return std::make_unique<rendezvous::GrpcLink>(loop_, std::move(link));
}

void Meeting::TellLeaving(int signal, const std::string& reason) {
  const std::string host = std::exchange(host_name_, "");
  if (host.empty()) return;
  server_->HostLeaving(Departure{.signal = signal, .ends_job = true, .reason = reason}, host);
}

void Meeting::End(bool awaits_late_nodes, std::function<void()> then) {
  if (server_ == nullptr) return then();
  const int num_expected = static_cast<int>(placement_.expected_nodes.size());
  const int late = num_expected - nodes_seen_;
  if (late <= 0 || !awaits_late_nodes) return EndServer(std::move(then));
  log::Write(log::Level::kInfo, "late_nodes",
             absl::StrCat("over; ", late, " of the ", num_expected,
                          " nodes have not joined; they are told that the job is over for ",
                          absl::FormatDuration(kLateNodes)));
  late_nodes_.expires_after(absl::ToChronoNanoseconds(kLateNodes));
  late_nodes_.async_wait([this, then = std::move(then)](const asio::error_code&) mutable {
    EndServer(std::move(then));
  });
}

void Meeting::EndServer(std::function<void()> then) {
  server_->Shutdown(kFarewell, std::move(then));
}

}  // namespace muster::launcher
