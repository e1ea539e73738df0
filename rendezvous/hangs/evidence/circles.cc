#include "rendezvous/hangs/evidence/circles.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/strings/str_cat.h"
#include "proto/base/words.h"
#include "rendezvous/hangs/evidence/call_order.h"
#include "rendezvous/hangs/evidence/diagnosis.h"

namespace muster::hangs {
namespace {

bool Holds(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

bool IsAmong(const std::vector<int>& sorted, int value) {
  return std::binary_search(sorted.begin(), sorted.end(), value);
}

std::vector<int> Among(const std::vector<int>& list, const std::vector<int>& sorted) {
  std::vector<int> both;
  std::copy_if(list.begin(), list.end(), std::back_inserter(both),
               [&](int value) { return IsAmong(sorted, value); });
  return both;
}

// The operation of a stall as `rank` has called it; the stall's own where that is not remembered.
const Operation& OperationOf(const EvidenceIndex& index, const Stall& stall, int rank) {
  for (const auto& [i, record] : index.records(stall.group)) {
    if (i != rank) continue;
    if (const Operation* op = OldestPending(*record)) return *op;
  }
  return *stall.operation;
}

std::string InWords(const EvidenceIndex& index, const Stall& stall, int rank) {
  return hangs::InWords(OperationOf(index, stall, rank), index.group(stall.group).name);
}

class Judge {
 public:
  Judge(const EvidenceIndex& index, const std::vector<Stall>& stalls,
        const std::vector<Transfer>& transfers, const WaitGraph& graph, const Circle& circle)
      : index_(index), stalls_(stalls), transfers_(transfers), graph_(graph), circle_(circle) {
    for (const Transfer& transfer : transfers) in_transfers_.insert(transfer.from);
  }

  // Names the ranks that wait in a collective, where another waits for their send or receive.
  CircleBreak WithoutATransfer() const {
    CircleBreak out;
    for (size_t t = 0; t < transfers_.size(); ++t) {
      const Transfer& transfer = transfers_[t];
      const bool is_inside =
          IsAmong(circle_.ranks, transfer.from) && IsAmong(circle_.ranks, transfer.to);
      if (!is_inside || in_transfers_.contains(transfer.to)) continue;
      out.culprits.push_back(transfer.to);
      if (out.transfer != CircleBreak::kNothing) continue;
      out.transfer = static_cast<int>(t);
      out.words = absl::StrCat(
          NameOf(transfer.to), " has gone on to ", WhereIs(transfer.to), " without the ",
          AnswerTo(transfer.operation), " for which ", NameOf(transfer.from), " waits in ",
          hangs::InWords(transfer.operation, index_.group(transfer.group).name));
    }
    return out;
  }

  // The ranks that have not made a call that all ranks have to make, unless they are the most.
  CircleBreak WithoutANewGroup() const {
    for (const int s : circle_.stalls) {
      const Stall& stall = stalls_[s];
      if (stall.operation->name != kNewGroup) continue;
      const std::vector<int> missing = Among(stall.missing, circle_.ranks);
      if (missing.empty() || missing.size() > stall.waiting.size()) continue;
      return {.culprits = missing,
              .words = absl::StrCat(
                  RanksInWords(index_.NumbersOf(missing)), missing.size() == 1 ? " has" : " have",
                  " not called ", InWords(index_, stall, stall.waiting.front()),
                  missing.size() == 1 ? ", and has gone on to " : ", and have gone on to ",
                  WhereIs(missing.front())),
              .stall = s};
    }
    return {};
  }

  // The fewer, where all of them are members of both groups.
  CircleBreak InAnotherOrder() const {
    if (circle_.stalls.size() != 2) return {};
    const Stall* stalls[2] = {&stalls_[circle_.stalls[0]], &stalls_[circle_.stalls[1]]};
    std::vector<int> sides[2];
    for (int side : {0, 1}) sides[side] = Among(stalls[side]->waiting, circle_.ranks);
    if (sides[0].size() == sides[1].size()) return {};
    const int few = sides[0].size() < sides[1].size() ? 0 : 1;
    if (sides[few].empty() || sides[0].size() + sides[1].size() != circle_.ranks.size()) return {};
    for (const Stall* stall : stalls) {
      std::vector<int> members = index_.group(stall->group).members;
      std::sort(members.begin(), members.end());
      for (const int i : circle_.ranks) {
        if (!IsAmong(members, index_.rank(i).rank)) return {};
      }
    }
    const bool is_one = sides[few].size() == 1;
    const std::string theirs = InWords(index_, *stalls[1 - few], sides[1 - few].front());
    const bool call_both = std::all_of(sides[few].begin(), sides[few].end(), [&](int i) {
      return HasCalledAny(i, stalls[1 - few]->group);
    });
    const std::string how =
        call_both
            ? absl::StrCat(is_one ? "it uses" : "they use", " the two groups in the opposite order")
            : absl::StrCat(is_one ? "it has" : "they have", " called nothing in group ",
                           index_.group(stalls[1 - few]->group).name);
    return {.culprits = sides[few],
            .words = absl::StrCat(
                RanksInWords(index_.NumbersOf(sides[few])), is_one ? " waits" : " wait", " in ",
                InWords(index_, *stalls[few], sides[few].front()), " where ",
                RanksInWords(index_.NumbersOf(sides[1 - few])), " wait in ", theirs, ": ", how)};
  }

  // It has to be missing in a group in which others wait: a fact, beside the order of all calls.
  CircleBreak OutOfOrder() const {
    // A rank of a mesh through which all circles go may be the only one in its group that is right.
    const auto out_of_order = FindRanksOutOfOrder(index_, GroupsOf(circle_.stalls), circle_.ranks);
    std::optional<int> found;
    if (!out_of_order) {
      found = graph_.OnlyNodeOfAllCircles(circle_.nodes, index_.num_ranks());
    } else if (out_of_order->size() == 1) {
      found = out_of_order->front();
    }
    if (!found) return {};
    const Stall* missed = nullptr;
    for (const int s : circle_.stalls) {
      const Stall& stall = stalls_[s];
      if (!Holds(stall.missing, *found)) continue;
      if (missed == nullptr || stall.waiting.size() > missed->waiting.size()) missed = &stall;
    }
    if (missed == nullptr) return {};
    return {
        .culprits = {*found},
        .words = absl::StrCat(NameOf(*found), " has not called ",
                              InWords(index_, *missed, missed->waiting.front()), ", in which ",
                              RanksInWords(index_.NumbersOf(missed->waiting)),
                              missed->waiting.size() == 1 ? " waits" : " wait", ", and waits in ",
                              WhereIs(*found), ": without it, no ranks wait in a circle"),
        .is_sure = out_of_order.has_value()};
  }

 private:
  std::string NameOf(int i) const { return absl::StrCat("rank ", index_.rank(i).rank); }
  std::vector<int> GroupsOf(const std::vector<int>& stalls) const {
    std::vector<int> groups;
    for (const int s : stalls) groups.push_back(stalls_[s].group);
    return groups;
  }
  bool HasCalledAny(int i, int group) const {
    const auto& records = index_.records(group);
    return std::any_of(records.begin(), records.end(), [i](const auto& entry) {
      return entry.first == i && entry.second->num_issued > 0;
    });
  }
  // The collective of the circle in which it waits.
  std::string WhereIs(int i) const {
    for (const int s : circle_.stalls) {
      if (Holds(stalls_[s].waiting, i)) return InWords(index_, stalls_[s], i);
    }
    return "another operation";
  }

  const EvidenceIndex& index_;
  const std::vector<Stall>& stalls_;
  const std::vector<Transfer>& transfers_;
  const WaitGraph& graph_;
  const Circle& circle_;
  absl::btree_set<int> in_transfers_;  // ranks that wait in one
};

}  // namespace

std::string AnswerTo(const Operation& transfer) {
  switch (transfer.kind) {
    case OperationKind::kSend:
      return "recv";
    case OperationKind::kRecv:
      return "send";
    default:
      return "send or receive";
  }
}

CircleBreak FindBreak(const EvidenceIndex& index, const std::vector<Stall>& stalls,
                      const std::vector<Transfer>& transfers, const WaitGraph& graph,
                      const Circle& circle) {
  const Judge judge(index, stalls, transfers, graph, circle);
  for (const CircleBreak& found : {judge.WithoutATransfer(), judge.WithoutANewGroup(),
                                   judge.InAnotherOrder(), judge.OutOfOrder()}) {
    if (!found.culprits.empty()) return found;
  }
  return {};
}

}  // namespace muster::hangs
