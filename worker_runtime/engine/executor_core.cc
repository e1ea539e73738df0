#include "worker_runtime/engine/executor_core.h"

#include <algorithm>
#include <limits>

#include "proto/base/status_macros.h"

namespace muster::engine {

using plan::Action;
using plan::Lane;

ExecutorCore::ExecutorCore(const plan::Program& program)
    : program_(program),
      after_pass_(program.actions.size()),
      states_(program.actions.size()),
      missing_(program.actions.size()),
      came_to_(program.actions.size()) {
  for (size_t i = 0; i < program.actions.size(); ++i) {
    const Action& action = program.actions[i];
    const int index = static_cast<int>(i);
    const Lane lane = plan::LaneOf(action.kind());
    (lane == Lane::kCompute  ? computing_
     : lane == Lane::kMemory ? freeing_
                             : launching_)
        .Add(index);
    if (plan::BackwardOf(action) == plan::kNone) continue;
    after_pass_[plan::BackwardOf(action)].push_back(index);
    const plan::Bucket& bucket = program.buckets[plan::BucketOf(action)];
    waiting_for_.resize(
        std::max<size_t>(waiting_for_.size(), static_cast<size_t>(bucket.end_parameter)));
    for (int p = bucket.first_parameter; p < bucket.end_parameter; ++p) {
      waiting_for_[p].push_back(index);
    }
  }
}

absl::Span<const int> ExecutorCore::Begin() {
  std::fill(states_.begin(), states_.end(), State::kWaiting);
  std::fill(missing_.begin(), missing_.end(), 0);
  for (const std::vector<int>& waiting : waiting_for_) {
    for (const int action : waiting) ++missing_[action];
  }
  std::fill(came_to_.begin(), came_to_.end(), -1);
  pass_ = plan::kNone;
  for (ActionOrder* order : {&freeing_, &computing_, &launching_}) order->Rewind();
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
    if (states_[plan::BackwardOf(program_.actions[action])] != State::kStarted) continue;
    MUSTER_CHECK(missing_[action] > 0);
    --missing_[action];
  }
}

void ExecutorCore::Apply(const Done& event) {
  MUSTER_CHECK(states_[event.action] == State::kStarted);
  states_[event.action] = State::kDone;
  ++num_done_;
  if (plan::LaneOf(program_.actions[event.action].kind()) == Lane::kCompute) is_computing_ = false;
  came_to_[event.action] = std::numeric_limits<int>::max();
  if (event.action == pass_) pass_ = plan::kNone;
  for (const int waiting : after_pass_[event.action]) missing_[waiting] = 0;
}

void ExecutorCore::Apply(const UnitEntered& event) {
  use_ = FindUse(event.unit);
  MUSTER_CHECK(use_ >= 0);
  came_to_[pass_] = use_;
}

void ExecutorCore::Apply(const SumEntered&) {
  use_ = FindSum();
  MUSTER_CHECK(use_ >= 0);
  came_to_[pass_] = use_;
}

int ExecutorCore::FindUse(int unit) const {
  const std::vector<plan::Entry>& entries = pass().entries;
  for (int use = use_ + 1; use < static_cast<int>(entries.size()); ++use) {
    if (entries[use].combine != plan::kNone) return -1;
    if (entries[use].unit == unit) return use;
  }
  return -1;
}

int ExecutorCore::UnitAtHand() const {
  int use = use_;
  while (use >= 0 && pass().entries[use].combine != plan::kNone) --use;
  return use < 0 ? plan::kNone : pass().entries[use].unit;
}

int ExecutorCore::FindSum() const {
  const std::vector<plan::Entry>& entries = pass().entries;
  for (int use = use_ + 1; use < static_cast<int>(entries.size()); ++use) {
    if (entries[use].combine != plan::kNone) return use;
  }
  return -1;
}

bool ExecutorCore::ExpectsSum(int64_t bytes) const {
  if (pass_ == plan::kNone) return false;
  const int sum = FindSum();
  if (sum < 0) return false;
  return plan::ExchangeOf(program_.actions[pass().entries[sum].combine])->bytes == bytes;
}

