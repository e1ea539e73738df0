// The hang watch where a rank has aborted: what the ranks called last is asked before any of them
// is signalled, and said once a round: by this node on one, else by the server to all
// (rendezvous/verdict/abort_watch.h).
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/watch/hang_watch.h"
#include "proto/io/log.h"
#include "rendezvous/verdict/abort_watch.h"

namespace muster::agent {

void HangWatch::OnAborted(int local_rank) {
  if (!is_watching_ || !torch_.HasServed()) return;
  const int rank = round_.first_rank + local_rank;
  aborts_.ranks.push_back(rank);
  if (round_.num_nodes > 1 && aborts_.ranks.size() == 1) {
    tell_server_(verdict::RankAborted{round_.round, rank});
    aborts_.awaits_server = !aborts_.is_said;
  }
  ArmAbortTimer();
  AskLastCalls();
}

void HangWatch::BeforeSignal(std::function<void()> then) {
  if (!aborts_.is_asking) return then();
  before_signals_.push_back(std::move(then));
}

void HangWatch::BeforeReport(std::function<void()> then) {
  if (!aborts_.is_asking && !aborts_.awaits_server) return then();
  before_reports_.push_back(std::move(then));
}

void HangWatch::LetGo() {
  if (aborts_.is_asking) return;
  for (auto& then : std::exchange(before_signals_, {})) then();
  if (aborts_.awaits_server) return;
  abort_timer_.cancel();
  for (auto& then : std::exchange(before_reports_, {})) then();
}

void HangWatch::ForgetAborts() {
  aborts_ = {};
  LetGo();
}

// Whatever happens to the workers, to the disk and to the server: nobody who waits for answers
// waits for longer, and the time begins with the first of them.
void HangWatch::ArmAbortTimer() {
  if (!aborts_.until) {
    aborts_.until = MonoNow() + verdict::TimesForLastCalls(options_.grace).all;
  }
  abort_timer_.expires_after(absl::ToChronoNanoseconds(*aborts_.until - MonoNow()));
  abort_timer_.async_wait([this, round = round_.round](const asio::error_code& error) {
    if (error || round != round_.round) return;
    aborts_.awaits_server = false;
    if (aborts_.is_asking) return OnLastCalls({});
    SayOwnAborts();
    LetGo();
  });
}

void HangWatch::AskLastCalls() {
  if (aborts_.is_asking || aborts_.calls) return;
  if (!torch_.HasServed()) return OnLastCalls({});
  aborts_.is_asking = true;
  const absl::Duration time = verdict::TimesForLastCalls(options_.grace).workers;
  torch_.AskLastCalls(round_.first_rank, time,
                      [this, round = round_.round](std::vector<verdict::RankCalls> calls) {
                        if (round == round_.round && aborts_.is_asking)
                          OnLastCalls(std::move(calls));
                      });
}

void HangWatch::OnLastCalls(std::vector<verdict::RankCalls> calls) {
  aborts_.is_asking = false;
  aborts_.calls = std::move(calls);
  if (std::exchange(aborts_.server_asks, false)) AnswerServer();
  SayOwnAborts();
  LetGo();
}

void HangWatch::AnswerServer() {
  tell_server_(verdict::NodeLastCalls{round_.round, aborts_.ranks, *aborts_.calls});
}

void HangWatch::Obey(const verdict::AskLastCalls&) {
  if (aborts_.calls) return AnswerServer();
  aborts_.server_asks = true;
  ArmAbortTimer();
  AskLastCalls();
}

void HangWatch::Obey(const verdict::SayAborts& order) {
  aborts_.awaits_server = false;
  SayAborts(order.report);
  LetGo();
}

void HangWatch::SayOwnAborts() {
  if (aborts_.ranks.empty() || aborts_.awaits_server || !aborts_.calls) return;
  SayAborts(verdict::CompareLastCalls(aborts_.ranks, round_.world_size, *aborts_.calls));
}

void HangWatch::TellWhoEnded(WorkerFailure& failure) const {
  verdict::TellWhoEnded(aborts_.report, failure);
}

void HangWatch::SayAborts(verdict::AbortReport report) {
  const std::string text = verdict::InWords(report);
  if (text.empty() || std::exchange(aborts_.is_said, true)) return;
  aborts_.report = report;
  const std::string path = reports_.NameNext("abort", round_.restart_count);
  log::Write(
      log::Level::kWarning, "abort", absl::StrCat(text, "\n  all of it is in ", path),
      {{"run", options_.run_id}, {"round", ToString(round_.round)}, {"node", options_.node}});
  const AbortIncident incident{.run_id = options_.run_id,
                               .node = options_.node,
                               .round = round_.round,
                               .restart_count = round_.restart_count,
                               .said_at = absl::Now(),
                               .report = std::move(report)};
  reports_.Write(path, ToJson(incident));
  TellWhatWasSaid(WatchEvent::kAbort, text);
}

}  // namespace muster::agent
