#include "worker_runtime/engine/executor_core.h"

#include <algorithm>

#include "proto/base/status_macros.h"

namespace muster::engine {

using plan::Action;
using plan::Lane;

ExecutorCore::ExecutorCore(const plan::Program& program)
    : program_(program),
      after_pass_(program.actions.size()),
      states_(program.actions.size()),
      missing_(program.actions.size()) {
  for (size_t i = 0; i < program.actions.size(); ++i) {
    const Action& action = program.actions[i];
    const int index = static_cast<int>(i);
    (plan::LaneOf(action.kind) == Lane::kCompute ? computing_ : launching_).push_back(index);
    if (action.backward == plan::kNone) continue;
    after_pass_[action.backward].push_back(index);
    waiting_for_.resize(
        std::max<size_t>(waiting_for_.size(), static_cast<size_t>(action.end_parameter)));
    for (int p = action.first_parameter; p < action.end_parameter; ++p) {
      waiting_for_[p].push_back(index);
    }
  }
}

absl::Span<const int> ExecutorCore::Begin() {
  std::fill(states_.begin(), states_.end(), State::kWaiting);
  for (size_t i = 0; i < missing_.size(); ++i) {
    const Action& action = program_.actions[i];
    missing_[i] = action.end_parameter - action.first_parameter;
  }
  next_computing_ = 0;
  next_launching_ = 0;
  is_computing_ = false;
  num_done_ = 0;
  return StartWhatMay();
}

absl::Span<const int> ExecutorCore::Step(const ExecutorEvent& event) {
  std::visit([this](const auto& e) { Apply(e); }, event);
  return StartWhatMay();
}

void ExecutorCore::Apply(const GradientReady& event) {
  if (event.parameter >= static_cast<int>(waiting_for_.size())) return;
  for (const int action : waiting_for_[event.parameter]) {
    // Gradients of earlier micro-batches are only parts of the sum.
    if (states_[program_.actions[action].backward] != State::kStarted) continue;
    MUSTER_CHECK(missing_[action] > 0);
    --missing_[action];
  }
}

void ExecutorCore::Apply(const Done& event) {
  MUSTER_CHECK(states_[event.action] == State::kStarted);
  states_[event.action] = State::kDone;
  ++num_done_;
  if (plan::LaneOf(program_.actions[event.action].kind) == Lane::kCompute) is_computing_ = false;
  for (const int waiting : after_pass_[event.action]) missing_[waiting] = 0;
}

bool ExecutorCore::IsReady(int action) const {
  const Action& a = program_.actions[action];
  if (missing_[action] > 0) return false;
  if (a.backward != plan::kNone && states_[a.backward] == State::kWaiting) return false;
  return std::all_of(a.after.begin(), a.after.end(),
                     [&](int other) { return states_[other] == State::kDone; });
}

bool ExecutorCore::StartNext(const std::vector<int>& order, size_t& next) {
  if (next == order.size() || !IsReady(order[next])) return false;
  states_[order[next]] = State::kStarted;
  started_.push_back(order[next++]);
  return true;
}

int ExecutorCore::HoldUp() const {
  int found = plan::kNone;
  if (next_computing_ < computing_.size()) found = HoldUpOf(computing_[next_computing_]);
  // What it waits for has not been launched: something before that in the order is in the way.
  if (found == plan::kNone && next_launching_ < launching_.size()) {
    found = HoldUpOf(launching_[next_launching_]);
  }
  for (size_t i = 0; found == plan::kNone && i < next_launching_; ++i) {
    if (states_[launching_[i]] == State::kStarted) found = launching_[i];
  }
  MUSTER_CHECK(found != plan::kNone);
  return found;
}

int ExecutorCore::HoldUpOf(int action) const {
  for (const int other : program_.actions[action].after) {
    if (states_[other] == State::kStarted) return other;
  }
  return plan::kNone;
}

// What travels goes first: it takes no time here.
absl::Span<const int> ExecutorCore::StartWhatMay() {
  started_.clear();
  while (StartNext(launching_, next_launching_)) {
  }
  if (!is_computing_) is_computing_ = StartNext(computing_, next_computing_);
  return started_;
}

}  // namespace muster::engine
