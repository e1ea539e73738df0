#include "rendezvous/link/parts_wire.h"

#include <utility>
#include <vector>

#include "proto/base/exit_codes.h"
#include "proto/rendezvous.pb.h"

namespace muster::rendezvous {
namespace {

constexpr NumberBounds kPorts{0, 65535};
constexpr NumberBounds kLocalWorldSizes{0, kMaxPortsPerNode};
constexpr ListBounds kWorkerPorts{kMaxPortsPerNode};
constexpr ListBounds kOtherAddresses{kMaxOtherAddresses};
constexpr TextBounds kAddress{64};
constexpr TextBounds kMessage{.taken = kMaxTextBytes, .sent = kFailureMessageBytesSent};
constexpr TextBounds kOutput{
    .taken = kMaxTextBytes, .sent = kFailureOutputBytesSent, .sends_end = true};

constexpr std::pair<ScaleUp, proto::ScaleUp> kScaleUps[] = {
    {ScaleUp::kNow, proto::SCALE_UP_NOW},
    {ScaleUp::kCheckpoint, proto::SCALE_UP_CHECKPOINT},
    {ScaleUp::kNever, proto::SCALE_UP_NEVER},
};
constexpr std::pair<StopCause, proto::Cause> kCauses[] = {
    {StopCause::kRestart, proto::CAUSE_RESTART},
    {StopCause::kMembershipChange, proto::CAUSE_MEMBERSHIP_CHANGE},
    {StopCause::kJobFailed, proto::CAUSE_JOB_FAILED},
};

// What a node and a peer have in common.
template <typename P, typename Value>
void PortFields(Wire<P> wire, Value& value) {
  wire.Numbers("worker_ports", kWorkerPorts, kPorts, &P::worker_ports, &P::mutable_worker_ports,
               value.worker_ports);
  wire.Texts("other_addresses", kOtherAddresses, kAddress, &P::other_addresses,
             &P::mutable_other_addresses, value.other_addresses);
}

void TakePeers(const std::string& bytes, WireCheck& check, Peers& out) {
  using P = proto::PeerList;
  P list;
  check.Require(list.ParseFromString(bytes), "peer_list", "is not a list of peers");
  std::vector<Peer> peers;
  Wire<P>(list, check)
      .List("peers", {kMaxPeersInAssignment}, &P::peers, &P::mutable_peers, peers, PeerFields);
  if (!peers.empty()) out = std::move(peers);
}

}  // namespace

void SettingsFields(Wire<proto::Settings> wire, RendezvousSettings& settings) {
  using P = proto::Settings;
  wire.Number("min_nodes", {1}, &P::min_nodes, &P::set_min_nodes, settings.min_nodes);
  wire.Number("max_nodes", {settings.min_nodes}, &P::max_nodes, &P::set_max_nodes,
              settings.max_nodes);
  wire.Number("max_restarts", kCount, &P::max_restarts, &P::set_max_restarts,
              settings.max_restarts);
  wire.Plain(&P::is_static, &P::set_is_static, settings.is_static);
  wire.Duration("join_timeout", &P::join_timeout_us, &P::set_join_timeout_us,
                settings.join_timeout);
  wire.Duration("last_call_timeout", &P::last_call_timeout_us, &P::set_last_call_timeout_us,
                settings.last_call_timeout);
  wire.Duration("close_timeout", &P::close_timeout_us, &P::set_close_timeout_us,
                settings.close_timeout);
  wire.Duration("shutdown_timeout", &P::shutdown_timeout_us, &P::set_shutdown_timeout_us,
                settings.shutdown_timeout);
  wire.Duration("orphan_timeout", &P::orphan_timeout_us, &P::set_orphan_timeout_us,
                settings.orphan_timeout);
  wire.Choice("scale_up", kScaleUps, &P::scale_up, &P::set_scale_up, settings.scale_up,
              "is a value that this version does not know");
  wire.Number("left_exit_code", {0, kMaxExitCode}, &P::left_exit_code, &P::set_left_exit_code,
              settings.left_exit_code);
}

void NodeFields(Wire<proto::Node> wire, NodeDescription& node) {
  using P = proto::Node;
  wire.Text("node.name", kPrintable, &P::name, &P::mutable_name, node.name);
  wire.Text("node.address", kPrintable, &P::address, &P::mutable_address, node.address);
  wire.Number("node.local_world_size", kLocalWorldSizes, &P::local_world_size,
              &P::set_local_world_size, node.local_world_size);
  wire.Text("node.role", kPrintable, &P::role, &P::mutable_role, node.role);
  if (wire.Has(&P::has_node_rank, node.node_rank)) {
    wire.Number("node.node_rank", kCount, &P::node_rank, &P::set_node_rank, *node.node_rank);
  }
  wire.Number("node.store_port", kPorts, &P::store_port, &P::set_store_port, node.store_port);
  PortFields(wire, node);
}

void FailureFields(Wire<proto::Failure> wire, WorkerFailure& failure) {
  using P = proto::Failure;
  wire.Number("failure.rank", kCount, &P::rank, &P::set_rank, failure.rank);
  wire.Number("failure.local_rank", kCount, &P::local_rank, &P::set_local_rank, failure.local_rank);
  wire.Number("failure.node_rank", kCount, &P::node_rank, &P::set_node_rank, failure.node_rank);
  wire.Text("failure.node_name", kPrintable, &P::node_name, &P::mutable_node_name,
            failure.node_name);
  wire.Number("failure.pid", kCount, &P::pid, &P::set_pid, failure.pid);
  wire.Plain(&P::exit_code, &P::set_exit_code, failure.exit_code);
  wire.Number("failure.signal", kSignals, &P::signal, &P::set_signal, failure.signal);
  wire.Plain(&P::probably_out_of_memory, &P::set_probably_out_of_memory,
             failure.probably_out_of_memory);
  wire.Plain(&P::start_failed, &P::set_start_failed, failure.start_failed);
  wire.Text("failure.message", kMessage, &P::message, &P::mutable_message, failure.message);
  wire.Text("failure.ended_by", kMessage, &P::ended_by, &P::mutable_ended_by, failure.ended_by);
  wire.Text("failure.error_file", kText, &P::error_file, &P::mutable_error_file,
            failure.error_file);
  wire.Text("failure.last_output", kOutput, &P::last_output, &P::mutable_last_output,
            failure.last_output);
  wire.Plain(&P::unix_millis, &P::set_unix_millis, failure.unix_millis);
  wire.Duration("failure.age", &P::age_us, &P::set_age_us, failure.age);
}

void PeerFields(Wire<proto::Peer> wire, Peer& peer) {
  using P = proto::Peer;
  wire.Text("peer.name", kText, &P::name, &P::mutable_name, peer.name);
  wire.Text("peer.address", kText, &P::address, &P::mutable_address, peer.address);
  wire.Number("peer.local_world_size", kLocalWorldSizes, &P::local_world_size,
              &P::set_local_world_size, peer.local_world_size);
  PortFields(wire, peer);
}

const std::string& EncodedParts::Of(const Peers& peers) {
  if (peers.IsSameAs(peers_)) return peers_bytes_;
  proto::PeerList list;
  for (const Peer& peer : peers) EncodeFields(peer, list.add_peers(), PeerFields);
  peers_bytes_ = list.SerializeAsString();
  peers_ = peers;
  return peers_bytes_;
}

const std::string& EncodedParts::Of(const JobOutcome& outcome) {
  if (!outcome_bytes_.empty() && outcome == outcome_) return outcome_bytes_;
  proto::Directive::EndJob end;
  EncodeFields(outcome, &end, OutcomeFields);
  outcome_bytes_ = end.SerializeAsString();
  outcome_ = outcome;
  return outcome_bytes_;
}

void AssignmentFields(Wire<proto::Assignment> wire, Assignment& assignment) {
  using P = proto::Assignment;
  wire.Number("round", kCount, &P::round, &P::set_round, assignment.round);
  wire.Number("instance", kCount, &P::instance, &P::set_instance, assignment.instance);
  wire.Number("num_nodes", kCount, &P::num_nodes, &P::set_num_nodes, assignment.num_nodes);
  wire.Number("node_rank", kCount, &P::node_rank, &P::set_node_rank, assignment.node_rank);
  wire.Number("first_rank", kCount, &P::first_rank, &P::set_first_rank, assignment.first_rank);
  wire.Number("local_world_size", kLocalWorldSizes, &P::local_world_size, &P::set_local_world_size,
              assignment.local_world_size);
  wire.Number("world_size", kCount, &P::world_size, &P::set_world_size, assignment.world_size);
  wire.Number("role_first_rank", kCount, &P::role_first_rank, &P::set_role_first_rank,
              assignment.role_first_rank);
  wire.Number("role_world_size", kCount, &P::role_world_size, &P::set_role_world_size,
              assignment.role_world_size);
  wire.Number("restart_count", kAttempts, &P::restart_count, &P::set_restart_count,
              assignment.restart_count);
  wire.Number("restarts_used", kAttempts, &P::restarts_used, &P::set_restarts_used,
              assignment.restarts_used);
  wire.Text("master_address", kText, &P::master_address, &P::mutable_master_address,
            assignment.master_address);
  wire.Number("master_port", kPorts, &P::master_port, &P::set_master_port, assignment.master_port);
  if (wire.decodes()) TakePeers(wire.in().peer_list(), wire.check(), assignment.peers);
  wire.Text("reason", kText, &P::reason, &P::mutable_reason, assignment.reason);
}

void StopRoundFields(Wire<proto::Directive::StopRound> wire, StopRound& stop) {
  using P = proto::Directive::StopRound;
  wire.Number("stop.round", kRounds, &P::round, &P::set_round, stop.round);
  wire.Choice("cause", kCauses, &P::cause, &P::set_cause, stop.cause);
  wire.Text("stop.reason", kText, &P::reason, &P::mutable_reason, stop.reason);
  wire.Plain(&P::peer_lost, &P::set_peer_lost, stop.peer_lost);
  wire.Plain(&P::exit_code, &P::set_exit_code, stop.exit_code);
}

void OutcomeFields(Wire<proto::Directive::EndJob> wire, JobOutcome& outcome) {
  using P = proto::Directive::EndJob;
  wire.Plain(&P::exit_code, &P::set_exit_code, outcome.exit_code);
  wire.Text("end.reason", kText, &P::reason, &P::mutable_reason, outcome.reason);
  wire.Inner(&P::has_root_cause, &P::root_cause, &P::mutable_root_cause, outcome.root_cause,
             FailureFields);
  std::vector<WorkerFailure> failures = outcome.failures.list();
  wire.List("failures", {kMaxFailures, kFailuresSent}, &P::failures, &P::mutable_failures, failures,
            FailureFields);
  if (wire.decodes()) outcome.failures = std::move(failures);
}

}  // namespace muster::rendezvous
