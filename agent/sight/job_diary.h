// Keeps the diary of this node's part in the job (rendezvous/status/diary.h), and what its time has
// been spent on so far, which metrics tell (agent_metrics.h).
//
// Threads: compatible; lines go to `write`, and the time comes in.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"
#include "proto/base/mono_time.h"
#include "rendezvous/status/diary.h"

namespace muster::agent {

// One instant by both clocks: that of the wall is for people only.
struct Instant {
  MonoTime mono;
  int64_t unix_millis = 0;
};

Instant NowByBothClocks();

class JobDiary {
 public:
  struct Counts {
    int64_t rounds = 0;
    int64_t failures = 0;
    int64_t notices = 0;
    int64_t verdicts = 0;
  };

  explicit JobDiary(std::function<void(std::string line)> write) : write_(std::move(write)) {}

  // The first. Time is spent on kForming from now on.
  void Begin(status::DiaryEntry entry, Instant at);
  // False if it is spent on that already.
  bool TurnTo(status::Spent spent, Instant at);
  // `what` and what belongs to it are set by the caller.
  void Note(status::DiaryEntry entry, Instant at);
  // The time until the next entry of steps while workers run: a sixtieth of the time so far, at
  // least ten seconds. So a diary that breaks off lacks little, and one of a month has some 560 of
  // them.
  absl::Duration PauseBetweenSteps(MonoTime now) const;
  // The last; what comes later is dropped.
  void End(status::DiaryEntry entry, Instant at);

  status::Spent spent() const { return spent_; }
  absl::Duration SpentOn(status::Spent spent, MonoTime now) const;
  const Counts& counts() const { return counts_; }

 private:
  void Write(status::DiaryEntry& entry, Instant at);
  // Time up to `now` has been spent.
  void Account(MonoTime now);

  const std::function<void(std::string line)> write_;
  bool has_begun_ = false;
  bool has_ended_ = false;
  MonoTime began_;
  MonoTime accounted_;
  status::Spent spent_ = status::Spent::kForming;
  std::array<absl::Duration, status::kAllSpent.size()> spent_on_ = {};
  Counts counts_;
  size_t num_lines_ = 0;
  size_t num_left_out_ = 0;
};

}  // namespace muster::agent
