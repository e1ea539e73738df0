#include "rendezvous/link/wire.h"

#include <string>
#include <utility>
#include <variant>

#include "proto/base/stop_state.h"
#include "proto/io/wire_fields.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/link/parts_wire.h"

namespace muster::rendezvous {
namespace {

constexpr std::pair<AgentPhase, proto::Phase> kPhases[] = {
    {AgentPhase::kJoining, proto::PHASE_JOINING}, {AgentPhase::kRunning, proto::PHASE_RUNNING},
    {AgentPhase::kFailed, proto::PHASE_FAILED},   {AgentPhase::kSucceeded, proto::PHASE_SUCCEEDED},
    {AgentPhase::kStopped, proto::PHASE_STOPPED}, {AgentPhase::kLeaving, proto::PHASE_LEAVING},
};

// --- Reports

void DepartureFields(Wire<proto::Report::Departure> wire, Departure& departure) {
  using P = proto::Report::Departure;
  wire.Number("departure.signal", kSignals, &P::signal, &P::set_signal, departure.signal);
  wire.Plain(&P::ends_job, &P::set_ends_job, departure.ends_job);
  wire.Text("departure.reason", kPrintable, &P::reason, &P::mutable_reason, departure.reason);
  wire.Number("departure.exit_code", {0, 255}, &P::exit_code, &P::set_exit_code,
              departure.exit_code);
}

void StopWishFields(Wire<proto::Report::StopWish> wire, StopWish& wish) {
  using P = proto::Report::StopWish;
  wire.Number("stop_wish.signal", kSignals, &P::signal, &P::set_signal, wish.signal);
  wire.Plain(&P::drain_me, &P::set_drain_me, wish.drain_me);
  wire.Text("stop_wish.reason", kPrintable, &P::reason, &P::mutable_reason, wish.reason);
}

void FailedPairFields(Wire<proto::Report::FailedPair> wire, FailedPair& pair) {
  using P = proto::Report::FailedPair;
  wire.Number("failed_pairs.from", kCount, &P::from, &P::set_from, pair.from);
  wire.Number("failed_pairs.to", kCount, &P::to, &P::set_to, pair.to);
  if (!wire.decodes()) return wire.out().set_fault(ToString(pair.fault));
  pair.fault = PairFaultOf(wire.in().fault());
}

void CheckFields(Wire<proto::Report::Check> wire, CheckState& check) {
  using P = proto::Report::Check;
  constexpr TextBounds kFailure{
      .taken = kMaxCheckBytes, .sent = kMaxCheckBytes, .is_printable = true};
  wire.Text("check.failure", kFailure, &P::failure, &P::mutable_failure, check.failure);
}

void PastFields(Wire<proto::Report::Past> wire, JobPast& past) {
  using P = proto::Report::Past;
  wire.Number("past.attempts", kAttempts, &P::attempts, &P::set_attempts, past.attempts);
  wire.Number("past.restarts_used", kAttempts, &P::restarts_used, &P::set_restarts_used,
              past.restarts_used);
}

void FencedReportFields(Wire<proto::Report> wire, FencedReport& fenced) {
  using P = proto::Report;
  constexpr ListBounds kPids{kMaxPortsPerNode, kMaxPortsPerNode};
  constexpr ListBounds kPairs{kMaxFailedPairs, kMaxFailedPairs};
  AgentReport& report = fenced.report;
  wire.Plain(&P::incarnation, &P::set_incarnation, fenced.from);
  wire.Number("term", kCount, &P::term, &P::set_term, fenced.term);
  wire.Number("instance", kCount, &P::instance, &P::set_instance, report.instance);
  wire.Number("round", kRounds, &P::round, &P::set_round, report.round);
  wire.Plain(&P::sequence, &P::set_sequence, report.sequence);
  wire.Choice("phase", kPhases, &P::phase, &P::set_phase, report.phase);
  wire.Require(wire.Has(&P::has_node, true), "node", "is missing");
  wire.Require(wire.Has(&P::has_settings, true), "settings", "are missing");
  wire.Inner(&P::node, &P::mutable_node, report.node, NodeFields);
  wire.Inner(&P::settings, &P::mutable_settings, report.settings, SettingsFields);
  wire.List("failures", {kMaxFailures, kFailuresSent}, &P::failures, &P::mutable_failures,
            report.failures, FailureFields);
  wire.Numbers("unkillable_pids", kPids, kCount, &P::unkillable_pids, &P::mutable_unkillable_pids,
               report.unkillable_pids);
  wire.Inner(&P::has_departure, &P::departure, &P::mutable_departure, report.departure,
             DepartureFields);
  if (wire.Has(&P::has_stop_floor, report.stop_floor)) {
    wire.Number("stop_floor", {-1, kMaxStep}, &P::stop_floor, &P::set_stop_floor,
                *report.stop_floor);
  }
  wire.Inner(&P::has_stop_wish, &P::stop_wish, &P::mutable_stop_wish, report.stop_wish,
             StopWishFields);
  wire.List("failed_pairs", kPairs, &P::failed_pairs, &P::mutable_failed_pairs, report.failed_pairs,
            FailedPairFields);
  wire.Inner(&P::has_check, &P::check, &P::mutable_check, report.check, CheckFields);
  wire.Number("num_nodes", kCount, &P::num_nodes, &P::set_num_nodes, report.num_nodes);
  wire.Inner(&P::past, &P::mutable_past, report.past, PastFields);
}

// --- Directives

void WaitFields(Wire<proto::Directive::Wait> wire, Wait& wait) {
  using P = proto::Directive::Wait;
  wire.Text("wait.text", kText, &P::text, &P::mutable_text, wait.text);
}

void RunRoundFields(Wire<proto::Assignment> wire, RunRound& run) {
  AssignmentFields(wire, run.assignment);
}

// An encoder leaves it to EncodedParts.
void EndJobFields(Wire<std::string> wire, EndJob& end) {
  if (!wire.decodes()) return;
  proto::Directive::EndJob message;
  wire.Require(message.ParseFromString(wire.in()), "end_job", "is not an outcome");
  OutcomeFields(Wire<proto::Directive::EndJob>(message, wire.check()), end.outcome);
}

void StopAtFields(Wire<proto::Directive::StopAt> wire, StopAt& stop) {
  using P = proto::Directive::StopAt;
  wire.Number("stop_at.round", kCount, &P::round, &P::set_round, stop.round);
  wire.Number("stop_at.step", kCountOrNone, &P::step, &P::set_step, stop.step);
  wire.Text("stop_at.reason", kText, &P::reason, &P::mutable_reason, stop.reason);
}

void RefuseFields(Wire<proto::Directive::Refuse> wire, Refuse& refuse) {
  using P = proto::Directive::Refuse;
  absl::StatusCode code = refuse.status.code();
  std::string message(refuse.status.message());
  wire.Number("refuse.code", kStatusCodes, &P::code, &P::set_code, code);
  wire.Require(code != absl::StatusCode::kOk, "refuse.code", "is not an error");
  wire.Text("refuse.message", kText, &P::message, &P::mutable_message, message);
  if (wire.decodes()) refuse.status = absl::Status(code, message);
}

void DirectiveFields(Wire<proto::Directive> wire, Directive& directive) {
  using P = proto::Directive;
  DirectiveBody& body = directive.body;
  wire.Number("term", kCount, &P::term, &P::set_term, directive.term);
  wire.Number("instance", kCount, &P::instance, &P::set_instance, directive.instance);
  wire.Plain(&P::revision, &P::set_revision, directive.revision);
  wire.Plain(&P::report_sequence, &P::set_report_sequence, directive.report_sequence);
  wire.NeedsCase(&P::body_case, "directive");
  wire.Case(&P::has_wait, &P::wait, &P::mutable_wait, body, WaitFields);
  wire.Case(&P::has_run_round, &P::run_round, &P::mutable_run_round, body, RunRoundFields);
  wire.Case(&P::has_stop_round, &P::stop_round, &P::mutable_stop_round, body, StopRoundFields);
  wire.Case(&P::has_end_job, &P::end_job, &P::mutable_end_job, body, EndJobFields);
  wire.Case(&P::has_stop_at, &P::stop_at, &P::mutable_stop_at, body, StopAtFields);
  wire.Case(&P::has_refuse, &P::refuse, &P::mutable_refuse, body, RefuseFields);
}

// --- What persons ask

void StopRequestFields(Wire<proto::Ask> wire, StopRequest& request) {
  using P = proto::Ask;
  wire.Text("ask.node", kPrintable, &P::node, &P::mutable_node, request.node);
  wire.Text("ask.reason", kPrintable, &P::reason, &P::mutable_reason, request.reason);
  wire.Plain(&P::at_once, &P::set_at_once, request.at_once);
}

void StopAnswerFields(Wire<proto::Answer> wire, StopAnswer& answer) {
  using P = proto::Answer;
  absl::StatusCode code = answer.status.code();
  std::string text = answer.status.ok() ? answer.text : std::string(answer.status.message());
  wire.Number("answer.code", kStatusCodes, &P::code, &P::set_code, code);
  wire.Text("answer.text", kText, &P::text, &P::mutable_text, text);
  if (!wire.decodes()) return;
  if (code == absl::StatusCode::kOk) answer.text = text;
  answer.status = absl::Status(code, text);
}

}  // namespace

void Encode(const FencedReport& report, proto::Report* out) {
  EncodeFields(report, out, FencedReportFields);
}
void Encode(const Directive& directive, EncodedParts& parts, proto::Directive* out) {
  EncodeFields(directive, out, DirectiveFields);
  if (const auto* run = std::get_if<RunRound>(&directive.body)) {
    out->mutable_run_round()->set_peer_list(parts.Of(run->assignment.peers));
  } else if (const auto* end = std::get_if<EndJob>(&directive.body)) {
    out->set_end_job(parts.Of(end->outcome));
  }
}
void Encode(const Directive& directive, proto::Directive* out) {
  EncodedParts parts;
  Encode(directive, parts, out);
}
void Encode(const StopRequest& request, proto::Ask* out) {
  EncodeFields(request, out, StopRequestFields);
}
void Encode(const StopAnswer& answer, proto::Answer* out) {
  EncodeFields(answer, out, StopAnswerFields);
}

absl::StatusOr<FencedReport> Decode(const proto::Report& in) {
  return DecodeFields<FencedReport>(in, FencedReportFields);
}
absl::StatusOr<Directive> Decode(const proto::Directive& in) {
  return DecodeFields<Directive>(in, DirectiveFields);
}
absl::StatusOr<StopRequest> Decode(const proto::Ask& in) {
  return DecodeFields<StopRequest>(in, StopRequestFields);
}
absl::StatusOr<StopAnswer> Decode(const proto::Answer& in) {
  return DecodeFields<StopAnswer>(in, StopAnswerFields);
}

}  // namespace muster::rendezvous
