// A question to members of a job: who has answered it, who is still awaited, and when it is given
// up. What has been answered is its owner's.
//
// Pure. Thread-compatible: one caller at a time (its owner's).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/time/time.h"
#include "proto/base/ids.h"
#include "proto/base/mono_time.h"
#include "rendezvous/hangs/judge/watched_node.h"

namespace muster::hangs {

// The time between two questions to all about the same, at least and at most.
inline constexpr absl::Duration kBetweenQuestions = absl::Seconds(1);
inline constexpr absl::Duration kBetweenQuestionsMax = absl::Seconds(10);

class Poll {
 public:
  // The question before this one is forgotten.
  void Ask(uint64_t question, absl::btree_set<Incarnation> members, MonoTime until) {
    *this = Poll();
    question_ = question;
    awaited_ = std::move(members);
    until_ = until;
    is_open_ = true;
  }
  // `order` for each that is awaited.
  std::vector<OrderTo> Tell(const WatchOrder& order) const {
    std::vector<OrderTo> out;
    for (const Incarnation member : awaited_) out.push_back({member, order});
    return out;
  }
  // False for an answer that nobody waits for.
  bool Take(Incarnation from, uint64_t question) {
    if (question != question_ || awaited_.erase(from) == 0) return false;
    answered_.insert(from);
    return true;
  }
  // Nobody is awaited any more.
  void Close() {
    is_open_ = false;
    awaited_.clear();
  }

  bool IsOpen() const { return is_open_; }
  bool HasAnswered(Incarnation member) const { return answered_.contains(member); }
  bool HaveAllAnswered() const { return awaited_.empty(); }
  // It is to be closed, with the answers that have come.
  bool IsOver(MonoTime now) const { return is_open_ && (HaveAllAnswered() || now >= until_); }
  MonoTime NextDeadline() const { return is_open_ ? until_ : MonoTime::InfiniteFuture(); }

 private:
  uint64_t question_ = 0;
  absl::btree_set<Incarnation> awaited_;
  absl::btree_set<Incarnation> answered_;
  MonoTime until_ = MonoTime::InfiniteFuture();
  bool is_open_ = false;
};

}  // namespace muster::hangs
