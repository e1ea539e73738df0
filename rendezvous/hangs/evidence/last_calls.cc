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

bool IsOld(const Call& call) { return call.age > absl::ZeroDuration(); }

// Calls are the same by group, number and what the ranks are to agree on. Those of ranks that could
// not be asked any more stand apart, where that counts.
using SameCalls = std::map<std::tuple<bool, std::string, int64_t, Signature>, Call>;

void Add(const Call& call, const RankCalls& rank, bool is_old, SameCalls& out) {
  const Operation& op = call.operation;
  Call& same = out.try_emplace({is_old, call.group, op.sequence, SignatureOf(op)},
                               Call{.label = call.label, .operation = op})
                   .first->second;
  same.ranks.push_back(rank.rank);
  same.age = std::max(same.age, rank.age);
}

// Those of the most ranks first, and not too many.
std::vector<Call> Take(SameCalls calls) {
  std::vector<Call> out;
  for (auto& [key, call] : calls) {
    std::sort(call.ranks.begin(), call.ranks.end());
    out.push_back(std::move(call));
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Call& a, const Call& b) { return a.ranks.size() > b.ranks.size(); });
  if (out.size() > kSameCallsMax) out.resize(kSameCallsMax);
  return out;
}

std::vector<Call> FindLast(const std::vector<RankCalls>& ranks) {
  SameCalls last;
  for (const RankCalls& rank : ranks) {
    if (!rank.calls.empty()) Add(rank.calls.back(), rank, rank.age > absl::ZeroDuration(), last);
  }
  std::vector<Call> out = Take(std::move(last));
  std::stable_partition(out.begin(), out.end(), [](const Call& call) { return !IsOld(call); });
  return out;
}

std::vector<Call> FindDifferences(const std::vector<RankCalls>& ranks) {
  std::map<std::string, std::map<int64_t, SameCalls>> groups;
  for (const RankCalls& rank : ranks) {
    for (const Call& call : rank.calls) {
      Add(call, rank, /*is_old=*/false, groups[call.group][call.operation.sequence]);
    }
  }
  SameCalls most;
  size_t most_ranks = 0;
  for (auto& [group, calls] : groups) {
    const auto first = std::find_if(calls.begin(), calls.end(),
                                    [](const auto& entry) { return entry.second.size() > 1; });
    if (first == calls.end()) continue;
    size_t num_ranks = 0;
    for (const auto& [key, side] : first->second) num_ranks += side.ranks.size();
    if (num_ranks <= most_ranks) continue;
    most_ranks = num_ranks;
    most = std::move(first->second);
  }
  return Take(std::move(most));
}

std::string InWords(const Call& call) {
  const std::string what = InWords(call.operation, call.label);
  if (!IsOld(call)) return absl::StrCat(RanksInWords(call.ranks), " called ", what);
  return absl::StrCat(RanksInWords(call.ranks), " had called ", what, " when asked ",
                      muster::InWords(call.age), " earlier");
}

// Adds the aborted ranks whose call is on no side to that of the smaller of two sizes.
void CompleteSizes(const AbortReport& report, std::vector<Call>& sides) {
  if (sides.size() != 2 || !IsSameButForSize(sides[0].operation, sides[1].operation)) return;
  std::vector<int>& less = sides[sides[0].operation.bytes < sides[1].operation.bytes ? 0 : 1].ranks;
  for (const int rank : report.aborted) {
    const bool has_side =
        std::any_of(report.differences.begin(), report.differences.end(), [rank](const Call& side) {
          return std::binary_search(side.ranks.begin(), side.ranks.end(), rank);
        });
    if (!has_side) less.push_back(rank);
  }
  std::sort(less.begin(), less.end());
  if (sides[0].ranks.size() < sides[1].ranks.size()) std::swap(sides[0], sides[1]);
}

// Everybody but those who have aborted called one and the same.
AbortBlame BlameOfOneThatCalledLess(const AbortReport& report) {
  const Call* others = nullptr;
  for (const Call& call : report.last) {
    if (IsOld(call)) continue;
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

// The last calls that are not among the differences, which have been said.
std::string LastInWords(const AbortReport& report) {
  std::vector<std::string> parts;
  for (const Call& call : report.last) {
    const std::string words = InWords(call);
    const bool is_said = std::any_of(report.differences.begin(), report.differences.end(),
                                     [&](const Call& side) { return InWords(side) == words; });
    if (!is_said) parts.push_back(words);
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
  std::vector<Call> sides = report.differences;  // those of the most ranks first
  if (sides.empty() && is_of_size) return BlameOfOneThatCalledLess(report);
  if (sides.size() < 2) return {};
  CompleteSizes(report, sides);
  const bool is_tie = sides[0].ranks.size() == sides[1].ranks.size();
  AbortBlame out;
  std::vector<std::string> parts;
  for (size_t i = is_tie ? 0 : 1; i < sides.size(); ++i) {
    parts.push_back(InWords(sides[i]));
    if (is_tie) continue;
    out.at_fault.insert(out.at_fault.end(), sides[i].ranks.begin(), sides[i].ranks.end());
  }
  std::sort(out.at_fault.begin(), out.at_fault.end());
  out.words =
      absl::StrCat(absl::StrJoin(parts, ", "), is_tie ? ": which of them is right cannot be told"
                                                      : absl::StrCat(" where ", InWords(sides[0])));
  return out;
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
