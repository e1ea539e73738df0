#include "rendezvous/status/stacks.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/btree_map.h"
#include "rendezvous/status/json_parts.h"

namespace muster::status {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(StackGroup, ranks, python, native, no_native)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(RankDoing, rank, pid, doing)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(StacksOfNode, schema, groups, ranks)

namespace {

constexpr char kLeftOut[] = "(more were left out: the answer would be too long)";

// Halves the longest stack; false: there is nothing to be cut.
bool CutLongest(StacksOfNode& stacks) {
  std::vector<std::string>* longest = nullptr;
  for (StackGroup& group : stacks.groups) {
    for (auto* frames : {&group.python, &group.native}) {
      if (longest == nullptr || frames->size() > longest->size()) longest = frames;
    }
  }
  if (longest == nullptr || longest->size() <= 2) return false;
  longest->resize(longest->size() / 2);
  longest->back() = kLeftOut;
  return true;
}

}  // namespace

StacksOfNode MakeStacks(const std::vector<hangs::RankReport>& ranks, size_t bytes_max) {
  StacksOfNode stacks;
  for (const hangs::RankReport& rank : ranks) {
    stacks.groups.push_back({.ranks = {rank.rank},
                             .python = rank.python,
                             .native = rank.frames,
                             .no_native = rank.no_frames});
    stacks.ranks.push_back({.rank = rank.rank, .pid = rank.pid, .doing = rank.doing});
  }
  stacks.groups = MergeGroups({stacks});
  while (ToJson(stacks).size() > bytes_max && CutLongest(stacks)) {
  }
  while (ToJson(stacks).size() > bytes_max && !stacks.ranks.empty()) stacks.ranks.pop_back();
  while (ToJson(stacks).size() > bytes_max && !stacks.groups.empty()) stacks.groups.pop_back();
  return stacks;
}

std::string ToJson(const StacksOfNode& stacks) { return ToJsonText(stacks); }

absl::StatusOr<StacksOfNode> ParseStacks(absl::string_view json) {
  return FromJsonText<StacksOfNode>(json, "the stacks", kStacksSchema);
}

std::vector<StackGroup> MergeGroups(const std::vector<StacksOfNode>& nodes) {
  using Stack = std::tuple<std::vector<std::string>, std::vector<std::string>, std::string>;
  absl::btree_map<Stack, std::vector<int>> by_stack;
  for (const StacksOfNode& node : nodes) {
    for (const StackGroup& group : node.groups) {
      std::vector<int>& ranks = by_stack[{group.python, group.native, group.no_native}];
      ranks.insert(ranks.end(), group.ranks.begin(), group.ranks.end());
    }
  }
  std::vector<StackGroup> merged;
  for (auto& [stack, ranks] : by_stack) {
    if (ranks.empty()) continue;
    std::sort(ranks.begin(), ranks.end());
    merged.push_back({.ranks = std::move(ranks),
                      .python = std::get<0>(stack),
                      .native = std::get<1>(stack),
                      .no_native = std::get<2>(stack)});
  }
  std::stable_sort(merged.begin(), merged.end(), [](const StackGroup& a, const StackGroup& b) {
    if (a.ranks.size() != b.ranks.size()) return a.ranks.size() > b.ranks.size();
    return a.ranks.front() < b.ranks.front();
  });
  return merged;
}

}  // namespace muster::status
