#include "agent/warm_start.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace muster::agent {
namespace {

// What `auto` may import: for each a test compares a forked worker with a fresh one
// (tests/integration/warm_test.cc, warm_frameworks_test.cc).
constexpr std::array<absl::string_view, 8> kPackages = {
    "torch",     "numpy",        "transformers",      "accelerate",
    "lightning", "torchmetrics", "pytorch_lightning", "peft"};

// Told to each worker for itself, after the fork; what is left is told to all alike, and libraries
// may read it as they are loaded. A name that ends in * stands for all that begin so.
constexpr std::array<absl::string_view, 15> kOfOneWorker = {
    "RANK",       "LOCAL_RANK",       "WORLD_SIZE",          "LOCAL_WORLD_SIZE",
    "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",           "ROLE_WORLD_SIZE",
    "TF_CONFIG",  "TRACEPARENT",      "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES",
    "MUSTER_*",   "MASTER_*",         "TORCHELASTIC_*"};

absl::string_view NameOf(absl::string_view variable) {
  return variable.substr(0, variable.find('='));
}

bool IsOfOneWorker(absl::string_view variable) {
  const absl::string_view name = NameOf(variable);
  return absl::c_any_of(kOfOneWorker, [name](absl::string_view pattern) {
    return absl::ConsumeSuffix(&pattern, "*") ? absl::StartsWith(name, pattern) : name == pattern;
  });
}

// A variable that is in one of the two and not in the other.
std::string FirstDifference(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  for (const auto& [one, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    for (const std::string& variable : *one) {
      if (!absl::c_linear_search(*other, variable)) return std::string(NameOf(variable));
    }
  }
  return "";
}

}  // namespace

WarmStart::WarmStart(Options options, GuardianClient& guardian, Say say)
    : options_(std::move(options)), guardian_(guardian), say_(std::move(say)) {}

std::vector<std::string> WarmStart::VariablesForListing() const {
  if (!is_auto()) return {};
  return {absl::StrCat("MUSTER_WARM_LIST=", list_path()),
          absl::StrCat("MUSTER_WARM_PACKAGES=", absl::StrJoin(kPackages, ","))};
}

void WarmStart::OnStart(WorkerCommand& command) {
  if (!is_on()) return;
  ++num_starting_;
  next_ = {.argv = command.argv, .start = WorkerStart::kWarm};
  for (const std::string& variable : command.environment) {
    if (!IsOfOneWorker(variable)) next_.environment.push_back(variable);
  }
  if (phase_ == Phase::kNone) why_afresh_ = "it was not known yet what they import";
  if (phase_ == Phase::kNone || phase_ == Phase::kFailed) return;
  std::string reason;
  if (phase_ == Phase::kMade) {
    reason = "the warm process is not ready yet";
  } else if (next_.argv != current_.argv) {
    reason = "the workers' arguments differ from those of the warm process";
  } else if (next_.environment != current_.environment) {
    reason = absl::StrCat(FirstDifference(next_.environment, current_.environment),
                          " has changed since the warm process was started");
    phase_ = Phase::kWanted;
  }
  if (phase_ == Phase::kReady && reason.empty()) {
    command.start = WorkerStart::kForked;
    ++num_asked_;
    return;
  }
  if (reason.empty()) return;
  if (num_afresh_++ == 0) say_(absl::StrCat("workers start afresh: ", reason));
  why_afresh_ = std::move(reason);
}

void WarmStart::OnStarted() {
  num_afresh_ = 0;
  num_workers_ = std::max(num_workers_, std::exchange(num_starting_, 0));
  if (!is_on()) return;
  const bool may_begin = phase_ == Phase::kWanted || (phase_ == Phase::kNone && !is_auto());
  if (may_begin) Begin();
}

void WarmStart::OnListed() {
  if (!is_auto() || phase_ != Phase::kNone) return;
  if (::access(list_path().c_str(), R_OK) == 0) Begin();
}

void WarmStart::Begin() {
  if (!is_auto()) {
    std::ofstream file(list_path());
    file << absl::StrJoin(options_.modules, "\n");
    if (!file.flush()) {
      say_(absl::StrCat("workers are not forked: cannot write ", list_path()));
      phase_ = Phase::kFailed;
      return;
    }
  }
  current_ = next_;
  phase_ = Phase::kMade;
  WorkerCommand command = current_;
  command.environment.push_back(absl::StrCat("MUSTER_WARM=", list_path()));
  command.environment.push_back(
      absl::StrCat("MUSTER_WARM_OF_ONE=", absl::StrJoin(kOfOneWorker, ",")));
  command.environment.push_back(absl::StrCat("MUSTER_WARM_WORKERS=", num_workers_));
  guardian_.Spawn(command);
}

void WarmStart::OnState(const WarmState& state) {
  if (state.is_ready) {
    phase_ = Phase::kReady;
    say_(absl::StrCat("the warm process is ready: ", state.text, "; restarts fork it"));
    return;
  }
  why_afresh_ = absl::StrCat("the warm process cannot fork them: ", state.text);
  say_(absl::StrCat("workers start afresh, since the warm process cannot fork them: ", state.text));
  // One that was ready is replaced once workers have been started; another would fail again.
  phase_ = phase_ == Phase::kReady ? Phase::kWanted : Phase::kFailed;
}

void WarmStart::OnSpawned(bool is_forked) {
  if (num_asked_ == 0) return;
  num_forked_ += is_forked ? 1 : 0;
  if (--num_asked_ > 0) return;
  const int num_forked = std::exchange(num_forked_, 0);
  if (num_forked > 0) say_(absl::StrCat(num_forked, " workers forked by the warm process"));
}

}  // namespace muster::agent
