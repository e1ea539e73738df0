#include "agent/sight/job_diary.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace muster::agent {

Instant NowByBothClocks() { return {MonoNow(), absl::ToUnixMillis(absl::Now())}; }

using status::DiaryEntry;
using status::Spent;

void JobDiary::Begin(DiaryEntry entry, Instant at) {
  has_begun_ = true;
  began_ = accounted_ = at.mono;
  entry.what = status::kBegan;
  Write(entry, at);
  entry = {.what = status::kTurned, .spent = std::string(ToString(spent_))};
  Write(entry, at);
}

bool JobDiary::TurnTo(Spent spent, Instant at) {
  if (!has_begun_ || has_ended_ || spent == spent_) return false;
  Account(at.mono);
  spent_ = spent;
  DiaryEntry entry{.what = status::kTurned, .spent = std::string(ToString(spent))};
  Write(entry, at);
  return true;
}

void JobDiary::Note(DiaryEntry entry, Instant at) {
  counts_.rounds += entry.what == status::kRound ? 1 : 0;
  counts_.failures += entry.what == status::kFailure ? 1 : 0;
  counts_.notices += entry.what == status::kNotice ? 1 : 0;
  counts_.verdicts += entry.what == status::kVerdict ? 1 : 0;
  if (has_begun_ && !has_ended_) Write(entry, at);
}

absl::Duration JobDiary::PauseBetweenSteps(MonoTime now) const {
  return std::max(absl::Seconds(10), (now - began_) / 60);
}

void JobDiary::End(DiaryEntry entry, Instant at) {
  if (!has_begun_ || std::exchange(has_ended_, true)) return;
  Account(at.mono);
  entry.what = status::kEnd;
  if (num_left_out_ > 0) {
    absl::StrAppend(&entry.text, entry.text.empty() ? "" : "; ", num_left_out_,
                    " entries before this one were left out");
  }
  num_lines_ = 0;  // there is always room for the last
  Write(entry, at);
}

absl::Duration JobDiary::SpentOn(Spent spent, MonoTime now) const {
  absl::Duration time = spent_on_[static_cast<size_t>(spent)];
  if (has_begun_ && !has_ended_ && spent == spent_) time += now - accounted_;
  return time;
}

void JobDiary::Account(MonoTime now) {
  spent_on_[static_cast<size_t>(spent_)] += now - accounted_;
  accounted_ = now;
}

void JobDiary::Write(DiaryEntry& entry, Instant at) {
  if (num_lines_ >= status::kDiaryLinesMax) {
    ++num_left_out_;
    return;
  }
  ++num_lines_;
  entry.unix_millis = at.unix_millis;
  entry.after_seconds = absl::ToDoubleSeconds(at.mono - began_);
  if (entry.text.size() > status::kDiaryTextBytesMax) {
    entry.text.resize(status::kDiaryTextBytesMax);
    entry.text += "...";
  }
  write_(ToJsonLine(entry));
}

}  // namespace muster::agent
