#include "worker_runtime/engine/state_sources.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace muster::engine {
namespace {

struct Coverage {
  std::vector<SourceRange> ranges;
  int64_t missing = 0;
};

// One sweep over the elements: of the ranges that have begun, that of the lowest rank goes on until
// it ends.
Coverage Cover(absl::Span<const StatePart> parts, int64_t step, int64_t num_elements) {
  std::vector<SourceRange> all;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    if (parts[rank].step != step) continue;
    for (const ElementRange& range : parts[rank].ranges) {
      all.push_back({static_cast<int>(rank), range});
    }
  }
  std::sort(all.begin(), all.end(), [](const SourceRange& a, const SourceRange& b) {
    return a.range.begin < b.range.begin;
  });
  using Begun = std::pair<int, int64_t>;  // rank, end
  std::priority_queue<Begun, std::vector<Begun>, std::greater<>> begun;
  Coverage coverage;
  int64_t at = 0;
  size_t next = 0;
  while (at < num_elements) {
    for (; next < all.size() && all[next].range.begin <= at; ++next) {
      begun.emplace(all[next].rank, all[next].range.end);
    }
    while (!begun.empty() && begun.top().second <= at) begun.pop();
    if (begun.empty()) {
      const int64_t after = next < all.size() ? all[next].range.begin : num_elements;
      coverage.missing += std::min(after, num_elements) - at;
      at = after;
      continue;
    }
    const auto [rank, end] = begun.top();
    coverage.ranges.push_back({rank, {at, std::min(end, num_elements)}});
    at = end;
  }
  return coverage;
}

}  // namespace

ElementRange Overlap(ElementRange a, ElementRange b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

std::vector<SourceRange> StateSources::Of(ElementRange wanted) const {
  std::vector<SourceRange> found;
  auto it = std::partition_point(ranges.begin(), ranges.end(), [&](const SourceRange& source) {
    return source.range.end <= wanted.begin;
  });
  for (; it != ranges.end() && it->range.begin < wanted.end; ++it) {
    found.push_back({it->rank, Overlap(it->range, wanted)});
  }
  return found;
}

std::vector<ElementTransfer> TransfersTo(absl::Span<const std::vector<ElementRange>> wanted,
                                         absl::Span<const StatePart> parts,
                                         const StateSources& sources) {
  std::vector<ElementTransfer> transfers;
  for (size_t rank = 0; rank < wanted.size(); ++rank) {
    const int to = static_cast<int>(rank);
    StateSources own;  // what it has itself
    if (parts[rank].step == sources.step) {
      for (const ElementRange& range : parts[rank].ranges) own.ranges.push_back({to, range});
    }
    std::sort(own.ranges.begin(), own.ranges.end(),
              [](const auto& a, const auto& b) { return a.range.begin < b.range.begin; });
    for (const ElementRange& range : wanted[rank]) {
      int64_t at = range.begin;
      const auto ask_others = [&](int64_t until) {
        if (at >= until) return;
        for (const SourceRange& source : sources.Of({at, until})) {
          transfers.push_back({source.rank, to, source.range});
        }
      };
      for (const SourceRange& has : own.Of(range)) {
        ask_others(has.range.begin);
        transfers.push_back({to, to, has.range});
        at = has.range.end;
      }
      ask_others(range.end);
    }
  }
  std::stable_sort(transfers.begin(), transfers.end(),
                   [](const ElementTransfer& a, const ElementTransfer& b) {
                     return a.range.begin < b.range.begin;
                   });
  return transfers;
}

std::vector<int> StateSources::Ranks() const {
  std::set<int> all;
  for (const SourceRange& source : ranges) all.insert(source.rank);
  return {all.begin(), all.end()};
}

absl::StatusOr<StateSources> ChooseSources(absl::Span<const StatePart> parts,
                                           int64_t num_elements) {
  std::set<int64_t, std::greater<>> steps;
  for (const StatePart& part : parts) {
    if (part.step != kNoState) steps.insert(part.step);
  }
  if (steps.empty()) {
    return absl::NotFoundError(
        absl::StrCat("none of ", parts.size(), " ranks has anything of the training's state"));
  }
  int64_t missing_of_newest = 0;
  for (const int64_t step : steps) {
    Coverage coverage = Cover(parts, step, num_elements);
    if (coverage.missing == 0) return StateSources{step, std::move(coverage.ranges)};
    if (step == *steps.begin()) missing_of_newest = coverage.missing;
  }
  return absl::NotFoundError(
      absl::StrCat(parts.size(), " ranks have no whole state together: after step ", *steps.begin(),
                   " they lack ", missing_of_newest, " of ", num_elements, " elements"));
}

}  // namespace muster::engine
