// What is kept back while ranks are asked what they called last, since one of them has aborted:
// PyTorch of the others forgets it as they end, and a failure is reported with whose call has
// brought it about.
//
//   signals   but SIGKILL, and the word that the round is over: until the workers of this node have
//             answered. The shell hears of them at once (PrepareSignal), and performs them then
//   failures  also until it is known what those of all nodes called; to the rest of the core a
//             worker lives until its failure is taken
//
// Nothing waits for longer than was said when it began, whatever becomes of the inquiry
// (agent/watch/abort_inquiry.h), and nothing beyond its round.
//
// Threads: compatible.
#pragma once

#include <vector>

#include "agent/core/agent_events.h"
#include "agent/core/turn.h"
#include "proto/base/mono_time.h"
#include "rendezvous/hangs/evidence/last_calls.h"

namespace muster::agent {

class KeptBack {
 public:
  // `event` is of the round that this is of; one round, one limit.
  void Note(const LastCallsChanged& event, MonoTime now);
  // The round is over: nothing need wait any more.
  void GiveUp() { state_.asks_workers = state_.awaits_judge = false; }

  // Takes the effects of `turn` that wait out of it.
  void KeepBack(Turn& turn);
  // A worker's end that is a failure.
  void Keep(const WorkerExited& exit, MonoTime now);
  // Effects that need not wait any more, in the order of their coming.
  std::vector<Effect> TakeEffects(MonoTime now);
  // Failures that need not wait any more, and in them whose call has ended the worker, where that
  // is known; their age is as of `now`.
  std::vector<WorkerExited> TakeFailures(MonoTime now);

  // When what waits has waited for long enough; InfiniteFuture() where nothing waits.
  MonoTime Deadline() const;

 private:
  struct KeptFailure {
    MonoTime at;
    WorkerExited exit;
  };
  bool KeepsEffects(MonoTime now) const { return state_.asks_workers && now < until_; }
  bool KeepsFailures(MonoTime now) const {
    return (state_.asks_workers || state_.awaits_judge) && now < until_;
  }

  hangs::LastCallsState state_;
  MonoTime until_ = MonoTime::InfiniteFuture();  // of the first that anything has waited for
  std::vector<Effect> effects_;
  std::vector<KeptFailure> failures_;
};

}  // namespace muster::agent
