#include "rendezvous/link/parts_wire.h"

#include <limits>

#include "absl/strings/ascii.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/link/wire.h"

namespace muster::rendezvous {
namespace {

constexpr int kMaxPort = 65535;

std::string Tail(const std::string& text, size_t max_bytes) {
  return text.size() <= max_bytes ? text : text.substr(text.size() - max_bytes);
}

proto::ScaleUp EncodeScaleUp(ScaleUp scale_up) {
  switch (scale_up) {
    case ScaleUp::kNow:
      return proto::SCALE_UP_NOW;
    case ScaleUp::kCheckpoint:
      return proto::SCALE_UP_CHECKPOINT;
    case ScaleUp::kNever:
      return proto::SCALE_UP_NEVER;
  }
  return proto::SCALE_UP_UNSPECIFIED;
}

ScaleUp DecodeScaleUp(proto::ScaleUp scale_up, WireCheck& check) {
  switch (scale_up) {
    case proto::SCALE_UP_NOW:
      return ScaleUp::kNow;
    case proto::SCALE_UP_CHECKPOINT:
      return ScaleUp::kCheckpoint;
    case proto::SCALE_UP_NEVER:
      return ScaleUp::kNever;
    default:
      check.Require(false, "scale_up", "is a value that this version does not know");
      return ScaleUp::kNow;
  }
}

template <typename Ports>
std::vector<int> DecodePorts(const Ports& in, WireCheck& check) {
  std::vector<int> out;
  if (!check.List("worker_ports", in.size(), kMaxPortsPerNode)) return out;
  for (const int port : in) out.push_back(check.Range("worker_ports", port, 0, kMaxPort));
  return out;
}

template <typename Addresses>
std::vector<std::string> DecodeAddresses(const Addresses& in, WireCheck& check) {
  constexpr size_t kMaxAddressBytes = 64;
  std::vector<std::string> out;
  if (!check.List("other_addresses", in.size(), kMaxOtherAddresses)) return out;
  for (const std::string& address : in) {
    out.push_back(check.Text("other_addresses", address, kMaxAddressBytes));
  }
  return out;
}

proto::Cause EncodeCause(StopCause cause) {
  switch (cause) {
    case StopCause::kRestart:
      return proto::CAUSE_RESTART;
    case StopCause::kMembershipChange:
      return proto::CAUSE_MEMBERSHIP_CHANGE;
    case StopCause::kJobFailed:
      return proto::CAUSE_JOB_FAILED;
  }
  return proto::CAUSE_UNSPECIFIED;
}

StopCause DecodeCause(proto::Cause cause, WireCheck& check) {
  switch (cause) {
    case proto::CAUSE_RESTART:
      return StopCause::kRestart;
    case proto::CAUSE_MEMBERSHIP_CHANGE:
      return StopCause::kMembershipChange;
    case proto::CAUSE_JOB_FAILED:
      return StopCause::kJobFailed;
    default:
      check.Require(false, "cause", "is not known to this version of muster");
      return StopCause::kRestart;
  }
}

}  // namespace

int64_t Signed(WireCheck& check, absl::string_view field, int64_t value) {
  return check.Range<int64_t>(field, value, -1, std::numeric_limits<int64_t>::max());
}

std::string Text(WireCheck& check, absl::string_view field, const std::string& value) {
  return check.Text(field, value, kMaxTextBytes);
}

std::string Printable(WireCheck& check, absl::string_view field, const std::string& value) {
  std::string text = Text(check, field, value);
  for (char& c : text) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = '?';
  }
  return text;
}

void Encode(const RendezvousSettings& in, proto::Settings* out) {
  out->set_min_nodes(in.min_nodes);
  out->set_max_nodes(in.max_nodes);
  out->set_max_restarts(in.max_restarts);
  out->set_is_static(in.is_static);
  out->set_join_timeout_us(EncodeDuration(in.join_timeout));
  out->set_last_call_timeout_us(EncodeDuration(in.last_call_timeout));
  out->set_close_timeout_us(EncodeDuration(in.close_timeout));
  out->set_shutdown_timeout_us(EncodeDuration(in.shutdown_timeout));
  out->set_orphan_timeout_us(EncodeDuration(in.orphan_timeout));
  out->set_scale_up(EncodeScaleUp(in.scale_up));
}

