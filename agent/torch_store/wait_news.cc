#include "agent/torch_store/wait_news.h"

#include <algorithm>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/base/words.h"

namespace muster::agent {
namespace {

// A client that gave up a wait and closes this soon after has failed for it.
constexpr absl::Duration kFailsWithin = absl::Seconds(10);
constexpr absl::Duration kShortWait = absl::Seconds(3);
constexpr size_t kKeyBytesShown = 120;
constexpr char kInit[] = "init_process_group";

std::string Shown(const std::string& key) {
  const bool cut = key.size() > kKeyBytesShown;
  return absl::StrCat("'", absl::CHexEscape(key.substr(0, kKeyBytesShown)), cut ? "…" : "", "'");
}

// Source: README.md, "Keys".
bool IsOfTheDefaultGroup(const std::string& key) { return absl::StrContains(key, "default_pg"); }

// What a rank does that waits for `key`.
std::string Purpose(const std::string& key) {
  return IsOfTheDefaultGroup(key) ? kInit : "PyTorch's store";
}

}  // namespace

WaitNews::WaitNews(NoticeTimes times, const Attendance& attendance, const Barriers& barriers,
                   Waits& waits)
    : times_(times),
      attendance_(attendance),
      barriers_(barriers),
      waits_(waits),
      of_absent_(times_),
      of_barrier_(times_) {}

void NoticeRhythm::Tell(int num_present, MonoTime since) {
  if (!first_wait_) first_wait_ = since;
  told_present_ = num_present;
}

void NoticeRhythm::GoOn(MonoTime now) {
  next_ = now + interval_;
  interval_ = 2 * interval_;
}

void NoticeRhythm::Note(int num_present, MonoTime now) {
  if (num_present == told_present_) return;
  next_ = std::min(next_, now + times_.first);
  interval_ = times_.repeat;
}

absl::Duration NoticeRhythm::End(MonoTime now) {
  return now - std::exchange(first_wait_, std::nullopt).value_or(now);
}

MonoTime WaitNews::NoticeDue() const {
  if (!is_telling_) return MonoTime::InfiniteFuture();
  const bool is_absent = !attendance_.IsComplete();
  const Waits::Queue& waiting = is_absent ? waits_.held() : waits_.at_barrier();
  if (waiting.empty()) return MonoTime::InfiniteFuture();
  const auto& [since, connection] = *waiting.begin();
  const MonoTime due = since + times_.first;
  if (is_absent) return std::max(due, of_absent_.next());
  const bool goes_on = barrier_key_ == waits_.Of(connection).awaited;
  return goes_on ? std::max(due, of_barrier_.next()) : due;
}

MonoTime WaitNews::NextDeadline() const {
  const MonoTime due = NoticeDue();
  return due.is_infinite() || looked_up_ ? due : due - times_.lookup_lead;
}

bool WaitNews::TakeLookup(MonoTime now) {
  const MonoTime due = NoticeDue();
  if (due.is_infinite() || now < due - times_.lookup_lead) return false;
  return !std::exchange(looked_up_, true);
}

std::optional<TellPeople> WaitNews::TakeNotice(MonoTime now) {
  if (now < NoticeDue()) return std::nullopt;
  const bool is_absent = !attendance_.IsComplete();
  std::optional<TellPeople> notice = is_absent ? OfAbsent(now) : OfBarrier(now);
  (is_absent ? of_absent_ : of_barrier_).GoOn(now);
  looked_up_ = false;
  return notice;
}

TellPeople WaitNews::OfAbsent(MonoTime now) {
  const auto& [since, connection] = *waits_.held().begin();
  const int present = attendance_.NumPresent();
  of_absent_.Tell(present, since);
  return {.text = absl::StrCat(Purpose(waits_.Of(connection).awaited), ": ", present, " of ",
                               attendance_.world_size(), present == 1 ? " ranks is" : " ranks are",
                               " there; waiting for ", attendance_.MissingInWords(), " for ",
                               InWords(now - since))};
}

std::optional<TellPeople> WaitNews::OfBarrier(MonoTime now) {
  const auto [since, connection] = *waits_.at_barrier().begin();
  const std::string& key = waits_.Of(connection).awaited;
  const StoreBarrier* const barrier = barriers_.Find(key);
  if (barrier == nullptr) {  // spoilt: its key holds no number any more, or is one of several
    waits_.LeaveBarrier(connection);
    return std::nullopt;
  }
  if (barrier_key_ != key) {
    of_barrier_ = NoticeRhythm(times_);
    barrier_key_ = key;
    barrier_name_ = barrier->name;
  }
  of_barrier_.Tell(static_cast<int>(barrier->came.size()), since);
  return TellPeople{.text =
                        absl::StrCat("the barrier ", Shown(barrier->name),
                                     " of PyTorch's store: ", ComeInWords(*barrier, attendance_),
                                     " for ", InWords(now - since))};
}

std::optional<TellPeople> WaitNews::NoteArrival(MonoTime now) {
  if (!of_absent_.HasTold() || !is_telling_) return std::nullopt;
  if (!attendance_.IsComplete()) {
    of_absent_.Note(attendance_.NumPresent(), now);
    return std::nullopt;
  }
  return TellPeople{.text =
                        absl::StrCat("all ", attendance_.world_size(),
                                     " ranks are there now, after ", InWords(of_absent_.End(now)))};
}

std::optional<TellPeople> WaitNews::NoteBarrier(MonoTime now) {
  if (!of_barrier_.HasTold() || !is_telling_) return std::nullopt;
  if (const StoreBarrier* const barrier = barriers_.Find(barrier_key_)) {
    of_barrier_.Note(static_cast<int>(barrier->came.size()), now);
    return std::nullopt;
  }
  const absl::Duration waited = of_barrier_.End(now);
  of_barrier_ = NoticeRhythm(times_);
  barrier_key_.clear();
  return TellPeople{.text =
                        absl::StrCat("all ranks have reached the barrier ", Shown(barrier_name_),
                                     " of PyTorch's store after ", InWords(waited))};
}

std::optional<TellPeople> WaitNews::NoteGivenUp(StoreConnection connection, bool only_closes,
                                                MonoTime now) {
  const Waits::Wait& wait = waits_.Of(connection);
  if (!is_telling_ || has_told_end_ || wait.awaited.empty()) return std::nullopt;
  const bool gave_up = wait.is_held ? only_closes && now - wait.since >= times_.first
                                    : now - wait.cancelled_at <= kFailsWithin &&
                                          wait.cancelled_at - wait.since >= kShortWait;
  if (!gave_up) return std::nullopt;
  has_told_end_ = true;
  const absl::Duration waited = (wait.is_held ? now : wait.cancelled_at) - wait.since;
  std::string text =
      absl::StrCat(attendance_.NameOf(connection), " gave up after ", InWords(waited), ": ");
  if (!attendance_.IsComplete()) {
    absl::StrAppend(&text, Purpose(wait.awaited), " needs ", attendance_.world_size(),
                    " ranks, of which ", attendance_.NumPresent(),
                    " came; missing: ", attendance_.MissingInWords());
  } else if (const StoreBarrier* const barrier = barriers_.Find(wait.awaited)) {
    absl::StrAppend(&text, "the barrier ", Shown(barrier->name), " ",
                    NeedsInWords(*barrier, attendance_));
  } else {
    absl::StrAppend(&text, "the key ", Shown(wait.awaited),
                    " of PyTorch's store that it waited for was never set");
  }
  return TellPeople{.is_warning = true, .text = std::move(text)};
}

// --- What the hang watch is told

std::vector<hangs::Gathering> WaitNews::Gatherings(MonoTime now) const {
  if (!is_telling_) return {};
  const bool is_start = !attendance_.IsComplete();
  absl::btree_map<std::string, std::vector<int>> waiting;  // by what is awaited; "" at the start
  for (const auto& [connection, wait] : waits_.all()) {
    if (!wait.GoesOn(now)) continue;
    const std::optional<Rank> rank = attendance_.RankOf(connection);
    if (!rank) continue;
    const bool is_at_start = is_start && IsOfTheDefaultGroup(wait.awaited);
    const bool is_at_barrier = !is_start && barriers_.Find(wait.awaited) != nullptr;
    if (is_at_start) waiting[""].push_back(rank->value());
    if (is_at_barrier) waiting[wait.awaited].push_back(rank->value());
  }
  std::vector<hangs::Gathering> out;
  for (auto& [awaited, ranks] : waiting) {
    if (out.size() == hangs::kGatheringsMax) break;
    if (auto gathering = GatheringAt(awaited, std::move(ranks))) {
      out.push_back(*std::move(gathering));
    }
  }
  return out;
}

std::optional<hangs::Gathering> WaitNews::GatheringAt(const std::string& awaited,
                                                      std::vector<int> waiting) const {
  const bool is_start = !attendance_.IsComplete();
  const StoreBarrier* const barrier = is_start ? nullptr : barriers_.Find(awaited);
  const int world_size = attendance_.world_size();
  if (barrier != nullptr && barrier->needed != world_size) return std::nullopt;
  std::optional<std::vector<int>> missing =
      barrier == nullptr ? attendance_.Missing() : attendance_.Among(barrier->came).Missing();
  if (!missing || missing->empty()) return std::nullopt;
  // A barrier of other processes than one of each rank.
  if (barrier != nullptr &&
      barrier->came.size() + missing->size() != static_cast<size_t>(world_size)) {
    return std::nullopt;
  }
  std::sort(waiting.begin(), waiting.end());
  waiting.erase(std::unique(waiting.begin(), waiting.end()), waiting.end());
  // A second connection of one that has not come itself.
  std::erase_if(waiting, [&](int rank) {
    return std::binary_search(missing->begin(), missing->end(), rank);
  });
  if (waiting.empty()) return std::nullopt;
  return hangs::Gathering{
      .name = is_start ? std::string(kInit)
                       : absl::StrCat("barrier ", Shown(barrier->name), " of PyTorch's store"),
      .is_start = is_start,
      .waiting = std::move(waiting),
      .missing = *std::move(missing)};
}

}  // namespace muster::agent
