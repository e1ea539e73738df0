// Watches the workers of this node for hangs: listens to them every second (local_ranks.h), tells
// the judge of the job who is silent, answers what it asks, and does what it says: gives notice of
// who is waited for, and at a verdict writes the report and ends the workers at fault, if it may.
//
// What silence means is decided by hangs::JobWatch: of a job over several nodes at the server, of
// one on a single node here (own_judge.h).
//
// Evidence comes before any signal, and is read aside, since looking into a process can block; the
// loop does not wait for it (rank_looks.h, torch_watch.h).
//
// One event loop, loop thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "agent/watch/abort_inquiry.h"
#include "agent/watch/hang_reporter.h"
#include "agent/watch/hang_watch_options.h"
#include "agent/watch/local_ranks.h"
#include "agent/watch/own_judge.h"
#include "agent/watch/quiet_watch.h"
#include "agent/watch/rank_looks.h"
#include "agent/watch/watched_round.h"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"
#include "rendezvous/hangs/wire/watch_messages.h"

namespace muster::agent {

class HangWatch {
 public:
  // `end_worker` ends a worker by SIGKILL; `why` is for its failure. `tell_server`: of a job on a
  // single node how far its ranks are, and no more.
  HangWatch(asio::io_context& loop, HangWatchOptions options,
            std::function<void(int pid, const std::string& why)> end_worker,
            std::function<void(hangs::NodeWord)> tell_server);

  // The next round is agreed on; StartRound follows when its workers are being started.
  void OnReformed() { reporter_.AddMilestone(kReformed); }
  void StartRound(WatchedRound round);
  void OnSpawned(int local_rank, int pid);
  // `is_well`: with 0.
  void OnEnded(int local_rank, bool is_well);
  // It has ended by SIGABRT, of its own accord (abort_inquiry.h).
  void OnAborted(int local_rank);
  // The workers are being stopped: from now on their silence means nothing.
  void OnStopping();
  // A closer look at the workers of this node, of one rank or of all, for people who ask: as at a
  // verdict, whether or not the watch is on. `then` is called once, from the loop, unless this
  // object goes before.
  void LookAtRanks(std::optional<int> rank,
                   absl::AnyInvocable<void(std::vector<hangs::RankReport>)> then);
  // What each worker of the round is doing now, without a closer look.
  std::vector<WatchedRank> WatchedRanks() { return ranks_.LookAtEach(MonoNow()); }
  const LocalRanks& ranks() const { return ranks_; }
  // A notice or a verdict stands.
  bool IsSomebodyAwaited() const { return reporter_.standing().kind != hangs::StandingKind::kNone; }
  // An order of the judge.
  void OnOrder(const hangs::WatchOrder& order);
  // A report lies in the report directory.
  bool HasWritten() const { return reporter_.HasWritten(); }

 private:
  // The last AskStacks, and how far each rank was when it was asked.
  struct AskedStacks {
    uint64_t question = 0;
    LocalRanks::Position when;
  };

  void Arm();
  void Tick();
  void Tell(hangs::NodeWord word);
  hangs::NodeSummary MakeSummary();
  // Evidence, and whether PyTorch of somebody has moved meanwhile.
  using OnCloserLook = absl::AnyInvocable<void(std::vector<RankReport> ranks, bool goes_on)>;
  void LookCloser(std::vector<RankReport> ranks, OnCloserLook then);
  std::vector<int> PidsToEnd(const hangs::SayVerdict& order);

  void Obey(const hangs::AskDetails& order);
  void Obey(const hangs::AskStacks& order);
  void Obey(const hangs::AskArrivals& order);
  void Obey(const hangs::AskLastCalls&) { aborts_.OnAsked(); }
  void Obey(const hangs::SayNotice& order);
  void Obey(const hangs::SayRecovery& order);
  void Obey(const hangs::SayVerdict& order);
  void Obey(const hangs::SaySlow& order) { reporter_.SaySlow(order); }
  void Obey(const hangs::SayAborts& order) { aborts_.OnSaid(order.report); }

  // Constant after construction.
  const HangWatchOptions options_;
  const std::function<void(int pid, const std::string& why)> end_worker_;
  const std::function<void(hangs::NodeWord)> tell_server_;

  // Loop thread only.
  asio::steady_timer timer_;
  HangReporter reporter_;
  LocalRanks ranks_;
  RankLooks looks_;
  QuietWatch quiet_;
  AbortInquiry aborts_;
  OwnJudge judge_;
  bool is_watching_ = false;
  AskedStacks asked_;
  uint64_t verdict_heard_ = 0;  // question of the last one
  int num_notices_ = 0;         // also counts what makes one that is not said yet obsolete
};

}  // namespace muster::agent