RendezvousSettings Decode(const proto::Settings& in, WireCheck& check) {
  RendezvousSettings out;
  constexpr int kMaxInt = std::numeric_limits<int>::max();
  out.min_nodes = check.Range("min_nodes", in.min_nodes(), 1, kMaxInt);
  out.max_nodes = check.Range("max_nodes", in.max_nodes(), out.min_nodes, kMaxInt);
  out.max_restarts = check.Count("max_restarts", in.max_restarts());
  out.is_static = in.is_static();
  out.join_timeout = check.Duration("join_timeout", in.join_timeout_us());
  out.last_call_timeout = check.Duration("last_call_timeout", in.last_call_timeout_us());
  out.close_timeout = check.Duration("close_timeout", in.close_timeout_us());
  out.shutdown_timeout = check.Duration("shutdown_timeout", in.shutdown_timeout_us());
  out.orphan_timeout = check.Duration("orphan_timeout", in.orphan_timeout_us());
  out.scale_up = DecodeScaleUp(in.scale_up(), check);
  return out;
}

void Encode(const NodeDescription& in, proto::Node* out) {
  out->set_name(in.name);
  out->set_address(in.address);
  out->set_local_world_size(in.local_world_size);
  out->set_role(in.role);
  if (in.node_rank.has_value()) out->set_node_rank(*in.node_rank);
  out->set_store_port(in.store_port);
  out->mutable_worker_ports()->Assign(in.worker_ports.begin(), in.worker_ports.end());
  for (const std::string& address : in.other_addresses) out->add_other_addresses(address);
}

NodeDescription Decode(const proto::Node& in, WireCheck& check) {
  NodeDescription out;
  out.name = Printable(check, "node.name", in.name());
  out.address = Printable(check, "node.address", in.address());
  out.local_world_size =
      check.Range("node.local_world_size", in.local_world_size(), 0, kMaxPortsPerNode);
  out.role = Printable(check, "node.role", in.role());
  if (in.has_node_rank()) out.node_rank = check.Count("node.node_rank", in.node_rank());
  out.store_port = check.Range("node.store_port", in.store_port(), 0, kMaxPort);
  out.worker_ports = DecodePorts(in.worker_ports(), check);
  out.other_addresses = DecodeAddresses(in.other_addresses(), check);
  return out;
}

void Encode(const WorkerFailure& in, proto::Failure* out) {
  out->set_rank(in.rank.value());
  out->set_local_rank(in.local_rank.value());
  out->set_node_rank(in.node_rank.value());
  out->set_node_name(in.node_name);
  out->set_pid(in.pid);
  out->set_exit_code(in.exit_code);
  out->set_signal(in.signal);
  out->set_probably_out_of_memory(in.probably_out_of_memory);
  out->set_start_failed(in.start_failed);
  out->set_message(in.message.substr(0, kFailureMessageBytesSent));
  out->set_ended_by(in.ended_by.substr(0, kFailureMessageBytesSent));
  out->set_error_file(in.error_file);
  out->set_last_output(Tail(in.last_output, kFailureOutputBytesSent));
  out->set_unix_millis(in.unix_millis);
  out->set_age_us(EncodeDuration(in.age));
}

WorkerFailure Decode(const proto::Failure& in, WireCheck& check) {
  WorkerFailure out;
  out.rank = Rank(check.Count("failure.rank", in.rank()));
  out.local_rank = LocalRank(check.Count("failure.local_rank", in.local_rank()));
  out.node_rank = NodeRank(check.Count("failure.node_rank", in.node_rank()));
  out.node_name = Printable(check, "failure.node_name", in.node_name());
  out.pid = check.Count("failure.pid", in.pid());
  out.exit_code = in.exit_code();
  out.signal = check.Range("failure.signal", in.signal(), 0, kMaxSignal);
  out.probably_out_of_memory = in.probably_out_of_memory();
  out.start_failed = in.start_failed();
  out.message = Text(check, "failure.message", in.message());
  out.ended_by = Text(check, "failure.ended_by", in.ended_by());
  out.error_file = Text(check, "failure.error_file", in.error_file());
  out.last_output = Text(check, "failure.last_output", in.last_output());
  out.unix_millis = in.unix_millis();
  out.age = check.Duration("failure.age", in.age_us());
  return out;
}

void Encode(const Peer& in, proto::Peer* out) {
  out->set_name(in.name);
  out->set_address(in.address);
  out->set_local_world_size(in.local_world_size);
  out->mutable_worker_ports()->Assign(in.worker_ports.begin(), in.worker_ports.end());
  for (const std::string& address : in.other_addresses) out->add_other_addresses(address);
}

