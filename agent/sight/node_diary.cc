#include "agent/sight/node_diary.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/version.h"

namespace muster::agent {

using status::Spent;

NodeDiary::NodeDiary(asio::io_context& loop, Lane files, Subject subject)
    : subject_(subject),
      file_(loop, std::move(files)),
      diary_([this](std::string line) { file_.Append(std::move(line)); }),
      next_steps_(loop) {}

void NodeDiary::Begin() {
  if (!subject_.options.run_directory_is_temporary) file_.Open(subject_.options.run_directory);
  diary_.Begin({.text = absl::StrCat("muster ", Version()),
                .run_id = subject_.options.spec.run_id,
                .node = subject_.options.node.name,
                .shape = {.num_nodes = subject_.options.spec.max_nodes,
                          .num_ranks = subject_.options.node.local_world_size}},
               NowByBothClocks());
  if (!subject_.options.run_directory_is_temporary) AwaitNextSteps();
}

void NodeDiary::AwaitNextSteps() {
  const absl::Duration pause = diary_.PauseBetweenSteps(MonoNow());
  next_steps_.expires_after(absl::ToChronoMilliseconds(pause));
  next_steps_.async_wait([this](const asio::error_code& error) {
    if (error) return;
    const Spent spent = diary_.spent();
    if (spent == Spent::kRunning || spent == Spent::kHung) NoteSteps();
    AwaitNextSteps();
  });
}

void NodeDiary::TurnTo(NodePhase phase, bool is_starting) {
  const auto spent = [&] {
    switch (phase) {
      case NodePhase::kIdle:
      case NodePhase::kChecking:
      case NodePhase::kReserving:
      case NodePhase::kJoining:
        return Spent::kForming;
      case NodePhase::kRunning:
        if (is_starting) return Spent::kPreparing;
        return subject_.hang_watch.IsSomebodyAwaited() ? Spent::kHung : Spent::kRunning;
      case NodePhase::kWaiting:
        return Spent::kWaiting;
      case NodePhase::kStopping:
        return Spent::kStopping;
      case NodePhase::kReporting:
      case NodePhase::kDone:
        return Spent::kEnding;
    }
    return Spent::kForming;
  }();
  const Spent before = diary_.spent();
  const bool ran = before == Spent::kRunning || before == Spent::kHung;
  if (ran && spent != Spent::kRunning && spent != Spent::kHung) NoteSteps();
  diary_.TurnTo(spent, NowByBothClocks());
}

void NodeDiary::NoteRound() {
  starts_ = {};
  diary_.Note({.what = status::kRound,
               .round = subject_.roster.assignment().round.value(),
               .restart_count = subject_.roster.assignment().restart_count,
               .text = subject_.roster.assignment().reason,
               .shape = {.num_nodes = subject_.roster.assignment().num_nodes,
                         .first_rank = subject_.roster.assignment().first_rank.value(),
                         .num_ranks = subject_.roster.assignment().local_world_size,
                         .world_size = subject_.roster.assignment().world_size}},
              NowByBothClocks());
}

void NodeDiary::NoteStart(int status::WorkerStarts::*how, const std::string& why_afresh) {
  starts_.*how += 1;
  if (starts_.sum() != subject_.roster.assignment().local_world_size) return;
  const bool is_again = subject_.roster.assignment().restart_count > 0 && starts_.fresh > 0;
  diary_.Note({.what = status::kStarted,
               .round = subject_.roster.assignment().round.value(),
               .text = is_again ? why_afresh : "",
               .starts = starts_},
              NowByBothClocks());
}

void NodeDiary::NoteFailure(const WorkerFailure& failure) {
  diary_.Note({.what = status::kFailure,
               .round = subject_.roster.assignment().round.value(),
               .rank = failure.rank.value(),
               .exit_code = failure.signal == 0 ? failure.exit_code : -1,
               .signal = failure.signal,
               .text = failure.ended_by.empty() ? failure.message : failure.ended_by},
              NowByBothClocks());
}

void NodeDiary::NoteSteps() {
  status::DiaryEntry entry{.what = status::kSteps,
                           .round = subject_.roster.assignment().round.value()};
  int rank = subject_.roster.assignment().first_rank.value();
  for (const int64_t step : subject_.hang_watch.ranks().Steps()) {
    if (step >= 0) entry.steps.push_back({.rank = rank, .step = step});
    ++rank;
  }
  diary_.Note(std::move(entry), NowByBothClocks());
}

void NodeDiary::NoteWatch(WatchEvent event, const std::string& text) {
  const char* const what = event == WatchEvent::kNotice    ? status::kNotice
                           : event == WatchEvent::kVerdict ? status::kVerdict
                           : event == WatchEvent::kGoesOn  ? status::kGoesOn
                           : event == WatchEvent::kSlow    ? status::kSlow
                                                           : status::kAbort;
  diary_.Note({.what = what, .round = subject_.roster.assignment().round.value(), .text = text},
              NowByBothClocks());
}

void NodeDiary::End(const JobOutcome& outcome) {
  next_steps_.cancel();
  diary_.End({.rank = outcome.root_cause ? outcome.root_cause->rank.value() : -1,
              .exit_code = outcome.exit_code,
              .text = outcome.reason},
             NowByBothClocks());
}

void NodeDiary::NoteSaid(Round round, const std::string& text) {
  diary_.Note({.what = status::kSaid, .round = round.value(), .text = text}, NowByBothClocks());
}

}  // namespace muster::agent
