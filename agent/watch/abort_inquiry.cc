#include "agent/watch/abort_inquiry.h"

#include <chrono>
#include <utility>

#include "rendezvous/verdict/abort_watch.h"

namespace muster::agent {

AbortInquiry::AbortInquiry(asio::io_context& loop, absl::Duration grace, LocalRanks& ranks,
                           std::function<void(verdict::NodeWord)> tell_judge,
                           std::function<void(const verdict::AbortReport&)> say)
    : grace_(grace),
      ranks_(ranks),
      tell_judge_(std::move(tell_judge)),
      say_(std::move(say)),
      timer_(loop) {}

void AbortInquiry::StartRound() {
  question_ = {};
  LetGo();
}

void AbortInquiry::OnAborted(int rank) {
  question_.aborted.push_back(rank);
  ArmTimer();
  if (question_.aborted.size() == 1) {
    question_.awaits_judge = !question_.said;
    tell_judge_(verdict::RankAborted{ranks_.round().round, rank});
  }
  AskRanks();
}

void AbortInquiry::BeforeSignal(std::function<void()> then) {
  if (!question_.is_asking) return then();
  before_signals_.push_back(std::move(then));
}

void AbortInquiry::BeforeReport(std::function<void()> then) {
  if (!question_.is_asking && !question_.awaits_judge) return then();
  before_reports_.push_back(std::move(then));
}

void AbortInquiry::LetGo() {
  if (question_.is_asking) return;
  for (auto& then : std::exchange(before_signals_, {})) then();
  if (question_.awaits_judge) return;
  timer_.cancel();
  for (auto& then : std::exchange(before_reports_, {})) then();
}

// Whatever happens to the workers, to the disk and to the server: nobody who waits for answers
// waits for longer, and the time begins with the first of them.
void AbortInquiry::ArmTimer() {
  if (!question_.until) question_.until = MonoNow() + verdict::TimesForLastCalls(grace_).all;
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
    Say(verdict::CompareLastCalls(question_.aborted, ranks_.round().world_size, *question_.calls));
  }
  LetGo();
}

void AbortInquiry::AskRanks() {
  if (question_.is_asking || question_.calls) return;
  if (!ranks_.torch().HasServed()) return OnCalls({});
  question_.is_asking = true;
  ranks_.torch().AskLastCalls(
      ranks_.round().first_rank, verdict::TimesForLastCalls(grace_).workers,
      [this, round = ranks_.round().round](std::vector<verdict::RankCalls> calls) {
        if (round == ranks_.round().round && question_.is_asking) OnCalls(std::move(calls));
      });
}

void AbortInquiry::OnCalls(std::vector<verdict::RankCalls> calls) {
  question_.is_asking = false;
  question_.calls = std::move(calls);
  if (std::exchange(question_.is_asked, false)) Answer();
  LetGo();
}

void AbortInquiry::Answer() {
  tell_judge_(verdict::NodeLastCalls{ranks_.round().round, question_.aborted, *question_.calls});
}

void AbortInquiry::OnAsked() {
  if (question_.calls) return Answer();
  question_.is_asked = true;
  ArmTimer();
  AskRanks();
}

void AbortInquiry::OnSaid(const verdict::AbortReport& report) {
  question_.awaits_judge = false;
  Say(report);
  LetGo();
}

void AbortInquiry::Say(const verdict::AbortReport& report) {
  if (question_.said || verdict::InWords(report).empty()) return;
  question_.said = report;
  say_(report);
}

void AbortInquiry::TellWhoEnded(WorkerFailure& failure) const {
  verdict::TellWhoEnded(question_.said.value_or(verdict::AbortReport()), failure);
}

}  // namespace muster::agent
