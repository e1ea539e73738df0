// The hang watch of one node among several: what it tells the server, and what it does for it.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/watch/hang_watch.h"
#include "proto/io/log.h"

namespace muster::agent {
namespace {

Round RoundOf(const verdict::WatchOrder& order) {
  return std::visit([](const auto& each) { return each.round; }, order);
}

}  // namespace

HangWatch::Position HangWatch::WhereTheyAre() {
  return {TakePulses(), verdict::MissingAt(gatherings_.At(MonoNow()))};
}

bool HangWatch::HaveMovedSince(const Position& before) {
  const Position now = WhereTheyAre();
  for (size_t i = 0; i < std::min(before.pulses.size(), now.pulses.size()); ++i) {
    if (before.pulses[i].token != now.pulses[i].token) return true;
  }
  return before.missing != now.missing;
}

void HangWatch::OnOrder(const verdict::WatchOrder& order) {
  if (!options_.is_on || RoundOf(order) != round_.round) return;
  // What was called last is asked and said also while the workers are being stopped.
  const bool is_of_abort = std::holds_alternative<verdict::AskLastCalls>(order) ||
                           std::holds_alternative<verdict::SayAborts>(order);
  if (!is_watching_ && !is_of_abort) return;
  std::visit([this](const auto& each) { Obey(each); }, order);
}

verdict::NodeSummary HangWatch::MakeSummary() {
  const absl::Duration at_start = verdict::SilenceAtStart(gatherings_.At(MonoNow()));
  return {.round = round_.round,
          .hang_timeout = options_.hang_timeout,
          .ends_workers = options_.ends_workers,
          .may_replace = options_.may_replace,
          .silent = verdict::Summarize(core_.Silences()),
          .learned = core_.limits().Learned(),
          .paces = MakePaces(),
          .silence_at_start = at_start >= verdict::kSilenceTold ? at_start : absl::ZeroDuration(),
          .arrival_window = torch_.num_arrival_windows(),
          .progress = Progress(),
          .standing = {.is_told = round_.num_nodes == 1,
                       .kind = saying_.standing,
                       .text = saying_.text,
                       .age = MonoNow() - saying_.at}};
}

verdict::NodeProgress HangWatch::Progress() const {
  verdict::NodeProgress progress;
  for (size_t i = 0; i < round_.boards.size(); ++i) {
    if (!round_.boards[i]) continue;
    const int64_t step = StepOf(round_.boards[i]->board());
    if (step < 0) continue;
    progress.step = std::max(progress.step, step);
    if (progress.slowest_rank >= 0 && step >= progress.slowest_step) continue;
    progress.slowest_step = step;
    progress.slowest_rank = round_.first_rank + static_cast<int>(i);
  }
  if (progress.step >= 0) progress.steps_per_second = step_rate_.per_second();
  return progress;
}

void HangWatch::Stand(verdict::StandingKind kind, const std::string& text) {
  saying_.standing = kind;
  saying_.text = text;
  saying_.at = MonoNow();
}

void HangWatch::TellWhatWasSaid(WatchEvent event, const std::string& text) const {
  if (options_.on_said) options_.on_said(event, text);
}

std::vector<int64_t> HangWatch::Steps() const {
  std::vector<int64_t> steps;
  for (const std::optional<BoardMemory>& board : round_.boards) {
    steps.push_back(board ? StepOf(board->board()) : -1);
  }
  return steps;
}

verdict::NodePaces HangWatch::MakePaces() const {
  verdict::NodePaces paces{.window = pace_meter_.num_windows()};
  for (const verdict::RankPace& pace : pace_meter_.paces()) {
    const int local_rank = pace.rank - round_.first_rank;
    if (local_rank >= verdict::kPacesMax) break;
    paces.own.resize(local_rank + 1);
    paces.own.back() = pace.own;
  }
  return paces;
}

std::vector<WatchedRank> HangWatch::WatchedRanks() {
  std::vector<WatchedRank> watched;
  for (auto& [local_rank, worker] : workers_) {
    watched.push_back(LookAt(local_rank, worker, MonoNow()));
  }
  return watched;
}

void HangWatch::LookAtRanks(std::optional<int> rank,
                            absl::AnyInvocable<void(std::vector<verdict::RankReport>)> then) {
  std::vector<RankReport> reports = MakeReports(WatchedRanks());
  if (rank) std::erase_if(reports, [&](const RankReport& report) { return report.rank != *rank; });
  looks_.Take(LookDepth::kStacks, std::move(reports), std::move(then));
}

void HangWatch::Obey(const verdict::AskDetails& order) {
  verdict::NodeDetails details{.question = order.question, .summary = MakeSummary()};
  const std::optional<std::vector<WatchedRank>> watched = LookAtAll(MonoNow());
  details.is_held = !watched.has_value();
  details.evidence = MakeEvidence(round_.round, round_.world_size,
                                  watched.value_or(std::vector<WatchedRank>()), torch_.members());
  details.gatherings = gatherings_.At(MonoNow());
  tell_server_(std::move(details));
}

void HangWatch::Obey(const verdict::AskStacks& order) {
  const std::optional<std::vector<WatchedRank>> watched = LookAtAll(MonoNow());
  asked_ = order.question;
  when_asked_ = WhereTheyAre();
  verdict::NodeStacks answer{.question = order.question, .round = round_.round};
  if (!watched) {  // held by a debugger: nothing is to be done about them
    answer.has_moved = true;
    tell_server_(std::move(answer));
    return;
  }
  answer.ranks = MakeReports(*watched);
  std::vector<RankReport> ranks = std::exchange(answer.ranks, {});
  LookCloser(std::move(ranks), [this, answer = std::move(answer)](std::vector<RankReport> looked_at,
                                                                  bool goes_on) mutable {
    if (!is_watching_ || answer.round != round_.round) return;
    answer.ranks = std::move(looked_at);
    answer.has_moved = goes_on || HaveMovedSince(when_asked_);
    tell_server_(std::move(answer));
  });
}

void HangWatch::Obey(const verdict::SayNotice& order) {
  SayThatTheyWait(order.text, order.finding);
}

void HangWatch::Obey(const verdict::SayRecovery& order) { SayThatTheyGoOn(order.text); }

void HangWatch::Obey(const verdict::SaySlow& order) {
  log::Write(
      order.is_over ? log::Level::kInfo : log::Level::kWarning, "slow_ranks", order.text,
      {{"run", options_.run_id}, {"round", ToString(round_.round)}, {"node", options_.node}});
  TellWhatWasSaid(WatchEvent::kSlow, order.text);
}

void HangWatch::Obey(const verdict::AskArrivals& order) {
  tell_server_(
      verdict::NodeArrivals{order.question, round_.round, torch_.ArrivalsBefore(MonoNow())});
}

void HangWatch::Obey(const verdict::SayVerdict& order) {
  const std::vector<int> pids = PidsToEnd(order);
  if (std::exchange(verdict_heard_, order.question) == order.question) {
    const std::string why = absl::StrCat("hang: ", order.diagnosis.Describe(), "; ", order.reason);
    for (const int pid : pids) end_worker_(pid, why);
    return;
  }
  Incident incident =
      MakeIncident(order.diagnosis, order.reason, order.since_detected, order.since_decided);
  incident.ranks = order.ranks;
  incident.action = order.action;
  Report(std::move(incident), pids, /*ends_attempt=*/order.replaces || !order.to_end.empty());
}

// Evidence was read here, and nothing has moved since.
std::vector<int> HangWatch::PidsToEnd(const verdict::SayVerdict& order) {
  if (!options_.ends_workers || order.question != asked_) return {};
  if (HaveMovedSince(when_asked_)) return {};
  return PidsOf(order.to_end);
}

void HangWatch::SayThatTheyWait(const std::string& text, verdict::Finding finding) {
  Stand(verdict::StandingKind::kNotice, text);
  const std::string network =
      round_.network_faults ? NetworkInWords(round_.network_faults()) : std::string();
  log::Write(log::Level::kWarning, "waiting_ranks", absl::StrCat(network, text),
             {{"run", options_.run_id},
              {"round", ToString(round_.round)},
              {"node", options_.node},
              {"finding", verdict::ToString(finding)}});
  TellWhatWasSaid(WatchEvent::kNotice, text);
}

// It says so only of what it has said to hang.
void HangWatch::SayThatTheyGoOn(const std::string& text) {
  if (saying_.standing == verdict::StandingKind::kNone) return;
  Stand(verdict::StandingKind::kNone, "");
  log::Write(
      log::Level::kInfo, "ranks_go_on", text,
      {{"run", options_.run_id}, {"round", ToString(round_.round)}, {"node", options_.node}});
  TellWhatWasSaid(WatchEvent::kGoesOn, text);
}

}  // namespace muster::agent
