#include "rendezvous/hangs/evidence/stalls.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/words.h"
#include "rendezvous/hangs/evidence/diagnosis.h"

namespace muster::hangs {
namespace {

void FillMembers(const EvidenceIndex& index, Stall& stall) {
  int64_t first_missing = stall.awaited;
  absl::btree_map<int, const GroupRecord*> records(index.records(stall.group).begin(),
                                                   index.records(stall.group).end());
  for (const int member : index.group(stall.group).members) {
    const auto found = index.indices().find(member);
    if (found == index.indices().end() || index.rank(found->second).life == Life::kUnreachable) {
      stall.has_unseen_members = true;
      continue;
    }
    const auto record = records.find(found->second);
    if (record == records.end() && stall.operation->name == kDestroy) continue;
    const int64_t num_issued = record == records.end() ? 0 : record->second->num_issued;
    if (num_issued <= stall.awaited) {
      stall.missing.push_back(found->second);
      first_missing = std::min(first_missing, std::max(num_issued, stall.oldest));
      continue;
    }
    const Operation* op = FindCollective(*record->second, stall.awaited);
    if (op != nullptr && op->state == OperationState::kIssued) {
      stall.queued.push_back(found->second);
    }
  }
  for (const int i : stall.waiting) {
    const Operation* op = FindCollective(*records.at(i), first_missing);
    if (op == nullptr) continue;
    stall.operation = *op;
    break;
  }
}

// Ranks that called one and the same.
struct Side {
  std::vector<int> numbers;  // sorted
  std::vector<int> indices;
  const Operation* operation = nullptr;
};

// Sides by size, the smallest first, and by their first rank.
std::vector<Side> SidesOf(const EvidenceIndex& index,
                          const std::map<Signature, std::vector<int>>& classes,
                          const std::map<Signature, const Operation*>& examples) {
  std::vector<Side> sides;
  for (const auto& [signature, members] : classes) {
    sides.push_back({index.NumbersOf(members), members, examples.at(signature)});
  }
  std::sort(sides.begin(), sides.end(), [](const Side& a, const Side& b) {
    if (a.indices.size() != b.indices.size()) return a.indices.size() < b.indices.size();
    return a.numbers < b.numbers;
  });
  return sides;
}

// The call has its root where two have another one.
std::string CallInWords(const Side& side, const std::vector<Side>& sides,
                        const std::string& group) {
  const Operation& op = *side.operation;
  const bool is_by_root = std::any_of(sides.begin(), sides.end(), [&](const Side& other) {
    return other.operation->kind == op.kind && other.operation->name == op.name &&
           other.operation->peer != op.peer;
  });
  return is_by_root && op.peer >= 0 ? absl::StrCat(InWords(op, group), " with root ", op.peer)
                                    : InWords(op, group);
}

std::string WhoCalledWhat(const std::vector<Side>& sides, const std::string& group, bool is_tie) {
  std::vector<std::string> parts;
  for (const Side& side : sides) {
    parts.push_back(
        absl::StrCat(RanksInWords(side.numbers), " called ", CallInWords(side, sides, group)));
  }
  const std::string last = std::move(parts.back());
  parts.pop_back();
  const std::string others = absl::StrJoin(parts, ", ");
  return is_tie ? absl::StrCat(others, " and ", last, ": which of them is right cannot be told")
                : absl::StrCat(others, " where ", last);
}

// They agree on the operation, and not on what came before it.
std::string WhoCameAnotherWay(const std::vector<Side>& sides, const std::string& what,
                              bool is_tie) {
  if (is_tie) {
    std::vector<int> all;
    for (const Side& side : sides) {
      all.insert(all.end(), side.numbers.begin(), side.numbers.end());
    }
    std::sort(all.begin(), all.end());
    return absl::StrCat(RanksInWords(all), " differ in the calls before ", what,
                        "; which of them are right cannot be told");
  }
  std::vector<int> few;
  for (size_t i = 0; i + 1 < sides.size(); ++i) {
    few.insert(few.end(), sides[i].numbers.begin(), sides[i].numbers.end());
  }
  std::sort(few.begin(), few.end());
  return absl::StrCat(RanksInWords(few), few.size() == 1 ? " differs" : " differ", " from ",
                      RanksInWords(sides.back().numbers), " in the calls before ", what);
}

Mismatch JudgeClasses(const EvidenceIndex& index, const Stall& stall,
                      const std::map<Signature, std::vector<int>>& classes,
                      const std::map<Signature, const Operation*>& examples) {
  const std::vector<Side> sides = SidesOf(index, classes, examples);
  const Side& largest = sides.back();
  Mismatch out{.group = stall.group,
               .operation = *largest.operation,
               .is_tie = sides[sides.size() - 2].indices.size() == largest.indices.size(),
               .is_earlier = true};
  for (const Side& side : sides) {
    const bool is_culprit = out.is_tie || &side != &largest;
    if (is_culprit) {
      out.culprits.insert(out.culprits.end(), side.indices.begin(), side.indices.end());
    }
    const bool is_same = IsSameButForSize(*side.operation, *largest.operation);
    out.same_but_for_size = out.same_but_for_size && is_same;
    out.is_earlier = out.is_earlier && is_same && side.operation->bytes == largest.operation->bytes;
  }
  const std::string& group = index.group(stall.group).name;
  out.words = out.is_earlier ? WhoCameAnotherWay(sides, InWords(out.operation, group), out.is_tie)
                             : WhoCalledWhat(sides, group, out.is_tie);
  return out;
}

// Whether what `index.rank(i)` was last known to have called may be old: it has not told of its
// calls since it stopped, and those that run may have ended with it what it has as pending.
bool MayBeOld(const EvidenceIndex& index, int i) { return index.rank(i).life != Life::kRunning; }

bool OneThatRunsWaits(const EvidenceIndex& index, int group) {
  for (const auto& [i, record] : index.records(group)) {
    if (!MayBeOld(index, i) && OldestPending(*record) != nullptr) return true;
  }
  return false;
}

// No rank is through before all have called it.
bool NeedsAll(OperationKind kind) {
  return kind == OperationKind::kAllReduce || kind == OperationKind::kAllGather ||
         kind == OperationKind::kReduceScatter || kind == OperationKind::kAllToAll;
}

// A batch of sends and receives takes a number of NCCL's collectives on the ranks that make it, and
// a recorder forgets it in time. Numbers that contradict each other tell of one: a rank is through
// a call that another has not come to, or in which another calls something else.
bool AreNumbersUnsure(const EvidenceIndex& index, int group) {
  if (!index.group(group).is_on_device) return false;
  struct Call {
    Signature signature;
    bool is_done = false;
  };
  std::map<int64_t, Call> calls;
  int64_t last_through = -1;
  for (const auto& [i, record] : index.records(group)) {
    for (const Operation& op : record->operations) {
      if (!op.is_collective()) continue;
      const bool is_done = !op.is_pending();
      const auto [found, is_new] = calls.try_emplace(op.sequence, Call{SignatureOf(op), is_done});
      Call& call = found->second;
      call.is_done = call.is_done || is_done;
      if (call.is_done && call.signature != SignatureOf(op)) return true;
      if (is_done && NeedsAll(op.kind)) last_through = std::max(last_through, op.sequence);
    }
  }
  return std::any_of(index.records(group).begin(), index.records(group).end(),
                     [&](const auto& entry) {
                       return index.rank(entry.first).life == Life::kRunning &&
                              entry.second->num_issued <= last_through;
                     });
}

}  // namespace

bool IsSameButForSize(const Operation& a, const Operation& b) {
  return a.kind == b.kind && a.name == b.name && a.dtype == b.dtype && a.peer == b.peer;
}

Signature SignatureOf(const Operation& op) {
  return {op.kind, op.name, op.dtype, op.bytes, op.peer, op.chain};
}

namespace {

// Whose root is not known may have called what the others have: it is of their side where they have
// one root, and of none where they differ.
void MergeUnknownRoots(std::map<Signature, std::vector<int>>& classes) {
  constexpr size_t kPeer = 4;
  for (auto at = classes.begin(); at != classes.end();) {
    std::vector<std::vector<int>*> same;
    for (auto& [signature, members] : classes) {
      Signature without = signature;
      std::get<kPeer>(without) = -1;
      if (signature != at->first && without == at->first) same.push_back(&members);
    }
    if (same.size() == 1) same[0]->insert(same[0]->end(), at->second.begin(), at->second.end());
    at = same.empty() ? std::next(at) : classes.erase(at);
  }
}

}  // namespace

std::vector<Stall> FindStalls(const EvidenceIndex& index) {
  std::vector<Stall> stalls;
  for (int g = 0; g < index.num_groups(); ++g) {
    Stall stall{.group = g};
    const Operation* oldest = nullptr;
    const Operation* awaited = nullptr;
    const bool only_those_that_run = OneThatRunsWaits(index, g);
    for (const auto& [i, record] : index.records(g)) {
      const Operation* pending = OldestPending(*record);
      if (pending == nullptr) continue;
      stall.waiting.push_back(i);
      if (only_those_that_run && MayBeOld(index, i)) continue;
      if (oldest == nullptr || pending->sequence < oldest->sequence) oldest = pending;
      const Operation* waits = OldestPending(*record, index.rank(i).tells_waits);
      if (waits == nullptr) continue;
      if (awaited == nullptr || waits->sequence < awaited->sequence) awaited = waits;
    }
    if (oldest == nullptr) continue;
    if (awaited == nullptr) awaited = oldest;
    stall.oldest = oldest->sequence;
    stall.awaited = awaited->sequence;
    stall.operation = *awaited;
    FillMembers(index, stall);
    // Another has come through it, and so it waits for nobody that is known.
    const bool is_alone = stall.waiting.size() < index.group(g).members.size();
    if (stall.operation->name == kDestroy && stall.missing.empty() && is_alone) continue;
    stall.are_numbers_unsure = AreNumbersUnsure(index, g);
    if (stall.are_numbers_unsure) {
      stall.missing.clear();
      stall.has_unseen_members = true;
    }
    stalls.push_back(std::move(stall));
  }
  return stalls;
}

std::string UnsureNumbersInWords(const EvidenceIndex& index, const std::vector<Stall>& stalls) {
  for (const Stall& stall : stalls) {
    if (!stall.are_numbers_unsure) continue;
    const std::vector<int> numbers = index.NumbersOf(stall.waiting);
    return absl::StrCat(RanksInWords(numbers), numbers.size() == 1 ? " waits" : " wait", " in ",
                        InWords(*stall.operation, index.group(stall.group).name),
                        "; the ranks of this group count its calls differently, so which of them "
                        "is missing cannot be told");
  }
  return "";
}

std::vector<Mismatch> FindMismatches(const EvidenceIndex& index, const std::vector<Stall>& stalls) {
  std::vector<Mismatch> mismatches;
  for (const Stall& stall : stalls) {
    if (stall.are_numbers_unsure) continue;
    for (const int64_t sequence : {stall.oldest - 1, stall.oldest}) {
      std::map<Signature, std::vector<int>> classes;
      std::map<Signature, const Operation*> examples;
      for (const auto& [i, record] : index.records(stall.group)) {
        const Operation* op = FindCollective(*record, sequence);
        if (op == nullptr) continue;
        classes[SignatureOf(*op)].push_back(i);
        examples[SignatureOf(*op)] = op;
      }
      MergeUnknownRoots(classes);
      if (classes.size() < 2) continue;
      mismatches.push_back(JudgeClasses(index, stall, classes, examples));
      break;
    }
  }
  return mismatches;
}

}  // namespace muster::hangs
