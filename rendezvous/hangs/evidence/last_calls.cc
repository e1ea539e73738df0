#include "rendezvous/hangs/evidence/last_calls.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/words.h"
#include "rendezvous/hangs/evidence/diagnosis.h"
#include "rendezvous/hangs/evidence/stalls.h"

namespace muster::hangs {
namespace {

// Those of the most ranks first, and not too many.
std::vector<SameCall> Sorted(std::vector<SameCall> calls) {
  for (SameCall& call : calls) std::sort(call.ranks.begin(), call.ranks.end());
  std::stable_sort(calls.begin(), calls.end(), [](const SameCall& a, const SameCall& b) {
    return a.ranks.size() > b.ranks.size();
  });
  if (calls.size() > kSameCallsMax) calls.resize(kSameCallsMax);
  return calls;
}

template <typename Key>
void Add(const Key& key, const Call& call, const RankCalls& rank, std::map<Key, SameCall>& out) {
  const auto [same, is_new] = out.try_emplace(key, SameCall{call.label, call.operation, {}, {}});
  same->second.ranks.push_back(rank.rank);
  same->second.age = std::max(same->second.age, rank.age);
}

template <typename Key>
std::vector<SameCall> Values(std::map<Key, SameCall> calls) {
  std::vector<SameCall> out;
  for (auto& [key, call] : calls) out.push_back(std::move(call));
  return Sorted(std::move(out));
}

std::vector<SameCall> FindLast(const std::vector<RankCalls>& ranks) {
  using Key = std::tuple<bool, std::string, int64_t, Signature>;
  std::map<Key, SameCall> last;
  for (const RankCalls& rank : ranks) {
    if (rank.calls.empty()) continue;
    const Call& call = rank.calls.back();
    const bool is_old = rank.age > absl::ZeroDuration();
    Add(Key(is_old, call.group, call.operation.sequence, SignatureOf(call.operation)), call, rank,
        last);
  }
  std::vector<SameCall> out = Values(std::move(last));
  std::stable_partition(out.begin(), out.end(),
                        [](const SameCall& call) { return call.age == absl::ZeroDuration(); });
  return out;
}

std::vector<SameCall> FindDifferences(const std::vector<RankCalls>& ranks) {
  using Sides = std::map<Signature, SameCall>;
  std::map<std::string, std::map<int64_t, Sides>> groups;
  for (const RankCalls& rank : ranks) {
    for (const Call& call : rank.calls) {
      Add(SignatureOf(call.operation), call, rank, groups[call.group][call.operation.sequence]);
    }
  }
  Sides most;
  size_t most_ranks = 0;
  for (auto& [group, calls] : groups) {
    const auto first = std::find_if(calls.begin(), calls.end(),
                                    [](const auto& entry) { return entry.second.size() > 1; });
    if (first == calls.end()) continue;
    size_t num_ranks = 0;
    for (const auto& [signature, side] : first->second) num_ranks += side.ranks.size();
    if (num_ranks <= most_ranks) continue;
    most_ranks = num_ranks;
    most = std::move(first->second);
  }
  return Values(std::move(most));
}

std::string InWords(const SameCall& call) {
  const std::string what = InWords(call.operation, call.label);
  if (call.age == absl::ZeroDuration()) {
    return absl::StrCat(RanksInWords(call.ranks), " called ", what);
  }
  return absl::StrCat(RanksInWords(call.ranks), " had called ", what, " when asked ",
                      muster::InWords(call.age), " earlier");
}

bool AreSameButForSize(const std::vector<SameCall>& sides) {
  const Operation& first = sides.front().operation;
  return std::all_of(sides.begin(), sides.end(), [&](const SameCall& side) {
    const Operation& op = side.operation;
    return op.kind == first.kind && op.name == first.name && op.dtype == first.dtype &&
           op.peer == first.peer;
  });
}

std::vector<int> Sorted(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

// `right` are the most.
AbortBlame BlameOf(const std::vector<const SameCall*>& wrong, const SameCall& right) {
  AbortBlame out;
  std::vector<std::string> parts;
  for (const SameCall* side : wrong) {
    out.at_fault.insert(out.at_fault.end(), side->ranks.begin(), side->ranks.end());
    parts.push_back(InWords(*side));
  }
  out.at_fault = Sorted(std::move(out.at_fault));
  out.words = absl::StrCat(absl::StrJoin(parts, ", "), " where ", InWords(right));
  return out;
}

AbortBlame NobodyKnown(const std::vector<SameCall>& sides) {
  std::vector<std::string> parts;
  for (const SameCall& side : sides) parts.push_back(InWords(side));
  return {
      .at_fault = {},
      .words = absl::StrCat(absl::StrJoin(parts, ", "), ": which of them is right cannot be told")};
}

// The aborted ranks whose call is on no side.
std::vector<int> AbortedElsewhere(const AbortReport& report) {
  std::vector<int> out;
  for (const int rank : report.aborted) {
    const bool has_side = std::any_of(
        report.differences.begin(), report.differences.end(), [rank](const SameCall& side) {
          return std::binary_search(side.ranks.begin(), side.ranks.end(), rank);
        });
    if (!has_side) out.push_back(rank);
  }
  return out;
}

// Everybody but those who have aborted called one and the same.
AbortBlame BlameOfOneThatCalledLess(const AbortReport& report) {
  const SameCall* others = nullptr;
  for (const SameCall& call : report.last) {
    if (call.age > absl::ZeroDuration()) continue;
    if (others != nullptr) return {};
    others = &call;
  }
  const bool all_are_known = report.unknown.empty() || report.unknown == report.aborted;
  if (others == nullptr || others->ranks.size() <= report.aborted.size() || !all_are_known) {
    return {};
  }
  Operation operation = others->operation;
  const int64_t bytes = std::exchange(operation.bytes, 0);
  operation.dtype.clear();
  return {.at_fault = report.aborted,
          .words = absl::StrCat(RanksInWords(report.aborted), " called ",
                                InWords(operation, others->label), " with less than the ", bytes,
                                " bytes of ", RanksInWords(others->ranks))};
}

bool IsSameCall(const SameCall& a, const SameCall& b) {
  return a.label == b.label && a.ranks == b.ranks && a.operation.sequence == b.operation.sequence &&
         SignatureOf(a.operation) == SignatureOf(b.operation);
}

// The last calls that are not among the differences, which have been said.
std::string LastInWords(const AbortReport& report) {
  std::vector<std::string> parts;
  for (const SameCall& call : report.last) {
    const bool is_said = std::any_of(report.differences.begin(), report.differences.end(),
                                     [&](const SameCall& side) { return IsSameCall(side, call); });
    if (!is_said) parts.push_back(InWords(call));
  }
  if (parts.empty()) return "";
  return absl::StrCat(" Last calls: ", absl::StrJoin(parts, "; "), ".");
}

}  // namespace

AbortReport CompareLastCalls(std::vector<int> aborted, int world_size,
                             const std::vector<RankCalls>& ranks) {
  std::sort(aborted.begin(), aborted.end());
  AbortReport out{.aborted = std::move(aborted),
                  .last = FindLast(ranks),
                  .differences = FindDifferences(ranks),
                  .unknown = {}};
  absl::btree_set<int> known;
  for (const RankCalls& rank : ranks) {
    if (!rank.calls.empty()) known.insert(rank.rank);
  }
  for (int rank = 0; rank < world_size; ++rank) {
    if (!known.contains(rank)) out.unknown.push_back(rank);
  }
  return out;
}

bool IsOfSize(absl::string_view last_output) {
  return absl::StrContains(last_output, "Received data size doesn't match expected size") ||
         absl::StrContains(last_output, "op.preamble.length <= op.nbytes");
}

AbortBlame FindBlame(const AbortReport& report, bool is_of_size) {
  std::vector<SameCall> sides = report.differences;  // those of the most ranks first
  if (sides.empty()) return is_of_size ? BlameOfOneThatCalledLess(report) : AbortBlame();
  if (sides.size() == 1) return {};
  if (sides.size() == 2 && AreSameButForSize(sides)) {
    SameCall& less = sides[sides[0].operation.bytes < sides[1].operation.bytes ? 0 : 1];
    const std::vector<int> more = AbortedElsewhere(report);
    less.ranks.insert(less.ranks.end(), more.begin(), more.end());
    less.ranks = Sorted(std::move(less.ranks));
    if (sides[0].ranks.size() < sides[1].ranks.size()) std::swap(sides[0], sides[1]);
  }
  if (sides[0].ranks.size() == sides[1].ranks.size()) return NobodyKnown(sides);
  std::vector<const SameCall*> wrong;
  for (size_t i = 1; i < sides.size(); ++i) wrong.push_back(&sides[i]);
  return BlameOf(wrong, sides[0]);
}

std::string InWords(const AbortReport& report) {
  if (report.last.empty()) return "";
  const bool is_one = report.aborted.size() == 1;
  const std::string aborted = RanksInWords(report.aborted);
  const AbortBlame blame = FindBlame(report, /*is_of_size=*/false);
  const bool is_other = std::none_of(report.aborted.begin(), report.aborted.end(), [&](int rank) {
    return std::binary_search(blame.at_fault.begin(), blame.at_fault.end(), rank);
  });
  const std::string has_aborted = absl::StrCat(aborted, is_one ? " has" : " have", " aborted");
  std::string text;
  if (!blame.at_fault.empty()) {
    text = absl::StrCat(blame.words, ", which no wait can heal: ", has_aborted);
    if (is_other) absl::StrAppend(&text, " and ", is_one ? "is" : "are", " not at fault");
    absl::StrAppend(&text, ".");
  } else {
    text = absl::StrCat(has_aborted, ".");
    if (!blame.words.empty()) {
      absl::StrAppend(&text,
                      " The calls of the ranks do not fit together, which no wait can heal: ",
                      blame.words, ".");
    }
  }
  absl::StrAppend(&text, LastInWords(report));
  if (blame.at_fault.empty() && !report.unknown.empty()) {
    absl::StrAppend(&text, " What ", RanksInWords(report.unknown), " called is not known.");
  }
  return text;
}

void TellWhoEnded(const AbortReport& report, WorkerFailure& failure) {
  const int rank = failure.rank.value();
  if (!std::binary_search(report.aborted.begin(), report.aborted.end(), rank)) return;
  const bool is_of_size = IsOfSize(failure.last_output);
  const AbortBlame blame = FindBlame(report, is_of_size);
  if (!blame.at_fault.empty()) {
    const bool is_own = std::binary_search(blame.at_fault.begin(), blame.at_fault.end(), rank);
    if (!is_own) failure.ended_by = blame.words;
  } else if (is_of_size) {
    absl::StrAppend(&failure.message, failure.message.empty() ? "" : "; ",
                    "Gloo aborts a rank that receives more than it expects, so rank ", rank,
                    " may be innocent");
  }
}

}  // namespace muster::hangs
