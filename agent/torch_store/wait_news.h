// What is told of those who wait at the store for ranks that have not come: to people in sentences,
// to the hang watch as gatherings.
//
// Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agent/torch_store/attendance.h"
#include "agent/torch_store/barriers.h"
#include "agent/torch_store/waits.h"
#include "proto/base/mono_time.h"
#include "rendezvous/hangs/evidence/gatherings.h"

namespace muster::agent {

// One line for the console.
struct TellPeople {
  bool is_warning = false;
  std::string text;
  friend bool operator==(const TellPeople&, const TellPeople&) = default;
};

// A wait of the age of `first` is told while ranks are missing, from the round or at its barrier;
// again this long after one of them has come, else after `repeat`, which doubles each time.
struct NoticeTimes {
  absl::Duration first = absl::Seconds(10);
  absl::Duration repeat = absl::Seconds(60);
  absl::Duration lookup_lead = absl::Seconds(2);  // before a notice, whom connections belong to
};

// What was told of ranks that are missing somewhere, and when that may be told again.
class NoticeRhythm {
 public:
  explicit NoticeRhythm(const NoticeTimes& times) : times_(times), interval_(times.repeat) {}

  // No notice comes before.
  MonoTime next() const { return next_; }
  bool HasTold() const { return first_wait_.has_value(); }
  // It is told that `num_present` are there. `since`: somebody waits for the others.
  void Tell(int num_present, MonoTime since);
  // A notice was due.
  void GoOn(MonoTime now);
  // Called after it was told: some may have come.
  void Note(int num_present, MonoTime now);
  // All have come, after so long.
  absl::Duration End(MonoTime now);

 private:
  NoticeTimes times_;
  std::optional<MonoTime> first_wait_;  // that was told of
  int told_present_ = 0;
  MonoTime next_;
  absl::Duration interval_;  // until the notice after the next
};

class WaitNews {
 public:
  // References outlive it.
  WaitNews(NoticeTimes times, const Attendance& attendance, const Barriers& barriers, Waits& waits);

  // Earliest instant at which TakeLookup or TakeNotice would return something; InfiniteFuture() if
  // none.
  MonoTime NextDeadline() const;
  // A notice is due soon, and whom connections belong to should be looked up for it. Once for each.
  bool TakeLookup(MonoTime now);
  // Tells who is waited for, if that is due.
  std::optional<TellPeople> TakeNotice(MonoTime now);
  // Called after ranks have come. Where it was said that some are missing, says once that all are
  // there now.
  std::optional<TellPeople> NoteArrival(MonoTime now);
  // The same at a barrier, after a request.
  std::optional<TellPeople> NoteBarrier(MonoTime now);
  // `connection` closes, which has given a wait up. `only_closes`: it does not say so. Told once.
  std::optional<TellPeople> NoteGivenUp(StoreConnection connection, bool only_closes, MonoTime now);
  // The round is being stopped: that ranks are missing is news no longer.
  void Stop() { is_telling_ = false; }

  // What somebody waits in now for ranks that have certainly not come: init_process_group until all
  // have, then barriers of all ranks. Sentences may say more, since these may end workers.
  std::vector<hangs::Gathering> Gatherings(MonoTime now) const;

 private:
  MonoTime NoticeDue() const;
  TellPeople OfAbsent(MonoTime now);
  std::optional<TellPeople> OfBarrier(MonoTime now);
  std::optional<hangs::Gathering> GatheringAt(const std::string& awaited,
                                              std::vector<int> waiting) const;

  const NoticeTimes times_;
  const Attendance& attendance_;
  const Barriers& barriers_;
  Waits& waits_;
  bool is_telling_ = true;
  bool looked_up_ = false;  // for the notice that is due next
  NoticeRhythm of_absent_;  // of ranks that have not made their store
  // What is told of those that have not come to a barrier, once all have a store.
  NoticeRhythm of_barrier_;
  std::string barrier_key_;  // that is awaited there
  std::string barrier_name_;
  bool has_told_end_ = false;
};

}  // namespace muster::agent
