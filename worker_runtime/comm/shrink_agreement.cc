#include "worker_runtime/comm/shrink_agreement.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/comm/diagnosis.h"
#include "worker_runtime/comm/store_wait.h"

namespace muster::comm {
namespace {

// What a rank says before the ranks meet is there when they have met; a store that is slow beyond
// that costs the shrinking alone.
constexpr absl::Duration kPlaceTime = absl::Seconds(1);
constexpr absl::Duration kLookInterval = absl::Seconds(1);
// What rank 0 says at its deadline may come a little after that of others.
constexpr absl::Duration kDecisionTime = absl::Seconds(2);

// Values of keys. What follows the first word is for people, but for the ranks behind kShrink.
constexpr char kNew[] = "new";
constexpr char kShrink[] = "shrink ";
constexpr char kRebuild[] = "rebuild ";
constexpr char kLost[] = "lost ";
constexpr char kShrunk[] = "shrunk";

std::string Encode(const std::optional<FormerPlace>& place) {
  if (!place.has_value()) return kNew;
  return absl::StrCat(place->identity, " ", place->rank, " ", place->size, " ", place->hindrance);
}

absl::StatusOr<std::optional<FormerPlace>> DecodePlace(absl::string_view text) {
  if (text == kNew) return std::nullopt;
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits(' ', 3));
  FormerPlace place;
  if (parts.size() != 4 || !absl::SimpleAtoi(parts[1], &place.rank) ||
      !absl::SimpleAtoi(parts[2], &place.size)) {
    return absl::InternalError(absl::StrCat("'", text, "' is not a rank's place in a group"));
  }
  place.identity = parts[0];
  place.hindrance = parts[3];
  return place;
}

std::string Encode(const ShrinkDecision& decision) {
  return decision.shrinks() ? absl::StrCat(kShrink, absl::StrJoin(decision.without, ","))
                            : absl::StrCat(kRebuild, decision.reason);
}

absl::StatusOr<ShrinkDecision> DecodeDecision(absl::string_view text) {
  ShrinkDecision decision;
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, kRebuild)) {
    decision.reason = std::string(rest);
    return decision;
  }
  if (!absl::ConsumePrefix(&rest, kShrink)) {
    return absl::InternalError(absl::StrCat("'", text, "' says neither shrink nor rebuild"));
  }
  decision.reason = "rank 0 says so";
  for (const absl::string_view part : absl::StrSplit(rest, ',')) {
    if (!absl::SimpleAtoi(part, &decision.without.emplace_back())) {
      return absl::InternalError(absl::StrCat("'", rest, "' is not a list of ranks"));
    }
  }
  return decision;
}

ShrinkDecision Rebuild(std::string reason) { return {.without = {}, .reason = std::move(reason)}; }

}  // namespace

ShrinkDecision DecideShrink(absl::Span<const std::optional<FormerPlace>> places) {
  const int size = static_cast<int>(places.size());
  if (size < 2) return Rebuild("one rank has no peer");
  for (int rank = 0; rank < size; ++rank) {
    if (!places[rank].has_value()) return Rebuild(absl::StrCat("rank ", rank, " is new"));
  }
  const FormerPlace& first = *places[0];
  std::vector<int> without;
  int next = 0;  // rank of the former group
  for (int rank = 0; rank < size; ++rank) {
    const FormerPlace& place = *places[rank];
    if (place.identity != first.identity || place.size != first.size) {
      return Rebuild(absl::StrCat("ranks 0 and ", rank, " were not in one group"));
    }
    if (!place.hindrance.empty())
      return Rebuild(absl::StrCat("rank ", rank, ": ", place.hindrance));
    if (place.rank < next || place.rank >= place.size) {
      return Rebuild(absl::StrCat("rank ", rank, " was rank ", place.rank, " of ", place.size,
                                  ", which is out of order"));
    }
    while (next < place.rank) without.push_back(next++);
    ++next;
  }
  while (next < first.size) without.push_back(next++);
  if (without.empty()) return Rebuild("no rank is gone");
  return {.without = without,
          .reason = absl::StrCat("the others of ", first.size, " ranks are all here, in order")};
}

ShrinkAgreement::ShrinkAgreement(Store& store, ShrinkAgreementOptions options)
    : store_(store), options_(std::move(options)) {}

std::string ShrinkAgreement::Key(absl::string_view what) const {
  return absl::StrCat(options_.prefix, "/", what);
}
std::string ShrinkAgreement::RankKey(absl::string_view what, int rank) const {
  return absl::StrCat(options_.prefix, "/", what, rank);
}

absl::Status ShrinkAgreement::Set(const std::string& key, const std::string& value) {
  return store_.Set(key, value, options_.deadline + kDecisionTime);
}

