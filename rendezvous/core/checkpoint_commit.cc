#include "rendezvous/core/checkpoint_commit.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"

namespace muster::rendezvous {
namespace {

absl::Status NotNow(int64_t step, const std::string& why) {
  return absl::UnavailableError(absl::StrCat("the checkpoint of step ", step,
                                             " is not committed now: ", why,
                                             "; the one before it stays, and training goes on"));
}

// The time until which the workers of `from` may publish: the end of their lease, or what stands
// for it; nothing if they have no part in `round`.
std::optional<MonoTime> PublishesUntil(const JobState& state, Incarnation from, Round round) {
  const auto former = state.former.find(from);
  if (former != state.former.end()) {
    return former->second.told == round ? former->second.may_publish_until : std::nullopt;
  }
  const auto node = state.nodes.find(from);
  if (node == state.nodes.end()) return std::nullopt;
  // The end of a job clears the round, though workers may still be ending.
  const bool is_ending = state.phase == JobPhase::kEnded && node->second.told == round;
  if (!state.in_round.contains(from) && !is_ending) return std::nullopt;
  // A lease that was renewed because nobody at all was heard keeps a place, and publishes nothing.
  const bool is_heard = node->second.connected && node->second.free_renewals == 0;
  return is_heard ? node->second.lease_expires : MonoTime();
}

}  // namespace

absl::Status CheckCommit(const JobState& state, const CommitRequested& request, ServerTerm term,
                         MonoTime now) {
  const CommitCheckpoint& checkpoint = request.checkpoint;
  if (checkpoint.term > term) {
    return NotNow(checkpoint.step,
                  absl::StrCat("this server is of term ", ToString(term), ", older than term ",
                               ToString(checkpoint.term), " that the node has heard of"));
  }
  const std::optional<MonoTime> until = PublishesUntil(state, request.from, request.round);
  if (request.round != state.round || !until) {
    return absl::AbortedError(absl::StrCat(
        "the checkpoint of step ", checkpoint.step, " is not committed: round ",
        ToString(request.round), " is over for this node; the newest is ", ToString(state.round)));
  }
  if (*until <= now) {
    const auto node = state.nodes.find(request.from);
    return NotNow(
        checkpoint.step,
        absl::StrCat(node == state.nodes.end() ? "this node" : node->second.report.node.name,
                     " lost its lease by long silence and has not reported since"));
  }
  return absl::OkStatus();
}

}  // namespace muster::rendezvous
