// The verdict that has been said of what is looked into now, if one has, and whether something
// follows from it. One that is to be performed may be lost on its way: it is said again until it
// has been.
//
// Pure. Thread-compatible: one caller at a time (JobWatch).
#pragma once

#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "proto/base/mono_time.h"
#include "rendezvous/hangs/wire/watch_messages.h"

namespace muster::hangs {

class SaidVerdict {
 public:
  void Forget() { *this = SaidVerdict(); }
  // Nothing follows from it.
  void OnlySay() { state_ = State::kOnlySaid; }
  // The server ends nodes for it.
  void LeaveToOthers() { state_ = State::kActsOnIt; }
  // The nodes of the ranks that `verdict` ends are to end them.
  void SayUntilDone(SayVerdict verdict, MonoTime now) {
    state_ = State::kActsOnIt;
    again_ = std::move(verdict);
    next_ = now + kSayAgain;
  }

  bool IsSaid() const { return state_ != State::kNotSaid; }
  // Ranks move because they are ended.
  bool IsActedOn() const { return state_ == State::kActsOnIt; }
  MonoTime NextDeadline() const { return again_ ? next_ : MonoTime::InfiniteFuture(); }
  // What is to be said again now; null: nothing.
  const SayVerdict* Tick(MonoTime now) {
    if (now < NextDeadline()) return nullptr;
    const absl::Duration since_last = now - (next_ - kSayAgain);
    again_->since_detected += since_last;
    again_->since_decided += since_last;
    next_ = now + kSayAgain;
    return &*again_;
  }

 private:
  enum class State { kNotSaid, kOnlySaid, kActsOnIt };
  static constexpr absl::Duration kSayAgain = absl::Seconds(15);

  State state_ = State::kNotSaid;
  std::optional<SayVerdict> again_;
  MonoTime next_;
};

}  // namespace muster::hangs
