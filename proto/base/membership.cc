#include "proto/base/membership.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/exit_codes.h"

namespace muster {

int ExitCodeOf(const WorkerFailure& failure) {
  if (failure.signal != 0) return ExitCodeOfSignal(failure.signal);
  return failure.exit_code == 0 ? 1 : failure.exit_code;
}

bool ForbidsRestart(const WorkerFailure& failure) {
  return !failure.start_failed && ExitCodeOf(failure) == kExitDoNotRestart;
}

absl::string_view ToString(AgentPhase phase) {
  switch (phase) {
    case AgentPhase::kJoining:
      return "joining";
    case AgentPhase::kRunning:
      return "running";
    case AgentPhase::kFailed:
      return "failed";
    case AgentPhase::kSucceeded:
      return "succeeded";
    case AgentPhase::kStopped:
      return "stopped";
    case AgentPhase::kLeaving:
      return "leaving";
  }
  return "?";
}

std::string ToString(const WorkerFailure& failure) {
  const std::string how = failure.signal != 0 ? absl::StrCat("signal=", failure.signal)
                                              : absl::StrCat("exit_code=", failure.exit_code);
  return absl::StrCat("rank=", ToString(failure.rank), " node=", failure.node_name, " ", how);
}

std::string ToString(const AgentReport& report) {
  std::string text = absl::StrCat("report seq=", report.sequence, " phase=", ToString(report.phase),
                                  " round=", ToString(report.round), " node=", report.node.name);
  for (const WorkerFailure& failure : report.failures) {
    absl::StrAppend(&text, " failure{", ToString(failure), "}");
  }
  if (report.departure) absl::StrAppend(&text, " departure=\"", report.departure->reason, "\"");
  if (report.stop_floor) absl::StrAppend(&text, " stop_floor=", *report.stop_floor);
  if (report.stop_wish) absl::StrAppend(&text, " stop_wish=\"", report.stop_wish->reason, "\"");
  if (!report.failed_pairs.empty()) {
    absl::StrAppend(&text, " failed_pairs=", report.failed_pairs.size());
  }
  return text;
}

namespace {

struct BodyPrinter {
  std::string operator()(const Wait& wait) const {
    return absl::StrCat("wait \"", wait.text, "\"");
  }
  std::string operator()(const RunRound& run) const {
    const Assignment& a = run.assignment;
    return absl::StrCat("run round=", ToString(a.round), " node_rank=", ToString(a.node_rank),
                        " ranks=", a.first_rank.value(), "-",
                        a.first_rank.value() + a.local_world_size - 1, " world_size=", a.world_size,
                        " restart_count=", a.restart_count, " reason=\"", a.reason, "\"");
  }
  std::string operator()(const StopRound& stop) const {
    const char* cause = stop.cause == StopCause::kRestart            ? "restart"
                        : stop.cause == StopCause::kMembershipChange ? "membership_change"
                                                                     : "job_failed";
    return absl::StrCat("stop round=", ToString(stop.round), " cause=", cause, " reason=\"",
                        stop.reason, "\"");
  }
  std::string operator()(const StopAt& at) const {
    const std::string step = at.step == kStopStepOpen ? "open" : absl::StrCat(at.step);
    return absl::StrCat("stop_at round=", ToString(at.round), " step=", step, " reason=\"",
                        at.reason, "\"");
  }
  std::string operator()(const EndJob& end) const {
    return absl::StrCat("end exit_code=", end.outcome.exit_code, " reason=\"", end.outcome.reason,
                        "\"");
  }
  std::string operator()(const Refuse& refuse) const {
    return absl::StrCat("refuse ", refuse.status.ToString());
  }
};

}  // namespace

std::string ToString(const DirectiveBody& body) { return std::visit(BodyPrinter{}, body); }

Peers Brief(const Peers& peers) {
  std::vector<Peer> brief = peers.list();
  for (Peer& peer : brief) peer.other_addresses.clear();
  return brief;
}

}  // namespace muster
