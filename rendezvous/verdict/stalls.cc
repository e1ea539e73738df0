#include "rendezvous/verdict/stalls.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/strings/str_cat.h"
#include "proto/base/words.h"
#include "rendezvous/verdict/diagnosis.h"

namespace muster::verdict {
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

Mismatch JudgeClasses(const EvidenceIndex& index, const Stall& stall,
                      const std::map<Signature, std::vector<int>>& classes,
                      const std::map<Signature, const Operation*>& examples) {
  size_t largest = 0;
  for (const auto& [signature, members] : classes) largest = std::max(largest, members.size());
  int num_largest = 0;
  for (const auto& [signature, members] : classes) num_largest += members.size() == largest;
  Mismatch out{.group = stall.group, .is_tie = num_largest > 1};
  const Operation* majority = nullptr;
  std::vector<std::string> parts;
  bool same_but_for_chain = true;
  const Operation* first = examples.begin()->second;
  for (const auto& [signature, members] : classes) {
    const Operation* op = examples.at(signature);
    const bool is_culprit = out.is_tie || members.size() < largest;
    if (is_culprit) out.culprits.insert(out.culprits.end(), members.begin(), members.end());
    if (!is_culprit) majority = op;
    same_but_for_chain = same_but_for_chain && op->kind == first->kind && op->name == first->name &&
                         op->dtype == first->dtype && op->bytes == first->bytes &&
                         op->peer == first->peer;
    out.same_but_for_size = out.same_but_for_size && op->kind == first->kind &&
                            op->name == first->name && op->dtype == first->dtype &&
                            op->peer == first->peer;
    parts.push_back(absl::StrCat(RanksInWords(index.NumbersOf(members)), " called ",
                                 InWords(*op, index.group(stall.group).name)));
  }
  out.operation = majority == nullptr ? *first : *majority;
  out.is_earlier = same_but_for_chain;
  for (const std::string& part : parts) {
    absl::StrAppend(&out.words, out.words.empty() ? "" : ", ", part);
  }
  if (out.is_earlier) {
    out.words =
        absl::StrCat("the calls before ", InWords(out.operation, index.group(stall.group).name),
                     " differ between its ranks");
  }
  return out;
}

}  // namespace

Signature SignatureOf(const Operation& op) {
  return {op.kind, op.name, op.dtype, op.bytes, op.peer, op.chain};
}

std::vector<Stall> FindStalls(const EvidenceIndex& index) {
  std::vector<Stall> stalls;
  for (int g = 0; g < index.num_groups(); ++g) {
    Stall stall{.group = g};
    const Operation* oldest = nullptr;
    const Operation* awaited = nullptr;
    for (const auto& [i, record] : index.records(g)) {
      const Operation* pending = OldestPending(*record);
      if (pending == nullptr) continue;
      stall.waiting.push_back(i);
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
    stalls.push_back(std::move(stall));
  }
  return stalls;
}

std::vector<Mismatch> FindMismatches(const EvidenceIndex& index, const std::vector<Stall>& stalls) {
  std::vector<Mismatch> mismatches;
  for (const Stall& stall : stalls) {
    for (const int64_t sequence : {stall.oldest - 1, stall.oldest}) {
      std::map<Signature, std::vector<int>> classes;
      std::map<Signature, const Operation*> examples;
      for (const auto& [i, record] : index.records(stall.group)) {
        const Operation* op = FindCollective(*record, sequence);
        if (op == nullptr) continue;
        classes[SignatureOf(*op)].push_back(i);
        examples[SignatureOf(*op)] = op;
      }
      if (classes.size() < 2) continue;
      mismatches.push_back(JudgeClasses(index, stall, classes, examples));
      break;
    }
  }
  return mismatches;
}

}  // namespace muster::verdict
