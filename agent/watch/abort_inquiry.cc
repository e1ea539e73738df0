#include "agent/watch/abort_inquiry.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "rendezvous/hangs/judge/abort_watch.h"

namespace muster::agent {
namespace {

// The core gives up so much later than this does, since what is known by then is to be in time.
constexpr absl::Duration kCoreWaitsLonger = absl::Milliseconds(50);

}  // namespace

AbortInquiry::AbortInquiry(asio::io_context& loop, absl::Duration grace, LocalRanks& ranks,
                           Listener listener)
    : grace_(grace), ranks_(ranks), listener_(std::move(listener)), timer_(loop) {}

void AbortInquiry::StartRound() {
  question_ = {};
  timer_.cancel();
}

void AbortInquiry::OnAborted(int rank) {
  question_.aborted.push_back(rank);
  ArmTimer();
  if (question_.aborted.size() == 1) {
    question_.awaits_judge = !question_.said;
    listener_.tell_judge(hangs::RankAborted{ranks_.round().round, rank});
  }
  AskRanks();
  TellState();
}

// Whatever happens to the workers, to the disk and to the server: nobody who waits for answers
// waits for longer, and the time begins with the first of them.
void AbortInquiry::ArmTimer() {
  if (!question_.until) question_.until = MonoNow() + hangs::TimesForLastCalls(grace_).all;
  timer_.expires_after(absl::ToChronoNanoseconds(*question_.until - MonoNow()));
  timer_.async_wait([this, round = ranks_.round().round](const asio::error_code& error) {
    if (!error && round == ranks_.round().round) OnTimeOver();
  });
}

// What is known here is better than nothing.
void AbortInquiry::OnTimeOver() {
  question_.awaits_judge = false;
  if (question_.is_asking) return OnCalls({});
  if (!question_.aborted.empty() && question_.calls) {
    Say(hangs::CompareLastCalls(question_.aborted, ranks_.round().world_size, *question_.calls));
  }
  TellState();
}

void AbortInquiry::AskRanks() {
  if (question_.is_asking || question_.calls) return;
  if (!ranks_.torch().HasServed()) return OnCalls({});
  question_.is_asking = true;
  ranks_.torch().AskLastCalls(
      ranks_.round().first_rank, hangs::TimesForLastCalls(grace_).workers,
      [this, round = ranks_.round().round](std::vector<hangs::RankCalls> calls) {
        if (round == ranks_.round().round && question_.is_asking) OnCalls(std::move(calls));
      });
}

void AbortInquiry::OnCalls(std::vector<hangs::RankCalls> calls) {
  question_.is_asking = false;
  question_.calls = std::move(calls);
  if (std::exchange(question_.is_asked, false)) Answer();
  TellState();
}

void AbortInquiry::Answer() {
  listener_.tell_judge(
      hangs::NodeLastCalls{ranks_.round().round, question_.aborted, *question_.calls});
}

void AbortInquiry::OnAsked() {
  if (question_.calls) return Answer();
  question_.is_asked = true;
  ArmTimer();
  AskRanks();
  TellState();
}

void AbortInquiry::OnSaid(const hangs::AbortReport& report) {
  question_.awaits_judge = false;
  Say(report);
  TellState();
}

void AbortInquiry::Say(const hangs::AbortReport& report) {
  if (question_.said || hangs::InWords(report).empty()) return;
  question_.said = report;
  listener_.say(report);
}

void AbortInquiry::TellState() {
  const std::tuple now(question_.is_asking, question_.awaits_judge, question_.said.has_value());
  if (std::exchange(question_.told, now) == now) return;
  hangs::LastCallsState state{.asks_workers = question_.is_asking,
                              .awaits_judge = question_.awaits_judge,
                              .said = question_.said.value_or(hangs::AbortReport())};
  if (state.asks_workers || state.awaits_judge) {
    state.within = std::max(absl::ZeroDuration(), *question_.until - MonoNow()) + kCoreWaitsLonger;
  } else {
    timer_.cancel();
  }
  listener_.on_state(state);
}

}  // namespace muster::agent
