// Evidence in few words, for tests.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "rendezvous/hangs/evidence/evidence.h"

namespace muster::hangs {

inline constexpr uint64_t kSameChain = 1;

inline Operation AllReduce(int64_t sequence, int64_t bytes = 4096, uint64_t chain = kSameChain) {
  return {.kind = OperationKind::kAllReduce,
          .state = OperationState::kStarted,
          .sequence = sequence,
          .bytes = bytes,
          .dtype = "f32",
          .chain = chain + static_cast<uint64_t>(sequence)};
}

inline Operation Of(OperationKind kind, int64_t sequence, int peer = -1) {
  Operation op = AllReduce(sequence);
  op.kind = kind;
  op.peer = peer;
  return op;
}

inline Operation Done(Operation op) {
  op.state = OperationState::kDone;
  return op;
}

class EvidenceBuilder {
 public:
  explicit EvidenceBuilder(int world_size) {
    evidence_.round = Round(2);
    for (int r = 0; r < world_size; ++r) {
      evidence_.ranks.push_back({.rank = r, .round = Round(2), .tells_waits = true});
    }
  }

  // Returns its index.
  int AddGroup(std::string name, std::vector<int> members) {
    evidence_.groups.push_back({std::move(name), std::move(members)});
    return static_cast<int>(evidence_.groups.size()) - 1;
  }
  int AddWorld() {
    std::vector<int> members;
    for (const RankEvidence& rank : evidence_.ranks) members.push_back(rank.rank);
    return AddGroup("world", std::move(members));
  }

  RankEvidence& rank(int r) { return evidence_.ranks[r]; }

  GroupRecord& Record(int r, int group) {
    for (GroupRecord& record : rank(r).groups) {
      if (record.group == group) return record;
    }
    rank(r).groups.push_back({.group = group});
    return rank(r).groups.back();
  }

  // It called `op` and has gone on.
  EvidenceBuilder& Called(int r, int group, Operation op) {
    GroupRecord& record = Record(r, group);
    if (op.is_collective()) record.num_issued = op.sequence + 1;
    record.operations.push_back(std::move(op));
    return *this;
  }
  // It called `op` and waits for its end.
  EvidenceBuilder& Waits(int r, int group, Operation op) {
    op.awaited = true;
    return Called(r, group, std::move(op));
  }
  EvidenceBuilder& AllWaitBut(const std::vector<int>& others, int group, const Operation& op) {
    for (const int r : evidence_.groups[group].members) {
      bool is_other = false;
      for (const int other : others) is_other = is_other || other == r;
      if (!is_other) Waits(r, group, op);
    }
    return *this;
  }

  Evidence Build() const { return evidence_; }

 private:
  Evidence evidence_;
};

}  // namespace muster::hangs
