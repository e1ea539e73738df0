#include "rendezvous/hangs/evidence/call_order.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"

namespace muster::hangs {
namespace {

constexpr size_t kDimensionsMax = 8;
constexpr int64_t kNotCounted = -1;
constexpr int kNobody = -1;

// What groups of one dimension have in common: description and size. PyTorch's names are a
// description and what makes them unique, or that alone; the runtime's are the same for all groups
// of a dimension.
using Key = std::pair<std::string, size_t>;

class Dimensions {
 public:
  Dimensions(const EvidenceIndex& index, const std::vector<int>& groups) : index_(index) {
    for (int g = 0; g < index.num_groups(); ++g) ++num_of_name_[index.group(g).name];
    absl::btree_set<Key> wanted;
    const absl::btree_set<int> asked_for(groups.begin(), groups.end());
    for (const int g : asked_for) wanted.insert(KeyOf(index.group(g)));
    for (int g = 0; g < index.num_groups(); ++g) {
      if (!index.group(g).is_gathering && wanted.contains(KeyOf(index.group(g)))) Add(g);
    }
    // One key may cover more dimensions than the ones that are asked for.
    std::erase_if(all_, [&](const Dimension& dimension) {
      return std::none_of(dimension.groups.begin(), dimension.groups.end(),
                          [&](int g) { return asked_for.contains(g); });
    });
  }

  // None: they are too many to be a mesh's.
  size_t size() const { return all_.size() > kDimensionsMax ? 0 : all_.size(); }
  const std::vector<int>& groups(size_t dimension) const { return all_[dimension].groups; }

 private:
  struct Dimension {
    Key key;
    std::vector<int> groups;
    std::vector<bool> has_rank;  // by number
  };

  Key KeyOf(const Group& group) const {
    const size_t space = group.name.rfind(' ');
    std::string description;
    if (space != std::string::npos) {
      description = group.name.substr(0, space);
    } else if (num_of_name_.at(group.name) > 1) {
      description = group.name;
    }
    return {std::move(description), group.members.size()};
  }

  static bool Shares(const Dimension& dimension, const std::vector<int>& members) {
    return std::any_of(members.begin(), members.end(), [&](int member) {
      return member >= 0 && member < static_cast<int>(dimension.has_rank.size()) &&
             dimension.has_rank[member];
    });
  }

  void Add(int group) {
    if (all_.size() > kDimensionsMax) return;
    const Key key = KeyOf(index_.group(group));
    const std::vector<int>& members = index_.group(group).members;
    auto at = std::find_if(all_.begin(), all_.end(), [&](const Dimension& dimension) {
      return dimension.key == key && !Shares(dimension, members);
    });
    if (at == all_.end()) at = all_.insert(all_.end(), {.key = key, .groups = {}, .has_rank = {}});
    at->groups.push_back(group);
    for (const int member : members) {
      if (member < 0) continue;
      if (member >= static_cast<int>(at->has_rank.size())) at->has_rank.resize(member + 1);
      at->has_rank[member] = true;
    }
  }

  const EvidenceIndex& index_;
  absl::btree_map<std::string, int> num_of_name_;
  std::vector<Dimension> all_;
};

// How many calls a rank has made in each dimension.
using Count = std::vector<int64_t>;

// The counts of each rank, by its index; a count that is not known is kNotCounted.
std::vector<Count> CountCalls(const EvidenceIndex& index, const Dimensions& dimensions) {
  std::vector<Count> counts(index.num_ranks(), Count(dimensions.size(), kNotCounted));
  for (size_t d = 0; d < dimensions.size(); ++d) {
    for (const int g : dimensions.groups(d)) {
      for (const int member : index.group(g).members) {
        const auto found = index.indices().find(member);
        if (found != index.indices().end()) counts[found->second][d] = 0;
      }
      for (const auto& [i, record] : index.records(g)) {
        const bool is_counted = record->num_issued != std::numeric_limits<int64_t>::max();
        counts[i][d] = is_counted ? record->num_issued : kNotCounted;
      }
    }
  }
  return counts;
}

bool IsAtMost(const Count& a, const Count& b) {
  return std::equal(a.begin(), a.end(), b.begin(), [](int64_t x, int64_t y) { return x <= y; });
}

// `counts` by their sums: the place of the first that is not at most its successor, with `left_out`
// taken out; kNobody: they are in one order. Counts in one order are in that of their sums, too.
int FirstOutOfOrder(const std::vector<const Count*>& counts, int left_out) {
  int before = kNobody;
  for (int k = 0; k < static_cast<int>(counts.size()); ++k) {
    if (k == left_out) continue;
    if (before != kNobody && !IsAtMost(*counts[before], *counts[k])) return before;
    before = k;
  }
  return kNobody;
}

}  // namespace

std::optional<std::vector<int>> FindRanksOutOfOrder(const EvidenceIndex& index,
                                                    const std::vector<int>& groups,
                                                    const std::vector<int>& ranks) {
  const Dimensions dimensions(index, groups);
  if (dimensions.size() < 2) return std::nullopt;
  const std::vector<Count> counts = CountCalls(index, dimensions);
  std::vector<std::pair<int64_t, int>> by_sum;
  for (const int i : ranks) {
    if (std::find(counts[i].begin(), counts[i].end(), kNotCounted) != counts[i].end()) {
      return std::nullopt;
    }
    by_sum.emplace_back(std::accumulate(counts[i].begin(), counts[i].end(), int64_t{0}), i);
  }
  std::sort(by_sum.begin(), by_sum.end());
  std::vector<const Count*> sorted;
  for (const auto& [sum, i] : by_sum) sorted.push_back(&counts[i]);
  std::vector<int> out;
  const int first = FirstOutOfOrder(sorted, kNobody);
  if (first == kNobody) return out;
  // One of these two has left the order.
  for (const int k : {first, first + 1}) {
    if (FirstOutOfOrder(sorted, k) == kNobody) out.push_back(by_sum[k].second);
  }
  return out;
}

}  // namespace muster::hangs
