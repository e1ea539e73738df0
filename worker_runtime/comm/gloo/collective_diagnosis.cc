#include "worker_runtime/comm/gloo/collective_diagnosis.h"

#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker_runtime/comm/diagnosis.h"

namespace muster::comm {
namespace {

// How long peers have to say where they are.
constexpr absl::Duration kAnswerTime = absl::Seconds(1);

struct Findings {
  std::map<int, Position> answers;
  std::map<int, Operation> calls;  // of the ranks that have come
  bool differ = false;
  std::vector<int> absent;
};

Findings AskAll(ControlChannel& control, const StuckCollective& stuck) {
  Findings out;
  out.answers = control.Ask(stuck.operation.sequence, MonoNow() + kAnswerTime);
  out.calls = {{stuck.rank, stuck.operation}};
  for (int peer = 0; peer < stuck.size; ++peer) {
    const auto answer = out.answers.find(peer);
    if (peer == stuck.rank) continue;
    if (answer == out.answers.end() || !answer->second.reached) {
      out.absent.push_back(peer);
    } else if (answer->second.operation.has_value()) {
      out.calls[peer] = *answer->second.operation;
      out.differ = out.differ || out.calls[peer] != stuck.operation;
    }
  }
  return out;
}

// What a rank that has not come was doing, in words.
std::string Details(const Findings& findings) {
  if (findings.absent.size() != 1) return "";
  const auto answer = findings.answers.find(findings.absent.front());
  if (answer == findings.answers.end()) return "it does not answer either";
  if (!answer->second.operation.has_value()) return "it is alive and has called nothing yet";
  return absl::StrCat("it is alive, and its last call was ", Name(*answer->second.operation));
}

}  // namespace

absl::Status DiagnoseCollective(ControlChannel& control, const StuckCollective& stuck,
                                const absl::Status& status) {
  const Operation& op = stuck.operation;
  const Findings findings = AskAll(control, stuck);
  if (findings.differ) return MismatchError(stuck.group, findings.calls);
  if (absl::IsInvalidArgument(status)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", stuck.rank, ", ", Describe(op, stuck.group), ": ", status.message()));
  }
  if (!findings.absent.empty()) {
    return AbsentError(op, stuck.group, findings.absent, stuck.size, stuck.timeout,
                       Details(findings));
  }
  return absl::DeadlineExceededError(
      absl::StrCat(Describe(op, stuck.group), " did not finish within ",
                   absl::FormatDuration(stuck.timeout), " although all ", stuck.size,
                   " ranks have called it; give it more time, or look for a slow link"));
}

std::optional<absl::Status> FindMismatch(ControlChannel& control, const StuckCollective& stuck) {
  const Findings findings = AskAll(control, stuck);
  if (!findings.differ) return std::nullopt;
  return MismatchError(stuck.group, findings.calls);
}

}  // namespace muster::comm
