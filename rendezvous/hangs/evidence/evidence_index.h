// Evidence, to be looked up by rank and by group: what Diagnose (diagnosis.h) works with.
//
// A rank has an index, its place in Evidence::ranks, beside its number. Ranks of another round are
// in no list here, and of those out of reach nothing is known but that they are there.
//
// Pure.
#pragma once

#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "rendezvous/hangs/evidence/evidence.h"

namespace muster::hangs {

class EvidenceIndex {
 public:
  // `evidence` outlives this.
  explicit EvidenceIndex(const Evidence& evidence);

  int num_ranks() const { return static_cast<int>(evidence_.ranks.size()); }
  const RankEvidence& rank(int index) const { return evidence_.ranks[index]; }
  // Indices of the round's ranks, by number.
  const absl::btree_map<int, int>& indices() const { return index_of_rank_; }
  // Sorted, each once; what is no rank's index is left out.
  std::vector<int> NumbersOf(const std::vector<int>& indices) const;

  int num_groups() const { return static_cast<int>(by_group_.size()); }
  const Group& group(int group) const { return evidence_.groups[group]; }
  // Records of the ranks that are within reach, with their indices.
  using Records = std::vector<std::pair<int, const GroupRecord*>>;
  const Records& records(int group) const { return by_group_[group]; }
  // Somebody waits in a send or receive.
  bool HasPendingTransfer() const;

 private:
  const Evidence& evidence_;
  absl::btree_map<int, int> index_of_rank_;
  std::vector<Records> by_group_;
};

// nullptr: it is not among those that are remembered.
const Operation* FindCollective(const GroupRecord& record, int64_t sequence);
// nullptr: there is none. `only_awaited`: of those that the program waits for.
const Operation* OldestPending(const GroupRecord& record, bool only_awaited = false);

}  // namespace muster::hangs
