#include "rendezvous/hangs/judge/end_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/words.h"
#include "rendezvous/hangs/evidence/silence_meter.h"
#include "rendezvous/hangs/judge/poll.h"

namespace muster::hangs {
namespace {

// The others end soon after the first, as a rule.
constexpr absl::Duration kTimeForTheOthers = absl::Seconds(3);
constexpr double kPatienceAfterARecovery = 3;

// Its agent tells of its process, whatever PyTorch tells of its calls.
bool IsSeen(const RankEvidence& rank) { return rank.life != Life::kUnreachable || rank.pid != 0; }

bool Moves(const RankEvidence& rank) {
  return rank.life != Life::kStopped && rank.silent_for < kSuspiciousSilence;
}

std::string WhatItDoes(const RankEvidence& rank, bool is_alone) {
  return absl::StrCat("pid ", rank.pid, rank.node.empty() ? "" : " on ", rank.node,
                      is_alone ? "" : absl::StrCat(" (rank ", rank.rank, ")"), " is ",
                      rank.doing.empty() ? "running" : rank.doing);
}

}  // namespace

struct EndWatch::Ranks {
  explicit Ranks(const Evidence& evidence) {
    for (const RankEvidence& rank : evidence.ranks) {
      if (!IsSeen(rank)) continue;
      if (rank.life == Life::kEnded) {
        ended.push_back(rank.rank);
        continue;
      }
      left.push_back(&rank);
      move = move || Moves(rank);
      are_busy = are_busy || rank.is_busy;
    }
    std::sort(ended.begin(), ended.end());
    std::sort(left.begin(), left.end(),
              [](const auto* a, const auto* b) { return a->rank < b->rank; });
  }

  std::vector<int> LeftNumbers() const {
    std::vector<int> numbers;
    for (const RankEvidence* rank : left) numbers.push_back(rank->rank);
    return numbers;
  }

  std::string InWords() const {
    const bool is_one = left.size() == 1;
    std::string text =
        absl::StrCat(RanksInWords(ended), ended.size() == 1 ? " has" : " have", " ended; ",
                     RanksInWords(LeftNumbers()), is_one ? " has not: " : " have not: ");
    for (size_t i = 0; i < std::min(left.size(), kRanksNamedMax); ++i) {
      absl::StrAppend(&text, i == 0 ? "" : ", ", WhatItDoes(*left[i], is_one));
    }
    return text;
  }

  std::vector<int> ended;                 // sorted
  std::vector<const RankEvidence*> left;  // by rank
  bool move = false;                      // one of these does
  bool are_busy = false;                  // one of these is
};

void EndWatch::StartRound(Round round, int num_ranks) {
  *this = {};
  round_ = round;
  num_ranks_ = num_ranks;
}

SayRecovery EndWatch::GoesOn(const std::string& text, MonoTime now) {
  limit_ = std::max(limit_, kPatienceAfterARecovery * (now - last_end_));
  told_.clear();
  return {round_, text};
}

std::optional<WatchOrder> EndWatch::OnEnded(int num_ended, MonoTime now) {
  if (num_ended == num_ended_) return std::nullopt;
  num_ended_ = num_ended;
  std::optional<WatchOrder> over;
  if (!told_.empty()) {
    const bool have_all = num_ended_ >= num_ranks_;
    over = GoesOn(
        have_all ? absl::StrCat(RanksInWords(told_), told_.size() == 1 ? " has" : " have",
                                " ended, ", muster::InWords(now - last_end_), " after the others")
                 : absl::StrCat("it goes on: ", subject_),
        now);
  }
  last_end_ = last_move_ = now;
  next_question_ = now + kTimeForTheOthers;
  still_since_.reset();
  return over;
}

MonoTime EndWatch::NextQuestion() const {
  const bool have_some = num_ended_ > 0 && num_ended_ < num_ranks_;
  return have_some ? next_question_ : MonoTime::InfiniteFuture();
}

bool EndWatch::IsTime(const Ranks& ranks, MonoTime now) const {
  if (ranks.move) return false;
  if (still_since_) return now - *still_since_ >= kStillMin && now - last_end_ >= limit_;
  return ranks.ended.size() >= ranks.left.size() &&
         now - last_move_ >= std::max(limit_, kNoticeWhereTheyAreBusy);
}

std::optional<WatchOrder> EndWatch::Listen(const Evidence& evidence, bool is_looked_into,
                                           MonoTime now) {
  if (NextQuestion() == MonoTime::InfiniteFuture()) return std::nullopt;
  const Ranks ranks(evidence);
  const bool are_still = !ranks.move && !ranks.are_busy;
  if (ranks.move) last_move_ = now;
  if (!are_still) {
    still_since_.reset();
  } else if (!still_since_) {
    still_since_ = now;
  }
  const bool is_said = !told_.empty();
  next_question_ = now + (is_said     ? kBetweenQuestionsMax
                          : are_still ? kBetweenQuestions
                                      : std::clamp((now - last_end_) / 4, kBetweenQuestions,
                                                   kBetweenQuestionsMax));
  if (is_said) {
    if (ranks.move || (were_still_ && !are_still)) {
      return GoesOn(absl::StrCat("it goes on: ", subject_), now);
    }
    return std::nullopt;
  }
  // Nothing is said while something is not known of one.
  const bool are_known = static_cast<int>(ranks.ended.size() + ranks.left.size()) == num_ranks_;
  if (is_looked_into || !are_known || ranks.ended.empty() || ranks.left.empty()) {
    return std::nullopt;
  }
  if (!IsTime(ranks, now)) return std::nullopt;
  told_ = ranks.LeftNumbers();
  were_still_ = are_still;
  subject_ = ranks.InWords();
  std::vector<int> named = told_;
  named.resize(std::min(named.size(), kRanksNamedMax));
  return SayNotice{.round = round_, .text = subject_, .named = std::move(named)};
}

}  // namespace muster::hangs
