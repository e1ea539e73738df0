#include "rendezvous/verdict/last_calls.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/words.h"
#include "rendezvous/verdict/diagnosis.h"
#include "rendezvous/verdict/stalls.h"

namespace muster::verdict {
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

bool IsSameCall(const SameCall& a, const SameCall& b) {
  return a.label == b.label && a.ranks == b.ranks && a.operation.sequence == b.operation.sequence &&
         SignatureOf(a.operation) == SignatureOf(b.operation);
}

// Without what has been said of differences.
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

std::string InWords(const AbortReport& report) {
  if (report.last.empty()) return "";
  const bool is_one = report.aborted.size() == 1;
  const std::string aborted = RanksInWords(report.aborted);
  std::string text = absl::StrCat(aborted, is_one ? " has" : " have", " aborted.");
  if (!report.differences.empty()) {
    std::vector<std::string> sides;
    for (const SameCall& side : report.differences) sides.push_back(InWords(side));
    absl::StrAppend(&text, " The calls of the ranks do not fit together, which no wait can heal: ",
                    absl::StrJoin(sides, ", "), ".");
  }
  absl::StrAppend(&text, LastInWords(report));
  if (!report.unknown.empty()) {
    absl::StrAppend(&text, " What ", RanksInWords(report.unknown), " called is not known.");
  }
  absl::StrAppend(&text, " Gloo aborts a rank that receives another size than it expects, so ",
                  aborted, " may be innocent.");
  return text;
}

}  // namespace muster::verdict
