#include "agent/core/node_check.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/exit_codes.h"
#include "proto/base/words.h"

namespace muster::agent {
namespace {

// The server is in this process and serves one node: nobody else can come.
bool IsAlone(const AgentCoreOptions& options) {
  return options.hosts_server && options.settings.max_nodes == 1;
}

}  // namespace

void NodeCheck::Run(Turn& turn) {
  phase_ = Phase::kRunning;
  if (failure_.empty()) turn.Do(ShowStatus{"checking this node before it joins (--node_check)"});
  turn.Do(RunCheck{});
}

void NodeCheck::Interrupt(Turn& turn) {
  if (!is_running()) return;
  phase_ = Phase::kDue;
  turn.Do(EndCheck{});
}

std::optional<Departure> NodeCheck::Take(const CheckEnded& event, Turn& turn) {
  const std::string before = std::exchange(failure_, event.failure);
  const std::string& name = turn.options.node.name;
  if (failure_.empty()) {
    phase_ = Phase::kPassed;
    has_ever_passed_ = true;
    pause_ = absl::ZeroDuration();
    turn.Do(ShowStatus{""});
    if (before.empty()) return std::nullopt;
    turn.Say(Announce::Level::kInfo, "node_check_passed",
             absl::StrCat(name, " passes its check, and joins"));
    return std::nullopt;
  }
  phase_ = Phase::kFailed;
  pause_ = std::clamp(2 * pause_, kFirstCheckPause, kMaxCheckPause);
  next_run_ = turn.now + pause_;
  const std::string why = absl::StrCat(name, " does not pass its check: ", failure_);
  if (event.cannot_start && !has_ever_passed_) {
    return Departure{.reason = why, .exit_code = kExitUsage};
  }
  if (IsAlone(turn.options)) return Departure{.reason = why, .exit_code = kExitNodeUnfit};
  const std::string again = absl::StrCat(why, "; it is checked again in ", InWords(pause_));
  if (failure_ != before) turn.Say(Announce::Level::kError, "node_check_failed", again);
  turn.Do(ShowStatus{again});
  return std::nullopt;
}

}  // namespace muster::agent
