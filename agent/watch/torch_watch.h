// What PyTorch tells of the workers of this node (torch_records.h), asked for on a lane aside:
// every two seconds at rest, whether it is another than before; every second once somebody is
// silent, and then all of it, and for stacks; a rank that goes on to answer the same is asked ever
// more rarely, every ten seconds in the end. Every ten seconds it is read when ranks came to their
// collectives. Where the lane is not to be had nothing is known of any rank: one that was not asked
// is not silent.
//
// Threads: loop thread only; the lane works on a copy.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "agent/process/aside.h"
#include "agent/watch/torch_records.h"
#include "asio/io_context.hpp"
#include "proto/base/mono_time.h"
#include "rendezvous/hangs/evidence/last_calls.h"

namespace muster::agent {

// One worker that has answered.
struct TorchRank {
  pid_t pid = 0;         // of the process that serves; the worker's, or one that it started
  bool answers = false;  // when it was asked last; else the rest is of before
  MonoTime asked_at;     // the question began that it has answered last
  TorchRecords records;  // of when somebody was silent, but for its fingerprint
  TorchWaits waits;
  uint64_t token = 0;  // changes with all that is known of what it does
  TorchPython python;  // empty unless it is silent
  // How often in a row its main thread was seen in one call of one function, while it was silent.
  int times_in_function = 0;
};

class TorchWatch {
 public:
  explicit TorchWatch(asio::io_context& loop) : aside_(loop, Lane("torch_sockets")) {}

  // `sockets`: by local rank, the socket at which each would serve; empty: none.
  void StartRound(int first_rank, std::vector<std::string> sockets);
  // Once a second or so. Asks if it is time to.
  void Tick(MonoTime now, bool is_somebody_silent);

  // Valid until the next Tick. Null: nobody serves there, so nothing is known.
  const TorchRank* Find(int local_rank) const;
  const TorchMembers& members() const { return known_.members; }
  // When ranks came to their last collectives, before `now`; counted, 0: that was not read yet.
  int64_t num_arrival_windows() const { return known_.arrivals.num_windows; }
  std::vector<hangs::GroupArrivals> ArrivalsBefore(MonoTime now) const;

  // Asks again whether any of those that have answered has moved since MakeMoveCheck; no if that is
  // not to be had within seconds. `then` is called once, from the loop, unless this object goes
  // before.
  using MoveCheck = std::function<bool()>;
  MoveCheck MakeMoveCheck() const;
  void AskIfMoved(MoveCheck check, absl::AnyInvocable<void(bool)> then);
  // Somebody has served in this round, who may have ended.
  bool HasServed() const;
  // Asks all what they have called last, by ranks from `first_rank` on; of those that do not answer
  // within `time` what they have left as they ended, or what they said when they were asked before.
  // Nothing if that is not to be had. `then` is called as above.
  void AskLastCalls(int first_rank, absl::Duration time,
                    absl::AnyInvocable<void(std::vector<hangs::RankCalls>)> then);

 private:
  struct Source {
    std::string socket;
    std::optional<TorchRank> rank;
    // What its recorders have said last, also of one that has gone.
    std::shared_ptr<const TorchDumps> dumps;
    MonoTime dumps_read_at;
    int stacks_missed = 0;  // in a row, that were asked for and never came
    MonoTime next_stack;    // at the earliest
    std::string function;   // the innermost, and where it was called
    int num_same = 0;       // answers in full, in a row, that were the same
    MonoTime next_ask;      // in full, at the earliest
    bool has_rpc = false;   // no recorder has its calls
  };
  struct Arrivals {
    int64_t num_windows = 0;
    MonoTime read_at;
    std::vector<hangs::GroupArrivals> groups;  // before `read_at`
  };
  struct Known {
    int first_rank = 0;
    std::vector<Source> sources;
    TorchMembers members;  // as the newest answers have them
    Arrivals arrivals;
  };

  // `in_full`: what has been recorded is read, and stacks are; else only whether it is another.
  static void Ask(Known& known, bool in_full, MonoTime due);
  static void Schedule(Source& source, bool is_same, bool in_full, MonoTime now);
  static void TakeArrivals(Known& known, MonoTime now);
  static void AskStacks(Known& known, const std::vector<bool>& is_still, MonoTime now);
  static void TakeStack(Source& source, TorchPython python);
  static void TakeRecords(Source& source, absl::string_view waits, bool in_full);

  // What was known of the ranks is not known any more; what they called last is.
  void ForgetRanks();

  Aside aside_;
  Known known_;
  int round_ = 0;
  bool is_asking_ = false;
  MonoTime next_ask_;
};

}  // namespace muster::agent
