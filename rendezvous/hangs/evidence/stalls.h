// Finds where ranks wait in collectives, for whom, and where what they have called differs.
//
// Pure. Cost: linear in the operations and members of groups in which somebody waits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "rendezvous/hangs/evidence/evidence.h"
#include "rendezvous/hangs/evidence/evidence_index.h"

namespace muster::hangs {

// What ranks must agree on about one operation.
using Signature = std::tuple<OperationKind, std::string, std::string, int64_t, int, uint64_t>;
Signature SignatureOf(const Operation& operation);
bool IsSameButForSize(const Operation& a, const Operation& b);

// A group in which somebody waits. Ranks are indices.
struct Stall {
  int group = 0;
  int64_t oldest = 0;   // sequence of the oldest that is pending at a rank that runs, if at any
  int64_t awaited = 0;  // of the oldest that a rank waits for; else as `oldest`
  std::vector<int> waiting;
  std::vector<int> missing;  // have not called it
  std::vector<int> queued;   // have called it, but it has not been started there
  bool has_unseen_members = false;
  bool are_numbers_unsure = false;     // of calls: who is missing cannot be told by them
  std::optional<Operation> operation;  // the first that is missing, as a waiting rank called it
};

// A rank that waits in a send or receive. Ranks are indices.
struct Transfer {
  int from = 0;
  int to = 0;  // node of the wait graph: a rank, or one of those behind ranks and stalls
  int group = 0;
  Operation operation;
};

// Ranks have called different things as the same operation of a group. Ranks are indices.
struct Mismatch {
  int group = 0;
  Operation operation;
  std::vector<int> culprits;
  bool is_tie = false;
  bool same_but_for_size = true;
  bool is_earlier = false;  // the operation itself agrees, what came before does not
  std::string words;        // who called what, those at fault first
};

// The stalls, at most one of each group, by group.
std::vector<Stall> FindStalls(const EvidenceIndex& index);
// "rank 0 waits in all_reduce #7 (group dp); the ranks of this group count ..."; empty: they agree.
std::string UnsureNumbersInWords(const EvidenceIndex& index, const std::vector<Stall>& stalls);

// What the members called as the operation that waits, and as the one before it, which those that
// have not come yet have in common with the others. The largest class is right; without one all are
// suspects.
std::vector<Mismatch> FindMismatches(const EvidenceIndex& index, const std::vector<Stall>& stalls);

}  // namespace muster::hangs