ExecutorCore::Arrival ExecutorCore::WhatIs(int unit) const {
  if (pass_ == plan::kNone || !has_uses_) return Arrival::kSame;
  if (use_ >= 0 && UnitAtHand() == unit) return Arrival::kSame;
  return FindUse(unit) < 0 ? Arrival::kUnknown : Arrival::kNext;
}

int ExecutorCore::UseHoldUp() {
  const plan::Entry& entry = use();
  std::vector<int> needs = entry.waits;
  needs.insert(needs.end(), entry.unshards.begin(), entry.unshards.end());
  bool all_done = true;
  for (const int need : needs) {
    if (states_[need] == State::kStarted) return need;
    all_done = all_done && states_[need] == State::kDone;
  }
  if (all_done) return plan::kNone;
  const int found = HoldUpOfLaunches();
  return found == plan::kNone ? kNever : found;
}

bool ExecutorCore::IsReady(int action) const {
  const Action& a = program_.actions[action];
  if (a.at.pass != plan::kNone && came_to_[a.at.pass] < a.at.entry) return false;
  if (missing_[action] > 0) return false;
  const int backward = plan::BackwardOf(a);
  if (backward != plan::kNone && states_[backward] == State::kWaiting) return false;
  return std::all_of(a.after.begin(), a.after.end(),
                     [&](int other) { return states_[other] == State::kDone; });
}

bool ExecutorCore::StartNext(ActionOrder& order) {
  const int next = order.next();
  if (next == plan::kNone || !IsReady(next)) return false;
  order.Pass();
  states_[next] = State::kStarted;
  started_.push_back(next);
  return true;
}

int ExecutorCore::HoldUp() {
  int found = plan::kNone;
  if (computing_.next() != plan::kNone) found = HoldUpOf(computing_.next());
  // What it waits for has not been launched: something before that in the order is in the way.
  if (found == plan::kNone) found = HoldUpOfLaunches();
  MUSTER_CHECK(found != plan::kNone);
  return found;
}

int ExecutorCore::HoldUpOfLaunches() {
  int found = plan::kNone;
  if (launching_.next() != plan::kNone) found = HoldUpOf(launching_.next());
  if (found == plan::kNone) {
    found = launching_.FirstUnderWay(
        [this](int launched) { return states_[launched] == State::kDone; });
  }
  return found;
}

int ExecutorCore::HoldUpOf(int action) const {
  const std::vector<int>& after = program_.actions[action].after;
  for (const int other : after) {
    if (states_[other] == State::kStarted) return other;
  }
  // What gives memory back may wait itself.
  for (const int other : after) {
    if (states_[other] == State::kDone) continue;
    if (const int found = HoldUpOf(other); found != plan::kNone) return found;
  }
  return plan::kNone;
}

void ExecutorCore::StartWhatNeedNotCompute() {
  for (bool moved = true; moved;) {
    moved = false;
    while (StartNext(freeing_)) {
      moved = true;
      states_[started_.back()] = State::kDone;
      ++num_done_;
    }
    while (StartNext(launching_)) moved = true;
  }
}

// What travels goes first: it takes no time here.
absl::Span<const int> ExecutorCore::StartWhatMay() {
  started_.clear();
  StartWhatNeedNotCompute();
  if (!is_computing_ && StartNext(computing_)) {
    is_computing_ = true;
    if (program_.actions[started_.back()].If<plan::Pass>()) {
      pass_ = started_.back();
      use_ = -1;
      // What the first use needs begins with the pass; a sum only when it is there.
      const std::vector<plan::Entry>& entries = pass().entries;
      has_uses_ = plan::HasUses(entries);
      came_to_[pass_] = !entries.empty() && entries[0].combine != plan::kNone ? -1 : 0;
    }
    StartWhatNeedNotCompute();
  }
  return started_;
}

}  // namespace muster::engine
