// What PyTorch tells of the workers of this node (torch_records.h), asked for on a thread aside: every
// two seconds at rest, whether it is another than before; every second once somebody is silent, and
// then all of it, and for stacks. Every ten seconds it is read when ranks came to their collectives.
//
// Threads: loop thread only; the thread aside works on a copy.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/watch/torch_records.h"
#include "proto/base/mono_time.h"
#include "proto/io/loop_mailbox.h"
#include "rendezvous/verdict/last_calls.h"

namespace muster::agent {

// One worker that has answered.
struct TorchRank {
  pid_t pid = 0;         // of the process that serves; the worker's, or one that it started
  bool answers = false;  // when it was asked last; else the rest is of before
  TorchRecords records;  // of when somebody was silent, but for its fingerprint
  TorchWaits waits;
  uint64_t token = 0;  // changes with all that is known of what it does
  TorchPython python;  // empty unless it is silent
};

class TorchWatch {
 public:
  explicit TorchWatch(LoopMailbox mailbox) : mailbox_(std::move(mailbox)) {}

  // By local rank, where each would serve; empty: nowhere.
  void StartRound(int first_rank, std::vector<std::string> sockets);
  // Once a second or so. Asks if it is time to.
  void Tick(MonoTime now, bool is_somebody_silent);

  // Null: nobody serves there, so nothing is known. Until the next Tick.
  const TorchRank* Find(int local_rank) const;
  const TorchMembers& members() const { return known_.members; }
  // When ranks came to their last collectives, before `now`; counted, 0: that was not read yet.
  int64_t num_arrival_windows() const { return known_.arrivals.num_windows; }
  std::vector<verdict::GroupArrivals> ArrivalsBefore(MonoTime now) const;

  // Asks again whether any of those that have answered has moved since. Blocks for a second or two:
  // for a thread aside, on which it may be called after this object's end.
  std::function<bool()> MakeMoveCheck() const;
  // Somebody has served in this round, who may have ended.
  bool HasServed() const;
  // Asks all what they have called last, by ranks from `first_rank` on; of those that do not answer within
  // `time` what they have left as they ended, or what they said when they were asked before. For a thread
  // aside as above.
  std::function<std::vector<verdict::RankCalls>()> MakeLastCallsQuestion(int first_rank,
                                                                         absl::Duration time) const;

 private:
  struct Source {
    std::string socket;
    std::optional<TorchRank> rank;
    // What its recorder has said last, also of one that has gone.
    std::shared_ptr<const std::string> recorder;
    MonoTime recorder_read_at;
    std::optional<uint64_t> stack_read_at;  // fingerprint at which its stack was asked for
    int stacks_missed = 0;                  // in a row, that were asked for and never came
  };
  struct Arrivals {
    int64_t num_windows = 0;
    MonoTime read_at;
    std::vector<verdict::GroupArrivals> groups;  // before `read_at`
  };
  struct Known {
    int first_rank = 0;
    std::vector<Source> sources;
    TorchMembers members;  // as the newest answers have them
    Arrivals arrivals;
  };

  // `in_full`: what has been recorded is read, and stacks are; else only whether it is another.
  static void Ask(Known& known, bool in_full);
  static void TakeArrivals(Known& known, MonoTime now);
  static void AskStacks(Known& known, const std::vector<bool>& is_still);
  static void TakeRecords(Source& source, absl::string_view recorder, absl::string_view waits,
                          bool in_full);

  const LoopMailbox mailbox_;
  Known known_;
  int round_ = 0;
  bool is_asking_ = false;
  MonoTime next_ask_;
};

}  // namespace muster::agent
