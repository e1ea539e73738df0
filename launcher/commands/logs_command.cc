// `muster logs`: prints, and with --follow goes on printing, what workers have written.
#include "launcher/commands/commands.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "launcher/commands/sight.h"
#include "launcher/sight/logs_text.h"
#include "launcher/sight/observer.h"
#include "launcher/sight/stacks_text.h"
#include "proto/base/exit_codes.h"
#include "proto/base/status_macros.h"

namespace muster::launcher {
namespace {

constexpr absl::Duration kBetweenLooks = absl::Milliseconds(500);
// A job that restarts has no workers for a while.
constexpr absl::Duration kBetweenRounds = absl::Minutes(10);

absl::StatusOr<InquiryAnswer> AskForLogs(Observer& observer, const SightFlags& flags,
                                         const status::LogsAsk& ask) {
  MUSTER_ASSIGN_OR_RETURN(std::string detail, DetailOf(ask));
  return observer.Ask({.kind = InquiryKind::kLogs,
                       .job = flags.way.job,
                       .rank = flags.rank,
                       .detail = std::move(detail)},
                      TimeFor(InquiryKind::kLogs) + kOfTheWay);
}

absl::StatusOr<int> ShowFirstError(Observer& observer, const SightFlags& flags) {
  MUSTER_ASSIGN_OR_RETURN(const InquiryAnswer answer,
                          AskForLogs(observer, flags, {.first_error = true}));
  const std::string text = FirstErrorText(answer.parts);
  const std::string silent = UnansweredText(answer.parts);
  if (!silent.empty()) std::fputs(silent.c_str(), stderr);
  if (text.empty()) return PrintText("no rank has logged an error\n", 0);
  return PrintText(text, 0);
}

absl::StatusOr<int> Follow(Observer& observer, const SightFlags& flags, LogReel& reel) {
  absl::Time silent_since = absl::InfiniteFuture();
  for (;;) {
    const absl::StatusOr<InquiryAnswer> answer =
        AskForLogs(observer, flags, reel.Next(flags.logs.tail_lines, /*follows=*/true));
    if (answer.ok()) {
      silent_since = absl::InfiniteFuture();
      if (PrintText(reel.Show(answer->parts), 0) != 0) return kExitFailure;
      if (reel.HasMore()) continue;
    } else if (!absl::IsNotFound(answer.status())) {
      // The agent, and its job, have ended.
      if (reel.HasAnswers() && !absl::IsResourceExhausted(answer.status())) return 0;
      return answer.status();
    } else {
      silent_since = std::min(silent_since, absl::Now());
      if (absl::Now() - silent_since > kBetweenRounds) return answer.status();
    }
    absl::SleepFor(kBetweenLooks);
  }
}

absl::StatusOr<int> ShowLogs(const SightFlags& flags, const Invocation& invocation) {
  MUSTER_ASSIGN_OR_RETURN(const std::unique_ptr<Observer> observer,
                          ReachJob(flags.way, invocation));
  if (flags.logs.first_error) return ShowFirstError(*observer, flags);
  LogReel reel(flags.logs.follow ? LogLayout::kPrefixed : LogLayout::kByRank, flags.logs.merge);
  if (flags.logs.follow) return Follow(*observer, flags, reel);
  // All of it comes window by window, as far as it goes now.
  do {
    MUSTER_ASSIGN_OR_RETURN(
        const InquiryAnswer answer,
        AskForLogs(*observer, flags, reel.Next(flags.logs.tail_lines, /*follows=*/false)));
    const std::string text = reel.Show(answer.parts);
    if (text.empty()) break;  // a last line without its end
    if (PrintText(text, 0) != 0) return kExitFailure;
  } while (reel.HasMore());
  return reel.HasAnswers() ? 0 : kExitFailure;
}

}  // namespace

int LogsCommand(const Invocation& invocation) {
  return RunSight(SightKind::kLogs, invocation,
                  [&](const SightFlags& flags) { return ShowLogs(flags, invocation); });
}

}  // namespace muster::launcher
