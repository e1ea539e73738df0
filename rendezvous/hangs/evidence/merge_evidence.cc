#include "rendezvous/hangs/evidence/merge_evidence.h"

#include <algorithm>
#include <vector>

namespace muster::hangs {

int EvidenceMerger::IndexOf(Group group) {
  const auto [found, is_new] =
      index_.try_emplace(std::pair(group.name, group.id), static_cast<int>(merged_.groups.size()));
  if (is_new) {
    merged_.groups.push_back(std::move(group));
    return found->second;
  }
  std::vector<int>& known = merged_.groups[found->second].members;
  if (known == group.members) return found->second;  // of all ranks, as a rule
  // PyTorch's members are told whole or not at all, and not by their place.
  const auto is_whole = [](const std::vector<int>& members) {
    return std::find(members.begin(), members.end(), kUnknownRank) == members.end();
  };
  if (is_whole(group.members) && !is_whole(known)) known = std::move(group.members);
  if (is_whole(known)) return found->second;
  if (known.size() < group.members.size()) known.resize(group.members.size(), kUnknownRank);
  for (size_t i = 0; i < group.members.size(); ++i) {
    if (known[i] == kUnknownRank) known[i] = group.members[i];
  }
  return found->second;
}

void EvidenceMerger::Add(Evidence part) {
  std::vector<int> new_index;
  for (Group& group : part.groups) new_index.push_back(IndexOf(std::move(group)));
  for (RankEvidence& rank : part.ranks) {
    for (GroupRecord& record : rank.groups) {
      const bool is_known = record.group >= 0 && record.group < static_cast<int>(new_index.size());
      record.group = is_known ? new_index[record.group] : -1;
    }
    merged_.ranks.push_back(std::move(rank));
  }
}

}  // namespace muster::hangs
