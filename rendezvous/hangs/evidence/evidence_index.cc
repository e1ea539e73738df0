#include "rendezvous/hangs/evidence/evidence_index.h"

#include <algorithm>

namespace muster::hangs {

EvidenceIndex::EvidenceIndex(const Evidence& evidence) : evidence_(evidence) {
  for (int i = 0; i < static_cast<int>(evidence.ranks.size()); ++i) {
    const RankEvidence& rank = evidence.ranks[i];
    if (rank.round == evidence.round) index_of_rank_.emplace(rank.rank, i);
  }
  by_group_.resize(evidence.groups.size());
  for (const auto& [rank, i] : index_of_rank_) {
    if (evidence.ranks[i].life == Life::kUnreachable) continue;
    for (const GroupRecord& record : evidence.ranks[i].groups) {
      if (record.group >= 0 && record.group < static_cast<int>(by_group_.size())) {
        by_group_[record.group].emplace_back(i, &record);
      }
    }
  }
}

std::vector<int> EvidenceIndex::NumbersOf(const std::vector<int>& indices) const {
  std::vector<int> numbers;
  for (const int i : indices) {
    if (i < static_cast<int>(evidence_.ranks.size())) numbers.push_back(rank(i).rank);
  }
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

bool EvidenceIndex::HasPendingTransfer() const {
  for (const auto& records : by_group_) {
    for (const auto& [i, record] : records) {
      for (const Operation& op : record->operations) {
        if (!op.is_collective() && op.is_pending()) return true;
      }
    }
  }
  return false;
}

const Operation* FindCollective(const GroupRecord& record, int64_t sequence) {
  for (const Operation& op : record.operations) {
    if (op.is_collective() && op.sequence == sequence) return &op;
  }
  return nullptr;
}

const Operation* OldestPending(const GroupRecord& record, bool only_awaited) {
  const Operation* oldest = nullptr;
  for (const Operation& op : record.operations) {
    if (!op.is_collective() || !op.is_pending() || (only_awaited && !op.awaited)) continue;
    if (oldest == nullptr || op.sequence < oldest->sequence) oldest = &op;
  }
  return oldest;
}

}  // namespace muster::hangs
