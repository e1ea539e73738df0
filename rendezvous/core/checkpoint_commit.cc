#include "rendezvous/core/checkpoint_commit.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace muster::rendezvous {
namespace {

absl::Status NotNow(int64_t step, const std::string& why) {
  return absl::UnavailableError(absl::StrCat("the checkpoint of step ", step,
                                             " is not committed now: ", why,
                                             "; the one before it stays, and training goes on"));
}

}  // namespace

absl::Status CheckCommit(const JobState& state, const CommitRequested& request,
                         const CommitJudge& judge) {
  const CommitCheckpoint& checkpoint = request.checkpoint;
  if (checkpoint.term > judge.term) {
    return NotNow(checkpoint.step, absl::StrCat("this server is of term ", ToString(judge.term),
                                                ", older than term ", ToString(checkpoint.term),
                                                " that the node has heard of"));
  }
  const bool is_of_round = checkpoint.instance == judge.instance && request.round == state.round;
  if (!is_of_round || !state.in_round.contains(request.from)) {
    const std::string newest = checkpoint.instance != judge.instance
                                   ? std::string("the job has been formed anew")
                                   : absl::StrCat("the newest is ", ToString(state.round));
    return absl::AbortedError(absl::StrCat("the checkpoint of step ", checkpoint.step,
                                           " is not committed: round ", ToString(request.round),
                                           " is over for this node; ", newest));
  }
  const NodeState& node = state.nodes.at(request.from);
  // A lease that was renewed because nobody at all was heard keeps a place, and publishes nothing.
  if (!node.connected || node.lease_expires <= judge.now || node.free_renewals > 0) {
    return NotNow(checkpoint.step, absl::StrCat(node.report.node.name,
                                                " was not heard of for so long that its lease has "
                                                "ended, and has not reported since"));
  }
  return absl::OkStatus();
}

}  // namespace muster::rendezvous