Peer Decode(const proto::Peer& in, WireCheck& check) {
  return {.name = Text(check, "peer.name", in.name()),
          .address = Text(check, "peer.address", in.address()),
          .local_world_size =
              check.Range("peer.local_world_size", in.local_world_size(), 0, kMaxPortsPerNode),
          .worker_ports = DecodePorts(in.worker_ports(), check),
          .other_addresses = DecodeAddresses(in.other_addresses(), check)};
}

const std::string& EncodedPeers::Of(const Peers& peers) {
  if (peers.IsSameAs(peers_)) return bytes_;
  proto::PeerList list;
  for (const Peer& peer : peers) Encode(peer, list.add_peers());
  bytes_ = list.SerializeAsString();
  peers_ = peers;
  return bytes_;
}

void Encode(const Assignment& in, EncodedPeers& peers, proto::Assignment* out) {
  out->set_round(in.round.value());
  out->set_instance(in.instance.value());
  out->set_node_rank(in.node_rank.value());
  out->set_num_nodes(in.num_nodes);
  out->set_first_rank(in.first_rank.value());
  out->set_local_world_size(in.local_world_size);
  out->set_world_size(in.world_size);
  out->set_role_first_rank(in.role_first_rank);
  out->set_role_world_size(in.role_world_size);
  out->set_restart_count(in.restart_count);
  out->set_restarts_used(in.restarts_used);
  out->set_master_address(in.master_address);
  out->set_master_port(in.master_port);
  out->set_peer_list(peers.Of(in.peers));
  out->set_reason(in.reason);
}

Assignment Decode(const proto::Assignment& in, WireCheck& check) {
  Assignment out;
  out.round = Round(check.Count("round", in.round()));
  out.instance = Instance(check.Count("instance", in.instance()));
  out.num_nodes = check.Count("num_nodes", in.num_nodes());
  out.node_rank = NodeRank(check.Count("node_rank", in.node_rank()));
  out.first_rank = Rank(check.Count("first_rank", in.first_rank()));
  out.local_world_size =
      check.Range("local_world_size", in.local_world_size(), 0, kMaxPortsPerNode);
  out.world_size = check.Count("world_size", in.world_size());
  out.role_first_rank = check.Count("role_first_rank", in.role_first_rank());
  out.role_world_size = check.Count("role_world_size", in.role_world_size());
  out.restart_count = check.Count("restart_count", in.restart_count());
  out.restarts_used = check.Count("restarts_used", in.restarts_used());
  out.master_address = Text(check, "master_address", in.master_address());
  out.master_port = check.Range("master_port", in.master_port(), 0, kMaxPort);
  proto::PeerList list;
  check.Require(list.ParseFromString(in.peer_list()), "peer_list", "is not a list of peers");
  if (check.List("peers", list.peers_size(), kMaxPeersInAssignment) && list.peers_size() > 0) {
    std::vector<Peer> peers;
    for (const proto::Peer& peer : list.peers()) peers.push_back(Decode(peer, check));
    out.peers = std::move(peers);
  }
  out.reason = Text(check, "reason", in.reason());
  return out;
}

void Encode(const StopRound& in, proto::Directive::StopRound* out) {
  out->set_round(in.round.value());
  out->set_cause(EncodeCause(in.cause));
  out->set_reason(in.reason);
  out->set_peer_lost(in.peer_lost);
  out->set_exit_code(in.exit_code);
}

StopRound Decode(const proto::Directive::StopRound& in, WireCheck& check) {
  StopRound out;
  out.round = Round(Signed(check, "stop.round", in.round()));
  out.cause = DecodeCause(in.cause(), check);
  out.reason = Text(check, "stop.reason", in.reason());
  out.peer_lost = in.peer_lost();
  out.exit_code = in.exit_code();
  return out;
}

void Encode(const JobOutcome& in, proto::Directive::EndJob* out) {
  out->set_exit_code(in.exit_code);
  out->set_reason(in.reason);
  if (in.root_cause.has_value()) Encode(*in.root_cause, out->mutable_root_cause());
  for (const WorkerFailure& failure : in.failures) {
    if (out->failures_size() == kFailuresSent) return;
    Encode(failure, out->add_failures());
  }
}

JobOutcome Decode(const proto::Directive::EndJob& in, WireCheck& check) {
  JobOutcome out;
  out.exit_code = in.exit_code();
  out.reason = Text(check, "end.reason", in.reason());
  if (in.has_root_cause()) out.root_cause = Decode(in.root_cause(), check);
  if (!check.List("failures", in.failures_size(), kMaxFailures)) return out;
  for (const proto::Failure& failure : in.failures())
    out.failures.push_back(Decode(failure, check));
  return out;
}

}  // namespace muster::rendezvous
