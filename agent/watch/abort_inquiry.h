// The inquiry after a rank has aborted: what the ranks here called last is asked before any of them
// is signalled, and said once a round by the judge of the job to all nodes
// (rendezvous/hangs/judge/abort_watch.h). Gloo aborts the rank that receives another size than it
// expects, which need not be the one at fault.
//
// It asks, and says how far it is; what waits for it waits in the core (agent/core/kept_back.h).
//
// One event loop, loop thread only.
#pragma once

#include <functional>
#include <optional>
#include <tuple>
#include <vector>

#include "agent/watch/local_ranks.h"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"
#include "proto/base/mono_time.h"
#include "rendezvous/hangs/evidence/last_calls.h"
#include "rendezvous/hangs/wire/watch_messages.h"

namespace muster::agent {

class AbortInquiry {
 public:
  struct Listener {
    // May lead to OnAsked and OnSaid before it returns.
    std::function<void(hangs::NodeWord)> tell_judge;
    // Once a round at most, with what has words.
    std::function<void(const hangs::AbortReport&)> say;
    // How far the inquiry is, whenever that changes within a round. Nothing is asked or awaited for
    // longer than a second, with the usual grace (hangs::TimesForLastCalls).
    std::function<void(const hangs::LastCallsState&)> on_state;
  };
  AbortInquiry(asio::io_context& loop, absl::Duration grace, LocalRanks& ranks, Listener listener);

  void StartRound();
  // It has ended by SIGABRT, of its own accord: PyTorch of the others, on all nodes, is asked what
  // they called last, which they forget as they end.
  void OnAborted(int rank);
  // The judge asks what the ranks here called last, and says what those of all nodes did.
  void OnAsked();
  void OnSaid(const hangs::AbortReport& report);

 private:
  // What is asked once a round.
  struct Question {
    std::vector<int> aborted;       // ranks of this node
    std::optional<MonoTime> until;  // nothing: nobody has waited yet
    bool is_asking = false;
    std::optional<std::vector<hangs::RankCalls>> calls;
    bool is_asked = false;      // by the judge, for `calls`
    bool awaits_judge = false;  // what those of all nodes called
    std::optional<hangs::AbortReport> said;
    // Whether it asked the workers, awaited the judge and had said something when the listener was
    // told last.
    std::tuple<bool, bool, bool> told;
  };

  void ArmTimer();
  void OnTimeOver();
  void AskRanks();
  void OnCalls(std::vector<hangs::RankCalls> calls);
  void Answer();
  void Say(const hangs::AbortReport& report);
  void TellState();

  const absl::Duration grace_;
  LocalRanks& ranks_;
  const Listener listener_;
  asio::steady_timer timer_;
  Question question_;
};

}  // namespace muster::agent
