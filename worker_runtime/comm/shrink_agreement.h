// How the ranks of a group agree whether to make it by shrinking a former group or from nothing. A
// backend can shrink only if all ranks of the new group take part, with the same list of the ranks
// that are gone.
//
//   ShrinkAgreement agreement(store, {...});
//   agreement.Say(former);                                  // before the ranks meet
//   ...                                                     // they have met
//   MUSTER_ASSIGN_OR_RETURN(decision, agreement.Decide(former));
//   if (decision.shrinks()) {
//     ...                                                   // shrink; give up when
//     agreement.GivenUp() is no longer ok MUSTER_ASSIGN_OR_RETURN(all_have,
//     agreement.Conclude(status));
//   }
//
// Rank 0 decides, twice: whether it is tried, from what the ranks have been, and whether it has
// come off, from how each fared. The others do as it says, so all do the same; who waits for it in
// vain fails at the deadline.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "muster/store.h"
#include "proto/base/mono_time.h"

namespace muster::comm {

// What a rank of the new group was in an earlier one.
struct FormerPlace {
  std::string
      identity;  // of that group: the same on all its ranks, never another's; without spaces
  int rank = 0;
  int size = 1;
  std::string hindrance;  // why it cannot be shrunk there; empty: it can
};

struct ShrinkDecision {
  std::vector<int> without;  // ranks of the former group that are not in the new one, ascending
  std::string reason;
  // Whether the group shrinks; otherwise a new one is made.
  bool shrinks() const { return !without.empty(); }
};

// `places`: by rank of the new group; nothing for ranks that say nothing of an earlier one.
//
// It shrinks if all were in the same group, in the same order, if some of that are gone and at
// least two are left, and nothing hinders any of them. Threads: pure.
ShrinkDecision DecideShrink(absl::Span<const std::optional<FormerPlace>> places);

struct ShrinkAgreementOptions {
  int rank = 0;
  int size = 1;
  std::string group;   // for messages
  std::string prefix;  // of its keys in the store: the same on all ranks, used once
  MonoTime deadline;
  // Ends the waiting when it is no longer ok; any thread.
  std::function<absl::Status()> failure;
};

// One thread at a time.
class ShrinkAgreement {
 public:
  ShrinkAgreement(Store& store, ShrinkAgreementOptions options);

  // What this rank was; nothing: it is new. Called before the ranks meet (Meet): rank 0 waits no
  // longer than a second for it, and takes a rank that says nothing for a new one.
  //
  // Errors: the store's.
  absl::Status Say(const std::optional<FormerPlace>& former);

  // `was_there`: this rank was in a former group. A rank that was not knows the answer: from
  // nothing.
  //
  // Errors: kDeadlineExceeded: rank 0 decided nothing in time; the store's; options.failure's.
  // Cost:   rank 0 sets one key, and reads one for each rank if it was there; others who were there
  // read one.
  absl::StatusOr<ShrinkDecision> Decide(bool was_there);

  // While this rank shrinks, as often as it likes: kCancelled once another rank has failed to. It
  // asks the store about once in a second, and not at all in the first.
  absl::Status GivenUp();

  // Takes how shrinking went on this rank; kCancelled: GivenUp ended it. True if it went well on
  // all ranks; false if it failed on some, and all make the group from nothing.
  //
  // Errors: kDeadlineExceeded: names the ranks that did not say how it went; the store's;
  //         options.failure's.
  // Cost:   a key set and one read; rank 0 reads one for each rank.
  absl::StatusOr<bool> Conclude(const absl::Status& shrunk);

 private:
  std::string Key(absl::string_view what) const;
  std::string RankKey(absl::string_view what, int rank) const;
  absl::Status Set(const std::string& key, const std::string& value);
  absl::StatusOr<std::string> AwaitRankZero(const std::string& key);
  absl::StatusOr<ShrinkDecision> DecideForAll(bool was_there);
  absl::StatusOr<std::string> OutcomeOfAll();

  Store& store_;  // its caller's, which outlives it
  const ShrinkAgreementOptions options_;
  MonoTime next_look_;
};

}  // namespace muster::comm
