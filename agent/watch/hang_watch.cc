#include "agent/watch/hang_watch.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

namespace muster::agent {
namespace {

bool IsInAStep(const std::vector<hangs::Pulse>& pulses) {
  return std::any_of(pulses.begin(), pulses.end(), [](const hangs::Pulse& pulse) {
    return pulse.is_told && (pulse.num_steps > 0 || pulse.has_operations);
  });
}

Round RoundOf(const hangs::WatchOrder& order) {
  return std::visit([](const auto& each) { return each.round; }, order);
}

}  // namespace

HangWatch::HangWatch(asio::io_context& loop, HangWatchOptions options,
                     std::function<void(int pid, const std::string& why)> end_worker,
                     std::function<void(hangs::NodeWord)> tell_server)
    : options_(std::move(options)),
      end_worker_(std::move(end_worker)),
      tell_server_(std::move(tell_server)),
      timer_(loop),
      reporter_(options_.run_id, options_.node, options_.report_directory, options_.on_said),
      ranks_(loop, options_.node),
      looks_(loop),
      quiet_(ranks_, looks_,
             [this](bool is_over, const std::string& text) {
               if (is_watching_) reporter_.SayQuiet(is_over, text);
             }),
      aborts_(loop, options_.grace, ranks_,
              {.tell_judge = [this](hangs::NodeWord word) { Tell(std::move(word)); },
               .say = [this](const hangs::AbortReport& report) { reporter_.SayAborts(report); },
               .on_state =
                   [this](const hangs::LastCallsState& state) {
                     if (options_.on_last_calls)
                       options_.on_last_calls(ranks_.round().round, state);
                   }}),
      judge_(options_.grace, [this](const hangs::WatchOrder& order) { OnOrder(order); }) {}

void HangWatch::StartRound(WatchedRound round) {
  ranks_.StartRound(std::move(round));
  reporter_.StartRound(ranks_.round());
  aborts_.StartRound();
  quiet_.StartRound();
  judge_.StartRound(ranks_.round(), MonoNow());
  is_watching_ = options_.is_on;
  ++num_notices_;
  if (!is_watching_) return;
  Arm();
  // The judge asks nobody of whom it has heard none, and the first rank may abort within a second.
  Tell(MakeSummary());
}

void HangWatch::OnSpawned(int local_rank, int pid) {
  ranks_.OnSpawned(local_rank, pid);
  if (ranks_.HaveAllStarted()) reporter_.AddMilestone(kStarted);
}

void HangWatch::OnEnded(int local_rank, bool is_well) {
  ranks_.OnEnded(local_rank, is_well);
  // What was said of it is to be over before this node is.
  if (is_watching_ && IsSomebodyAwaited()) Tell(MakeSummary());
  if (ranks_.HaveAllEnded()) reporter_.AddMilestone(kStopped);
}

void HangWatch::OnAborted(int local_rank) {
  if (is_watching_ && ranks_.torch().HasServed()) aborts_.OnAborted(ranks_.RankOf(local_rank));
}

void HangWatch::OnStopping() {
  is_watching_ = false;
  timer_.cancel();
  judge_.StopRound();
}

void HangWatch::Arm() {
  timer_.expires_after(absl::ToChronoNanoseconds(hangs::kWatchInterval));
  timer_.async_wait([this](const asio::error_code& error) {
    if (error || !is_watching_) return;
    Tick();
    if (is_watching_) Arm();
  });
}

void HangWatch::Tick() {
  const MonoTime now = MonoNow();
  const std::vector<hangs::Pulse> pulses = ranks_.Tick(now);
  if (IsInAStep(pulses)) reporter_.OnStep();
  // Over several nodes the server may have given notice of them.
  quiet_.Tick(pulses, !judge_.IsJudge() || judge_.HasIncident(), now);
  Tell(MakeSummary());
  judge_.Tick(now);
}

void HangWatch::Tell(hangs::NodeWord word) {
  const bool is_summary = std::holds_alternative<hangs::NodeSummary>(word);
  if (is_summary || !judge_.IsJudge()) tell_server_(word);
  judge_.Hear(std::move(word), MonoNow());
}

hangs::NodeSummary HangWatch::MakeSummary() {
  hangs::NodeSummary summary = ranks_.Summarize(MonoNow());
  summary.hang_timeout = options_.hang_timeout;
  summary.ends_workers = options_.ends_workers;
  summary.may_replace = options_.may_replace;
  summary.standing = reporter_.standing();
  summary.standing.is_told = judge_.IsJudge();
  return summary;
}

void HangWatch::LookAtRanks(std::optional<int> rank,
                            absl::AnyInvocable<void(std::vector<hangs::RankReport>)> then) {
  std::vector<RankReport> reports = MakeReports(WatchedRanks());
  if (rank) std::erase_if(reports, [&](const RankReport& report) { return report.rank != *rank; });
  looks_.Take(LookDepth::kStacks, std::move(reports), std::move(then));
}

void HangWatch::LookCloser(std::vector<RankReport> ranks, OnCloserLook then) {
  looks_.Take(LookDepth::kStacks, std::move(ranks),
              [this, check = ranks_.torch().MakeMoveCheck(),
               then = std::move(then)](std::vector<RankReport> looked_at) mutable {
                ranks_.torch().AskIfMoved(
                    std::move(check),
                    [looked_at = std::move(looked_at), then = std::move(then)](
                        bool goes_on) mutable { then(std::move(looked_at), goes_on); });
              });
}

// --- What the judge orders

void HangWatch::OnOrder(const hangs::WatchOrder& order) {
  if (!options_.is_on || RoundOf(order) != ranks_.round().round) return;
  // What was called last is asked and said also while the workers are being stopped.
  const bool is_of_abort = std::holds_alternative<hangs::AskLastCalls>(order) ||
                           std::holds_alternative<hangs::SayAborts>(order);
  if (!is_watching_ && !is_of_abort) return;
  std::visit([this](const auto& each) { Obey(each); }, order);
}

void HangWatch::Obey(const hangs::AskDetails& order) {
  hangs::NodeDetails details{.question = order.question, .summary = MakeSummary()};
  ranks_.AddEvidence(MonoNow(), details);
  Tell(std::move(details));
}

void HangWatch::Obey(const hangs::AskStacks& order) {
  const std::optional<std::vector<WatchedRank>> watched = ranks_.LookAtAll(MonoNow());
  asked_ = {order.question, ranks_.Where()};
  hangs::NodeStacks answer{.question = order.question, .round = order.round};
  if (!watched) {  // held by a debugger: nothing is to be done about them
    answer.has_moved = true;
    return Tell(std::move(answer));
  }
  std::vector<RankReport> ranks = MakeReports(*watched);
  std::stable_partition(ranks.begin(), ranks.end(), [&](const RankReport& rank) {
    return absl::c_linear_search(order.first, rank.rank);
  });
  LookCloser(std::move(ranks), [this, answer = std::move(answer)](std::vector<RankReport> looked_at,
                                                                  bool goes_on) mutable {
    if (!is_watching_ || answer.round != ranks_.round().round) return;
    answer.ranks = std::move(looked_at);
    answer.has_moved = goes_on || ranks_.HaveMovedSince(asked_.when);
    Tell(std::move(answer));
  });
}

void HangWatch::Obey(const hangs::AskArrivals& order) {
  Tell(hangs::NodeArrivals{order.question, order.round, ranks_.torch().ArrivalsBefore(MonoNow())});
}

// Files that are waited for, and the Python of programs that do not tell it, are read aside.
void HangWatch::Obey(const hangs::SayNotice& order) {
  const int number = ++num_notices_;
  quiet_.LeaveAlone(order.named);
  std::vector<RankReport> named = ranks_.ReportsOf(order.named);
  if (named.empty()) return reporter_.SayNotice(order.text, order.finding);
  looks_.Take(LookDepth::kPython, std::move(named),
              [this, order, number](const std::vector<RankReport>& looked_at) {
                if (!is_watching_ || number != num_notices_) return;
                std::string text = order.text;
                for (const RankReport& rank : looked_at) {
                  const std::string& wait = rank.doing;  // for a file: no more has been looked at
                  if (!wait.empty()) absl::StrAppend(&text, "; rank ", rank.rank, " ", wait);
                  const std::string stack = hangs::PythonInWords(rank.python);
                  if (!stack.empty()) absl::StrAppend(&text, "; rank ", rank.rank, " in ", stack);
                }
                reporter_.SayNotice(text, order.finding);
              });
}

void HangWatch::Obey(const hangs::SayRecovery& order) {
  ++num_notices_;
  quiet_.LeaveAlone({});
  reporter_.SayRecovery(order.text);
}

void HangWatch::Obey(const hangs::SayVerdict& order) {
  ++num_notices_;
  const std::vector<int> pids = PidsToEnd(order);
  const bool is_again = std::exchange(verdict_heard_, order.question) == order.question;
  const std::string why =
      is_again ? absl::StrCat("hang: ", order.diagnosis.Describe(), "; ", order.reason)
               : reporter_.SayVerdict(order);
  for (const int pid : pids) end_worker_(pid, why);
}

// Evidence was read here, and nothing has moved since.
std::vector<int> HangWatch::PidsToEnd(const hangs::SayVerdict& order) {
  std::vector<int> pids;
  if (!options_.ends_workers || order.question != asked_.question) return pids;
  if (ranks_.HaveMovedSince(asked_.when)) return pids;
  for (const int rank : order.to_end) {
    if (const std::optional<int> pid = ranks_.PidOf(rank)) pids.push_back(*pid);
  }
  return pids;
}

}  // namespace muster::agent
