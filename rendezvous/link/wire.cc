#include "rendezvous/link/wire.h"

#include <limits>

#include "absl/strings/ascii.h"
#include "proto/io/wire_check.h"
#include "proto/rendezvous.pb.h"

namespace muster::rendezvous {
namespace {

constexpr int kMaxPort = 65535;
constexpr int kMaxSignal = 128;

std::string Tail(const std::string& text, size_t max_bytes) {
  return text.size() <= max_bytes ? text : text.substr(text.size() - max_bytes);
}

int64_t Signed(WireCheck& check, absl::string_view field, int64_t value) {
  return check.Range<int64_t>(field, value, -1, std::numeric_limits<int64_t>::max());
}

std::string Text(WireCheck& check, absl::string_view field, const std::string& value) {
  return check.Text(field, value, kMaxTextBytes);
}

// Names and reasons of other nodes stand in lines of our log and on consoles: what could end a line
// or move a cursor there is shown as `?`.
std::string Printable(WireCheck& check, absl::string_view field, const std::string& value) {
  std::string text = Text(check, field, value);
  for (char& c : text) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = '?';
  }
  return text;
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

template <typename Ports>
std::vector<int> DecodePorts(const Ports& in, WireCheck& check) {
  std::vector<int> out;
  if (!check.List("worker_ports", in.size(), kMaxPortsPerNode)) return out;
  for (const int port : in) out.push_back(check.Range("worker_ports", port, 0, kMaxPort));
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
  out.error_file = Text(check, "failure.error_file", in.error_file());
  out.last_output = Text(check, "failure.last_output", in.last_output());
  out.unix_millis = in.unix_millis();
  out.age = check.Duration("failure.age", in.age_us());
  return out;
}

template <typename Failures>
void EncodeFailures(const std::vector<WorkerFailure>& in, Failures* out) {
  for (const WorkerFailure& failure : in) {
    if (out->size() == kFailuresSent) return;
    Encode(failure, out->Add());
  }
}

template <typename Failures>
std::vector<WorkerFailure> DecodeFailures(const Failures& in, WireCheck& check) {
  std::vector<WorkerFailure> out;
  if (!check.List("failures", in.size(), kMaxFailures)) return out;
  for (const proto::Failure& failure : in) out.push_back(Decode(failure, check));
  return out;
}

proto::Phase EncodePhase(AgentPhase phase) {
  switch (phase) {
    case AgentPhase::kJoining:
      return proto::PHASE_JOINING;
    case AgentPhase::kRunning:
      return proto::PHASE_RUNNING;
    case AgentPhase::kFailed:
      return proto::PHASE_FAILED;
    case AgentPhase::kSucceeded:
      return proto::PHASE_SUCCEEDED;
    case AgentPhase::kStopped:
      return proto::PHASE_STOPPED;
    case AgentPhase::kLeaving:
      return proto::PHASE_LEAVING;
  }
  return proto::PHASE_UNSPECIFIED;
}

AgentPhase DecodePhase(proto::Phase phase, WireCheck& check) {
  switch (phase) {
    case proto::PHASE_JOINING:
      return AgentPhase::kJoining;
    case proto::PHASE_RUNNING:
      return AgentPhase::kRunning;
    case proto::PHASE_FAILED:
      return AgentPhase::kFailed;
    case proto::PHASE_SUCCEEDED:
      return AgentPhase::kSucceeded;
    case proto::PHASE_STOPPED:
      return AgentPhase::kStopped;
    case proto::PHASE_LEAVING:
      return AgentPhase::kLeaving;
    default:
      check.Require(false, "phase", "is not known to this version of muster");
      return AgentPhase::kJoining;
  }
}

void Encode(const Assignment& in, proto::Assignment* out) {
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
  for (const Peer& peer : in.peers) {
    proto::Peer* to = out->add_peers();
    to->set_name(peer.name);
    to->set_address(peer.address);
    to->set_local_world_size(peer.local_world_size);
    to->mutable_worker_ports()->Assign(peer.worker_ports.begin(), peer.worker_ports.end());
  }
  out->set_reason(in.reason);
}

std::vector<Peer> DecodePeers(const proto::Assignment& in, WireCheck& check) {
  std::vector<Peer> out;
  if (!check.List("peers", in.peers_size(), kMaxPeersInAssignment)) return out;
  for (const proto::Peer& peer : in.peers()) {
    out.push_back({.name = Text(check, "peer.name", peer.name()),
                   .address = Text(check, "peer.address", peer.address()),
                   .local_world_size = check.Range("peer.local_world_size", peer.local_world_size(),
                                                   0, kMaxPortsPerNode),
                   .worker_ports = DecodePorts(peer.worker_ports(), check)});
  }
  return out;
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
  out.peers = DecodePeers(in, check);
  out.reason = Text(check, "reason", in.reason());
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

struct BodyEncoder {
  proto::Directive* out;

  void operator()(const Wait& body) const { out->mutable_wait()->set_text(body.text); }
  void operator()(const RunRound& body) const { Encode(body.assignment, out->mutable_run_round()); }
  void operator()(const StopRound& body) const {
    proto::Directive::StopRound* to = out->mutable_stop_round();
    to->set_round(body.round.value());
    to->set_cause(EncodeCause(body.cause));
    to->set_reason(body.reason);
    to->set_peer_lost(body.peer_lost);
  }
  void operator()(const EndJob& body) const {
    proto::Directive::EndJob* to = out->mutable_end_job();
    to->set_exit_code(body.outcome.exit_code);
    to->set_reason(body.outcome.reason);
    if (body.outcome.root_cause.has_value()) {
      Encode(*body.outcome.root_cause, to->mutable_root_cause());
    }
    EncodeFailures(body.outcome.failures, to->mutable_failures());
  }
  void operator()(const Refuse& body) const {
    out->mutable_refuse()->set_code(static_cast<int>(body.status.code()));
    out->mutable_refuse()->set_message(std::string(body.status.message()));
  }
};

Wait Decode(const proto::Directive::Wait& in, WireCheck& check) {
  return Wait{Text(check, "wait.text", in.text())};
}

StopRound Decode(const proto::Directive::StopRound& in, WireCheck& check) {
  StopRound out;
  out.round = Round(Signed(check, "stop.round", in.round()));
  out.cause = DecodeCause(in.cause(), check);
  out.reason = Text(check, "stop.reason", in.reason());
  out.peer_lost = in.peer_lost();
  return out;
}

EndJob Decode(const proto::Directive::EndJob& in, WireCheck& check) {
  EndJob out;
  out.outcome.exit_code = in.exit_code();
  out.outcome.reason = Text(check, "end.reason", in.reason());
  if (in.has_root_cause()) out.outcome.root_cause = Decode(in.root_cause(), check);
  out.outcome.failures = DecodeFailures(in.failures(), check);
  return out;
}

Refuse Decode(const proto::Directive::Refuse& in, WireCheck& check) {
  const absl::StatusCode code = check.Code("refuse.code", in.code());
  check.Require(code != absl::StatusCode::kOk, "refuse.code", "is not an error");
  return Refuse{absl::Status(code, Text(check, "refuse.message", in.message()))};
}

DirectiveBody DecodeBody(const proto::Directive& in, WireCheck& check) {
  switch (in.body_case()) {
    case proto::Directive::kWait:
      return Decode(in.wait(), check);
    case proto::Directive::kRunRound:
      return RunRound{Decode(in.run_round(), check)};
    case proto::Directive::kStopRound:
      return Decode(in.stop_round(), check);
    case proto::Directive::kEndJob:
      return Decode(in.end_job(), check);
    case proto::Directive::kRefuse:
      return Decode(in.refuse(), check);
    case proto::Directive::BODY_NOT_SET:
      break;
  }
  check.Require(false, "directive", "is not known to this version of muster");
  return Wait{};
}

}  // namespace

void Encode(const FencedReport& in, proto::Report* out) {
  const AgentReport& report = in.report;
  out->set_incarnation(in.from.value());
  out->set_term(in.term.value());
  out->set_instance(report.instance.value());
  out->set_round(report.round.value());
  out->set_sequence(report.sequence);
  out->set_phase(EncodePhase(report.phase));
  Encode(report.node, out->mutable_node());
  Encode(report.settings, out->mutable_settings());
  EncodeFailures(report.failures, out->mutable_failures());
  for (const int pid : report.unkillable_pids) {
    if (out->unkillable_pids_size() < kMaxPortsPerNode) out->add_unkillable_pids(pid);
  }
  if (report.departure.has_value()) {
    proto::Report::Departure* to = out->mutable_departure();
    to->set_signal(report.departure->signal);
    to->set_ends_job(report.departure->ends_job);
    to->set_reason(report.departure->reason);
  }
  out->set_num_nodes(report.num_nodes);
  out->mutable_past()->set_attempts(report.past.attempts);
  out->mutable_past()->set_restarts_used(report.past.restarts_used);
}

absl::StatusOr<FencedReport> Decode(const proto::Report& in) {
  WireCheck check;
  FencedReport out;
  out.from = Incarnation(in.incarnation());
  out.term = ServerTerm(check.Count("term", in.term()));
  AgentReport& report = out.report;
  report.instance = Instance(check.Count("instance", in.instance()));
  report.round = Round(Signed(check, "round", in.round()));
  report.sequence = in.sequence();
  report.phase = DecodePhase(in.phase(), check);
  check.Require(in.has_node(), "node", "is missing");
  check.Require(in.has_settings(), "settings", "are missing");
  report.node = Decode(in.node(), check);
  report.settings = Decode(in.settings(), check);
  report.failures = DecodeFailures(in.failures(), check);
  if (check.List("unkillable_pids", in.unkillable_pids_size(), kMaxPortsPerNode)) {
    for (const int pid : in.unkillable_pids()) {
      report.unkillable_pids.push_back(check.Count("unkillable_pids", pid));
    }
  }
  if (in.has_departure()) {
    report.departure =
        Departure{.signal = check.Range("departure.signal", in.departure().signal(), 0, kMaxSignal),
                  .ends_job = in.departure().ends_job(),
                  .reason = Printable(check, "departure.reason", in.departure().reason())};
  }
  report.num_nodes = check.Count("num_nodes", in.num_nodes());
  report.past = {.attempts = check.Count("past.attempts", in.past().attempts()),
                 .restarts_used = check.Count("past.restarts_used", in.past().restarts_used())};
  if (!check.status().ok()) return check.status();
  return out;
}

void Encode(const Directive& directive, proto::Directive* out) {
  out->set_term(directive.term.value());
  out->set_instance(directive.instance.value());
  out->set_revision(directive.revision);
  out->set_report_sequence(directive.report_sequence);
  std::visit(BodyEncoder{out}, directive.body);
}

absl::StatusOr<Directive> Decode(const proto::Directive& in) {
  WireCheck check;
  Directive out;
  out.term = ServerTerm(check.Count("term", in.term()));
  out.instance = Instance(check.Count("instance", in.instance()));
  out.revision = in.revision();
  out.report_sequence = in.report_sequence();
  out.body = DecodeBody(in, check);
  if (!check.status().ok()) return check.status();
  return out;
}

}  // namespace muster::rendezvous
