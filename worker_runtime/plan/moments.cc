#include "worker_runtime/plan/moments.h"

#include <algorithm>
#include <limits>
#include <set>

#include "absl/types/span.h"

namespace muster::plan {

Moments::Moments(const Program& program) : program_(program) {
  for (const Action& action : program.actions) {
    first_.push_back(count_);
    count_ += 1 + EntriesOf(action).size();
  }
  before_.resize(count_);
  turn_.assign(count_, kNone);
  Connect();
}

size_t Moments::ActionOf(size_t moment) const {
  return std::upper_bound(first_.begin(), first_.end(), moment) - first_.begin() - 1;
}

bool Moments::Order() {
  std::vector<int> missing(count_);
  std::vector<std::vector<size_t>> followers(count_);
  for (size_t m = 0; m < count_; ++m) {
    missing[m] = static_cast<int>(before_[m].size());
    for (const size_t other : before_[m]) followers[other].push_back(m);
  }
  std::vector<size_t> ordered;
  for (size_t m = 0; m < count_; ++m) {
    if (missing[m] == 0) ordered.push_back(m);
  }
  for (size_t i = 0; i < ordered.size(); ++i) {
    for (const size_t next : followers[ordered[i]]) {
      if (--missing[next] == 0) ordered.push_back(next);
    }
  }
  if (ordered.size() != count_) return false;
  FindComputing(ordered, followers);
  return true;
}

bool Moments::IsBefore(size_t earlier, size_t later) const {
  if (turn_[earlier] != kNone) return turn_[earlier] <= last_before_[later];
  if (turn_[later] != kNone) return first_after_[earlier] <= turn_[later];
  return first_after_[earlier] <= last_before_[later] || IsAwaited(earlier, later);
}

void Moments::Connect() {
  int last_compute = kNone;
  int turn = 0;
  for (size_t i = 0; i < program_.actions.size(); ++i) {
    const Action& action = program_.actions[i];
    const int index = static_cast<int>(i);
    std::vector<size_t>& begin = before_[First(index)];
    for (const int other : action.after) begin.push_back(Last(other));
    // The BACKWARD is over by then for the memory that a REDUCE touches, or a point of it is.
    if (const int of = BackwardOf(action); of != kNone && of != action.at.pass) {
      begin.push_back(Last(of));
    }
    // What came before that use is over.
    if (action.at.pass != kNone) begin.push_back(First(action.at.pass) + action.at.entry);
    const absl::Span<const Entry> entries = EntriesOf(action);
    for (size_t e = 0; e < entries.size(); ++e) {
      std::vector<size_t>& use = before_[Use(index, e)];
      use.push_back(Use(index, e) - 1);
      for (const int other : entries[e].unshards) use.push_back(Last(other));
      for (const int other : entries[e].waits) use.push_back(Last(other));
    }
    if (LaneOf(action.kind()) != Lane::kCompute) continue;
    if (last_compute != kNone) begin.push_back(Last(last_compute));
    last_compute = index;
    for (size_t m = First(index); m <= Last(index); ++m) turn_[m] = turn++;
  }
}

void Moments::FindComputing(const std::vector<size_t>& ordered,
                            const std::vector<std::vector<size_t>>& followers) {
  place_.resize(count_);
  last_before_.assign(count_, kNone);
  first_after_.assign(count_, std::numeric_limits<int>::max());
  for (size_t i = 0; i < count_; ++i) {
    const size_t moment = ordered[i];
    place_[moment] = i;
    for (const size_t other : before_[moment]) {
      const int last = turn_[other] != kNone ? turn_[other] : last_before_[other];
      last_before_[moment] = std::max(last_before_[moment], last);
    }
  }
  for (size_t i = count_; i-- > 0;) {
    const size_t moment = ordered[i];
    for (const size_t next : followers[moment]) {
      const int first = turn_[next] != kNone ? turn_[next] : first_after_[next];
      first_after_[moment] = std::min(first_after_[moment], first);
    }
  }
}

bool Moments::IsAwaited(size_t earlier, size_t later) const {
  std::vector<size_t> open = {later};
  std::set<size_t> seen;
  while (!open.empty()) {
    const size_t moment = open.back();
    open.pop_back();
    for (const size_t other : before_[moment]) {
      if (other == earlier) return true;
      const bool is_between = turn_[other] == kNone && place_[other] > place_[earlier];
      if (is_between && seen.insert(other).second) open.push_back(other);
    }
  }
  return false;
}

}  // namespace muster::plan
