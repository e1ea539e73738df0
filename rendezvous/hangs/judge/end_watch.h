// The end of a job, where some ranks have ended as they should and others have not: what is said of
// those that do not end.
//
// It gives a notice and never a verdict: a rank may have something to do that the others have not.
// One that does nothing is told a few seconds after the last end of another; one that computes,
// reads or writes after a minute, and only where as many have ended, since ranks may be independent
// of each other. Nothing is said of one that moves on, and nothing where another notice tells who
// waits for whom.
//
// Pure. Thread-compatible: one caller at a time (JobWatch).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/base/mono_time.h"
#include "rendezvous/hangs/evidence/evidence.h"
#include "rendezvous/hangs/wire/watch_messages.h"

namespace muster::hangs {

class EndWatch {
 public:
  // The time since the last end, and the part of it without doing anything.
  static constexpr absl::Duration kNoticeMin = absl::Seconds(8);
  static constexpr absl::Duration kStillMin = absl::Seconds(5);
  // The same of ranks that do something all the time.
  static constexpr absl::Duration kNoticeWhereTheyAreBusy = absl::Seconds(60);

  void StartRound(Round round, int num_ranks);
  // `num_ended` ranks of all nodes have ended well by now. A recovery, if what was said before is
  // over: the rank has ended, or goes on.
  std::optional<WatchOrder> OnEnded(int num_ended, MonoTime now);
  // When evidence is wanted next.
  MonoTime NextQuestion() const;
  // `evidence` is of ranks that have answered; `is_looked_into`: the judge finds that ranks wait.
  std::optional<WatchOrder> Listen(const Evidence& evidence, bool is_looked_into, MonoTime now);

 private:
  struct Ranks;
  bool IsTime(const Ranks& ranks, MonoTime now) const;
  SayRecovery GoesOn(const std::string& text, MonoTime now);

  Round round_ = kNoRound;
  int num_ranks_ = 0;
  int num_ended_ = 0;
  MonoTime last_end_;
  MonoTime last_move_;                   // of a rank that has not ended; or as `last_end_`
  std::optional<MonoTime> still_since_;  // all that have not ended
  MonoTime next_question_;
  absl::Duration limit_ = kNoticeMin;  // more once what was told goes on
  // The notice that stands.
  std::vector<int> told_;  // ranks that have not ended; empty: none stands
  bool were_still_ = false;
  std::string subject_;
};

}  // namespace muster::hangs
