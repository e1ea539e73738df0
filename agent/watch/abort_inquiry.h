// Where a rank has aborted: what the ranks here called last is asked before any of them is
// signalled, and said once a round by the judge of the job to all nodes
// (rendezvous/verdict/abort_watch.h). Gloo aborts the rank that receives another size than it
// expects, which need not be the one at fault.
//
// One event loop, loop thread only.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "agent/watch/local_ranks.h"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"
#include "proto/base/membership.h"
#include "proto/base/mono_time.h"
#include "rendezvous/verdict/last_calls.h"
#include "rendezvous/verdict/watch_messages.h"

namespace muster::agent {

class AbortInquiry {
 public:
  // `tell_judge` may lead to OnAsked and OnSaid before it returns. `say` is called once a round at
  // most, with what has words.
  AbortInquiry(asio::io_context& loop, absl::Duration grace, LocalRanks& ranks,
               std::function<void(verdict::NodeWord)> tell_judge,
               std::function<void(const verdict::AbortReport&)> say);

  // Whoever waits waits for nothing more.
  void StartRound();
  // It has ended by SIGABRT, of its own accord: PyTorch of the others, on all nodes, is asked what
  // they called last, which they forget as they end.
  void OnAborted(int rank);
  // The judge asks what the ranks here called last, and says what those of all nodes did.
  void OnAsked();
  void OnSaid(const verdict::AbortReport& report);

  // Calls `then`, at once or, while the workers here are asked, after it; in order. After a second
  // at most, with the usual grace (verdict::TimesForLastCalls).
  void BeforeSignal(std::function<void()> then);
  // The same, and where a worker here has aborted after it has been said what those of all nodes
  // called.
  void BeforeReport(std::function<void()> then);
  // Adds to the failure of a worker of this node what is known of whose call has ended it
  // (verdict::TellWhoEnded). To be asked when BeforeReport lets go.
  void TellWhoEnded(WorkerFailure& failure) const;

 private:
  // What is asked once a round.
  struct Question {
    std::vector<int> aborted;       // ranks of this node
    std::optional<MonoTime> until;  // nothing: nobody has waited yet
    bool is_asking = false;
    std::optional<std::vector<verdict::RankCalls>> calls;
    bool is_asked = false;      // by the judge, for `calls`
    bool awaits_judge = false;  // what those of all nodes called
    std::optional<verdict::AbortReport> said;
  };

  void ArmTimer();
  void OnTimeOver();
  void AskRanks();
  void OnCalls(std::vector<verdict::RankCalls> calls);
  void Answer();
  void Say(const verdict::AbortReport& report);
  // What has waited, and need not any more.
  void LetGo();

  const absl::Duration grace_;
  LocalRanks& ranks_;
  const std::function<void(verdict::NodeWord)> tell_judge_;
  const std::function<void(const verdict::AbortReport&)> say_;
  asio::steady_timer timer_;
  Question question_;
  std::vector<std::function<void()>> before_signals_;
  std::vector<std::function<void()>> before_reports_;
};

}  // namespace muster::agent
