// Effects as lines of a transcript.
#include "absl/strings/str_cat.h"
#include "agent/core/agent_events.h"
#include "proto/base/process_end.h"

namespace muster::agent {
namespace {

std::string List(const char* name, const std::vector<LocalRank>& ranks) {
  std::string text = ranks.empty() ? "" : name;
  for (size_t i = 0; i < ranks.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ",", ranks[i].value());
  }
  return text;
}

struct EffectPrinter {
  std::string operator()(const SendReport& e) const { return muster::ToString(e.report); }
  std::string operator()(const ReservePorts&) const { return "reserve_ports"; }
  std::string operator()(const RunCheck&) const { return "run_check"; }
  std::string operator()(const EndCheck&) const { return "end_check"; }
  std::string operator()(const StartWorkers& e) const {
    return absl::StrCat("start_workers ", muster::ToString(DirectiveBody(RunRound{e.assignment})),
                        List(" kept=", e.kept));
  }
  std::string operator()(const SignalWorkers& e) const {
    return absl::StrCat("signal_workers ", SignalName(e.signal), List(" spared=", e.spared));
  }
  std::string operator()(const PrepareSignal& e) const {
    return absl::StrCat("prepare_signal ", e.signal == 0 ? "none" : SignalName(e.signal),
                        List(" spared=", e.spared));
  }
  std::string operator()(const NoteFailure& e) const {
    return absl::StrCat("note_failure ", muster::ToString(e.failure));
  }
  std::string operator()(const EndWorker& e) const {
    return absl::StrCat("end_worker ", e.local_rank.value(), " why=\"", e.why, "\"");
  }
  std::string operator()(const TellRoundOver& e) const {
    return absl::StrCat("tell_round_over followed=", e.is_followed ? "yes" : "no", " reason=\"",
                        e.reason, "\"");
  }
  std::string operator()(const TellStop& e) const {
    if (!e.stop.is_stopping) return "tell_stop withdrawn";
    return absl::StrCat("tell_stop step=", e.stop.step ? absl::StrCat(*e.stop.step) : "open");
  }
  std::string operator()(const SweepDescendants& e) const {
    return absl::StrCat("sweep_descendants ", SignalName(e.signal));
  }
  std::string operator()(const AwaitDescendants&) const { return "await_descendants"; }
  std::string operator()(const NameDescendants&) const { return "name_descendants"; }
  std::string operator()(const ShowStatus& e) const {
    return absl::StrCat("status \"", e.text, "\"");
  }
  std::string operator()(const Announce& e) const {
    return absl::StrCat("announce ", e.event, " \"", e.text, "\"");
  }
  std::string operator()(const Finish& e) const {
    return absl::StrCat("finish exit_code=", e.outcome.exit_code, " reason=\"", e.outcome.reason,
                        "\"");
  }
};

}  // namespace

std::string ToString(const Effect& effect) { return std::visit(EffectPrinter{}, effect); }

}  // namespace muster::agent
