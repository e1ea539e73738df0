#include "agent/console/line_folding.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::agent {

std::string MakeFoldedPrefix(absl::string_view host, const std::vector<Rank>& ranks) {
  return absl::StrCat("[", host, ":", FormatRanks(ranks), " ×", ranks.size(), "] ");
}

void LineFolder::Add(Rank rank, absl::string_view text, MonoTime now) {
  auto [newest, is_new] = newest_.try_emplace(std::string(text), 0);
  const auto last = last_of_rank_.find(rank);
  // Joining a line older than the rank's last one would change the order of the rank's lines.
  const bool joins = !is_new && (last == last_of_rank_.end() || newest->second > last->second);
  if (joins) {
    std::vector<Rank>& ranks = held_[newest->second - front_number_].line.ranks;
    ranks.insert(std::upper_bound(ranks.begin(), ranks.end(), rank), rank);
  } else {
    newest->second = front_number_ + static_cast<int64_t>(held_.size());
    held_.push_back({{std::string(text), {rank}}, now});
    bytes_held_ += text.size() + sizeof(Held);
  }
  last_of_rank_[rank] = newest->second;
}

bool LineFolder::IsDue(const Held& held, MonoTime now) const {
  return now >= held.first_seen + options_.window || bytes_held_ > options_.bytes_max ||
         static_cast<int>(held.line.ranks.size()) >= num_ranks_;
}

std::vector<FoldedLine> LineFolder::TakeDue(MonoTime now) {
  std::vector<FoldedLine> due;
  while (!held_.empty() && IsDue(held_.front(), now)) due.push_back(TakeFront());
  return due;
}

FoldedLine LineFolder::TakeFront() {
  FoldedLine line = std::move(held_.front().line);
  held_.pop_front();
  bytes_held_ -= line.text.size() + sizeof(Held);
  const auto newest = newest_.find(line.text);
  if (newest->second == front_number_) newest_.erase(newest);
  ++front_number_;
  return line;
}

MonoTime LineFolder::NextDeadline() const {
  return held_.empty() ? MonoTime::InfiniteFuture() : held_.front().first_seen + options_.window;
}

}  // namespace muster::agent
