// `muster stacks`: what the ranks of a job are doing, by their stacks.
#include "launcher/commands/commands.h"

#include <algorithm>
#include <memory>

#include "launcher/commands/sight.h"
#include "launcher/sight/observer.h"
#include "launcher/sight/stacks_text.h"
#include "proto/base/exit_codes.h"
#include "proto/base/status_macros.h"

namespace muster::launcher {
namespace {

absl::StatusOr<int> ShowStacks(const SightFlags& flags, const Invocation& invocation) {
  MUSTER_ASSIGN_OR_RETURN(const std::unique_ptr<Observer> observer,
                          ReachJob(flags.way, invocation));
  MUSTER_ASSIGN_OR_RETURN(
      const InquiryAnswer answer,
      observer->Ask({.kind = InquiryKind::kStacks, .job = flags.way.job, .rank = flags.rank},
                    TimeFor(InquiryKind::kStacks) + kOfTheWay));
  const bool any = std::any_of(answer.parts.begin(), answer.parts.end(),
                               [](const InquiryPart& part) { return part.status.ok(); });
  return PrintText(flags.json ? StacksJson(answer.parts) : StacksText(answer.parts),
                   any ? 0 : kExitFailure);
}

}  // namespace

int StacksCommand(const Invocation& invocation) {
  return RunSight(SightKind::kStacks, invocation,
                  [&](const SightFlags& flags) { return ShowStacks(flags, invocation); });
}

}  // namespace muster::launcher