absl::Status ShrinkAgreement::Say(const std::optional<FormerPlace>& former) {
  return Set(RankKey("was", options_.rank), Encode(former));
}

absl::StatusOr<std::string> ShrinkAgreement::AwaitRankZero(const std::string& key) {
  absl::StatusOr<std::string> value =
      WaitUnless(store_, key, options_.deadline + kDecisionTime, options_.failure);
  if (!absl::IsDeadlineExceeded(value.status())) return value;
  return absl::DeadlineExceededError(
      absl::StrCat("rank 0 of ", options_.size, " did not say in time how group ", options_.group,
                   " is made, which rank ", options_.rank, " waited for (", key, ")"));
}

absl::StatusOr<ShrinkDecision> ShrinkAgreement::DecideForAll(bool was_there) {
  if (!was_there) return Rebuild("rank 0 is new");
  std::vector<std::optional<FormerPlace>> places;
  for (int rank = 0; rank < options_.size; ++rank) {
    const absl::StatusOr<std::string> said =
        store_.Wait(RankKey("was", rank), Min(options_.deadline, MonoNow() + kPlaceTime));
    if (absl::IsDeadlineExceeded(said.status())) {
      return Rebuild(absl::StrCat("rank ", rank, " has not said what it was"));
    }
    MUSTER_RETURN_IF_ERROR(said.status());
    MUSTER_ASSIGN_OR_RETURN(places.emplace_back(), DecodePlace(*said));
  }
  return DecideShrink(places);
}

absl::StatusOr<ShrinkDecision> ShrinkAgreement::Decide(bool was_there) {
  if (options_.rank != 0) {
    if (!was_there) return Rebuild(absl::StrCat("rank ", options_.rank, " is new"));
    MUSTER_ASSIGN_OR_RETURN(const std::string said, AwaitRankZero(Key("decision")));
    next_look_ = MonoNow() + kLookInterval;
    return DecodeDecision(said);
  }
  MUSTER_ASSIGN_OR_RETURN(ShrinkDecision decision, DecideForAll(was_there));
  MUSTER_RETURN_IF_ERROR(Set(Key("decision"), Encode(decision)));
  next_look_ = MonoNow() + kLookInterval;
  return decision;
}

absl::Status ShrinkAgreement::GivenUp() {
  if (MonoNow() < next_look_) return absl::OkStatus();
  const absl::StatusOr<std::string> said =
      store_.Wait(Key("given_up"), MonoNow() + kStoreLookAround);
  next_look_ = MonoNow() + kLookInterval;
  return said.ok() ? absl::CancelledError(*said) : absl::OkStatus();
}

absl::StatusOr<std::string> ShrinkAgreement::OutcomeOfAll() {
  std::vector<int> silent;
  std::string failures;
  for (int rank = 0; rank < options_.size; ++rank) {
    const absl::StatusOr<std::string> said =
        WaitUnless(store_, RankKey("shrunk", rank), options_.deadline, options_.failure);
    if (absl::IsDeadlineExceeded(said.status())) {
      silent.push_back(rank);
      continue;
    }
    MUSTER_RETURN_IF_ERROR(said.status());
    if (*said != kShrunk) absl::StrAppend(&failures, failures.empty() ? "" : "; ", *said);
  }
  if (!silent.empty()) {
    return absl::StrCat(kLost, NameRanks(silent, options_.size), " did not say in time how group ",
                        options_.group, " shrank");
  }
  return failures.empty() ? std::string(kShrunk) : absl::StrCat(kRebuild, failures);
}

absl::StatusOr<bool> ShrinkAgreement::Conclude(const absl::Status& shrunk) {
  std::string mine = kShrunk;
  if (absl::IsCancelled(shrunk)) {
    mine = std::string(shrunk.message());  // another's failure, by GivenUp
  } else if (!shrunk.ok()) {
    mine = absl::StrCat("rank ", options_.rank, ": ", shrunk.message());
    // Any failure will do; one of them is as good as another.
    MUSTER_RETURN_IF_ERROR(Set(Key("given_up"), mine));
  }
  MUSTER_RETURN_IF_ERROR(Set(RankKey("shrunk", options_.rank), mine));
  std::string outcome;
  if (options_.rank == 0) {
    MUSTER_ASSIGN_OR_RETURN(outcome, OutcomeOfAll());
    MUSTER_RETURN_IF_ERROR(Set(Key("outcome"), outcome));
  } else {
    MUSTER_ASSIGN_OR_RETURN(outcome, AwaitRankZero(Key("outcome")));
  }
  absl::string_view why = outcome;
  if (absl::ConsumePrefix(&why, kLost)) return absl::DeadlineExceededError(why);
  return outcome == kShrunk;
}

}  // namespace muster::comm
