#include "rendezvous/link/wire.h"

#include "proto/io/wire_check.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/link/parts_wire.h"

namespace muster::rendezvous {
namespace {

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

struct BodyEncoder {
  proto::Directive* out;
  EncodedPeers* peers;

  void operator()(const Wait& body) const { out->mutable_wait()->set_text(body.text); }
  void operator()(const RunRound& body) const {
    Encode(body.assignment, *peers, out->mutable_run_round());
  }
  void operator()(const StopRound& body) const { Encode(body, out->mutable_stop_round()); }
  void operator()(const EndJob& body) const { Encode(body.outcome, out->mutable_end_job()); }
  void operator()(const StopAt& body) const {
    out->mutable_stop_at()->set_round(body.round.value());
    out->mutable_stop_at()->set_step(body.step);
    out->mutable_stop_at()->set_reason(body.reason);
  }
  void operator()(const Refuse& body) const {
    out->mutable_refuse()->set_code(static_cast<int>(body.status.code()));
    out->mutable_refuse()->set_message(std::string(body.status.message()));
  }
};

Wait DecodeWait(const proto::Directive::Wait& in, WireCheck& check) {
  return Wait{Text(check, "wait.text", in.text())};
}

Refuse DecodeRefuse(const proto::Directive::Refuse& in, WireCheck& check) {
  const absl::StatusCode code = check.Code("refuse.code", in.code());
  check.Require(code != absl::StatusCode::kOk, "refuse.code", "is not an error");
  return Refuse{absl::Status(code, Text(check, "refuse.message", in.message()))};
}

StopAt DecodeStopAt(const proto::Directive::StopAt& in, WireCheck& check) {
  return {.round = Round(check.Count("stop_at.round", in.round())),
          .step = Signed(check, "stop_at.step", in.step()),
          .reason = Text(check, "stop_at.reason", in.reason())};
}

DirectiveBody DecodeBody(const proto::Directive& in, WireCheck& check) {
  switch (in.body_case()) {
    case proto::Directive::kWait:
      return DecodeWait(in.wait(), check);
    case proto::Directive::kRunRound:
      return RunRound{Decode(in.run_round(), check)};
    case proto::Directive::kStopRound:
      return Decode(in.stop_round(), check);
    case proto::Directive::kEndJob:
      return EndJob{Decode(in.end_job(), check)};
    case proto::Directive::kRefuse:
      return DecodeRefuse(in.refuse(), check);
    case proto::Directive::kStopAt:
      return DecodeStopAt(in.stop_at(), check);
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
  for (const WorkerFailure& failure : report.failures) {
    if (out->failures_size() == kFailuresSent) break;
    Encode(failure, out->add_failures());
  }
  for (const int pid : report.unkillable_pids) {
    if (out->unkillable_pids_size() < kMaxPortsPerNode) out->add_unkillable_pids(pid);
  }
  if (report.departure.has_value()) {
    proto::Report::Departure* to = out->mutable_departure();
    to->set_signal(report.departure->signal);
    to->set_ends_job(report.departure->ends_job);
    to->set_reason(report.departure->reason);
    to->set_exit_code(report.departure->exit_code);
  }
  if (report.stop_floor.has_value()) out->set_stop_floor(*report.stop_floor);
  if (report.stop_wish.has_value()) {
    proto::Report::StopWish* to = out->mutable_stop_wish();
    to->set_signal(report.stop_wish->signal);
    to->set_drain_me(report.stop_wish->drain_me);
    to->set_reason(report.stop_wish->reason);
  }
  for (const FailedPair& pair : report.failed_pairs) {
    if (out->failed_pairs_size() == static_cast<int>(kMaxFailedPairs)) break;
    proto::Report::FailedPair* to = out->add_failed_pairs();
    to->set_from(pair.from);
    to->set_to(pair.to);
    to->set_fault(ToString(pair.fault));
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
  if (check.List("failures", in.failures_size(), kMaxFailures)) {
    for (const proto::Failure& failure : in.failures()) {
      report.failures.push_back(Decode(failure, check));
    }
  }
  if (check.List("unkillable_pids", in.unkillable_pids_size(), kMaxPortsPerNode)) {
    for (const int pid : in.unkillable_pids()) {
      report.unkillable_pids.push_back(check.Count("unkillable_pids", pid));
    }
  }
  if (in.has_departure()) {
    report.departure = Departure{
        .signal = check.Range("departure.signal", in.departure().signal(), 0, kMaxSignal),
        .ends_job = in.departure().ends_job(),
        .reason = Printable(check, "departure.reason", in.departure().reason()),
        .exit_code = check.Range("departure.exit_code", in.departure().exit_code(), 0, 255)};
  }
  if (in.has_stop_floor()) report.stop_floor = Signed(check, "stop_floor", in.stop_floor());
  if (in.has_stop_wish()) {
    report.stop_wish =
        StopWish{.signal = check.Range("stop_wish.signal", in.stop_wish().signal(), 0, kMaxSignal),
                 .drain_me = in.stop_wish().drain_me(),
                 .reason = Printable(check, "stop_wish.reason", in.stop_wish().reason())};
  }
  if (check.List("failed_pairs", in.failed_pairs_size(), static_cast<int>(kMaxFailedPairs))) {
    for (const proto::Report::FailedPair& pair : in.failed_pairs()) {
      report.failed_pairs.push_back({.from = check.Count("failed_pairs.from", pair.from()),
                                     .to = check.Count("failed_pairs.to", pair.to()),
                                     .fault = PairFaultOf(pair.fault())});
    }
  }
  report.num_nodes = check.Count("num_nodes", in.num_nodes());
  report.past = {.attempts = check.Count("past.attempts", in.past().attempts()),
                 .restarts_used = check.Count("past.restarts_used", in.past().restarts_used())};
  if (!check.status().ok()) return check.status();
  return out;
}

void Encode(const Directive& directive, proto::Directive* out) {
  EncodedPeers peers;
  Encode(directive, peers, out);
}

void Encode(const Directive& directive, EncodedPeers& peers, proto::Directive* out) {
  out->set_term(directive.term.value());
  out->set_instance(directive.instance.value());
  out->set_revision(directive.revision);
  out->set_report_sequence(directive.report_sequence);
  std::visit(BodyEncoder{out, &peers}, directive.body);
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

void Encode(const StopRequest& request, proto::Ask* out) {
  out->set_node(request.node);
  out->set_reason(request.reason);
  out->set_at_once(request.at_once);
}

absl::StatusOr<StopRequest> Decode(const proto::Ask& in) {
  WireCheck check;
  StopRequest out{.node = Printable(check, "ask.node", in.node()),
                  .reason = Printable(check, "ask.reason", in.reason()),
                  .at_once = in.at_once()};
  if (!check.status().ok()) return check.status();
  return out;
}

void Encode(const StopAnswer& answer, proto::Answer* out) {
  out->set_code(static_cast<int>(answer.status.code()));
  out->set_text(answer.status.ok() ? answer.text : std::string(answer.status.message()));
}

absl::StatusOr<StopAnswer> Decode(const proto::Answer& in) {
  WireCheck check;
  const absl::StatusCode code = check.Code("answer.code", in.code());
  const std::string text = Text(check, "answer.text", in.text());
  if (!check.status().ok()) return check.status();
  if (code == absl::StatusCode::kOk) return StopAnswer{.text = text};
  return StopAnswer{.status = absl::Status(code, text)};
}

}  // namespace muster::rendezvous
