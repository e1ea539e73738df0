#include "worker_runtime/plan/bucket_plan.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace muster::plan {
namespace {

// Whole multiples within `bytes`, at least one.
int64_t BlocksWithin(int64_t bytes, const BucketOptions& options) {
  const int64_t block_bytes = kBlockElements * options.bytes_per_element;
  const int64_t blocks = bytes / block_bytes / options.multiple * options.multiple;
  return std::max(blocks, options.multiple);
}

// When a backward pass comes to parameters and has finished them.
class BackwardTimes {
 public:
  BackwardTimes(const UseTrace& trace, absl::Span<const ParameterInfo> parameters)
      : trace_(trace), readiness_(ReadinessOf(trace, static_cast<int>(parameters.size()))) {
    for (const ParameterInfo& parameter : parameters) {
      last_use_.push_back(parameter.frozen ? kBefore : kNever);
      first_use_.push_back(kNever);
    }
    for (size_t i = 0; i < trace.backward_uses.size(); ++i) {
      const int p = trace.backward_uses[i].parameter;
      first_use_[p] = std::min(first_use_[p], static_cast<int>(i));
      last_use_[p] = static_cast<int>(i);
    }
  }

  // Those in [first, end) are finished when the pass comes to what follows their last use.
  bool AreWholeBehindTheirLastUse(int first, int end) const {
    int last = kBefore;
    for (int p = first; p < end; ++p) {
      if (last_use_[p] != kNever) last = std::max(last, last_use_[p]);
    }
    const int next = last + 1;
    if (next >= static_cast<int>(trace_.backward_uses.size())) return true;
    const int finished = trace_.backward_uses[next].finished;
    return std::all_of(readiness_.begin() + first, readiness_.begin() + end, [&](int place) {
      return place < finished || place == static_cast<int>(readiness_.size());
    });
  }

  // Some of [first, end) are used before any of [other_first, other_end).
  bool BeginsBefore(int first, int end, int other_first, int other_end) const {
    return FirstUse(first, end) < FirstUse(other_first, other_end);
  }

  // All of [first, end) are used and finished before `parameter` is for the last time.
  bool EndBefore(int first, int end, int parameter) const {
    for (int p = first; p < end; ++p) {
      if (last_use_[p] >= last_use_[parameter] || readiness_[p] >= readiness_[parameter]) {
        return false;
      }
    }
    return true;
  }

 private:
  static constexpr int kBefore = -1;
  static constexpr int kNever = std::numeric_limits<int>::max();
  int FirstUse(int first, int end) const {
    return *std::min_element(first_use_.begin() + first, first_use_.begin() + end);
  }

  const UseTrace& trace_;
  const std::vector<int> readiness_;
  std::vector<int> first_use_;  // by parameter, an index of backward_uses
  std::vector<int> last_use_;   // by parameter, an index of backward_uses
};

// Buckets from the last parameter to the first.
class ParameterBuckets {
 public:
  ParameterBuckets(absl::Span<const ParameterInfo> parameters, const BlockLayout& layout,
                   const UseTrace& trace, const BucketOptions& options)
      : parameters_(parameters), layout_(layout), options_(options), times_(trace, parameters) {}

  std::vector<Bucket> Plan(BlockRange whole) {
    end_ = whole.end;
    for (int p = static_cast<int>(parameters_.size()); p-- > 0;) {
      const int64_t block = BlockOf(p);
      if (parameters_[p].num_learned() > 0 && whole.Overlaps({block, block + 1})) Add(p);
    }
    // What follows the last use of the last one is of buckets that were cut before it was known.
    while (buckets_.size() > 1 &&
           !times_.AreWholeBehindTheirLastUse(buckets_.back().first_parameter,
                                              buckets_.back().end_parameter)) {
      const int first = buckets_.back().first_parameter;
      buckets_.pop_back();
      buckets_.back().first_parameter = first;
    }
    for (Bucket& bucket : buckets_) {
      bucket.entered = true;
      bucket.blocks.begin = BlockOf(bucket.first_parameter);
    }
    return std::move(buckets_);
  }

 private:
  int64_t BlockOf(int p) const { return layout_.offsets[p] / kBlockElements; }

  void Add(int p) {
    if (buckets_.empty()) return Begin(p, p + 1);
    const int first = buckets_.back().first_parameter;
    const int64_t elements = end_ * kBlockElements - layout_.offsets[p];
    const bool is_full = elements * options_.bytes_per_element > options_.bytes_max;
    if (MayEndAbove(p)) cut_ = first;
    const bool ends = is_full ? cut_ >= 0 : cut_ == first && ComesEarlier(p);
    if (!ends) {
      buckets_.back().first_parameter = p;
      return;
    }
    buckets_.back().first_parameter = cut_;
    end_ = BlockOf(cut_);
    Begin(p, cut_);
  }

  void Begin(int first, int end) {
    buckets_.push_back({.blocks = {end_, end_}, .first_parameter = first, .end_parameter = end});
    cut_ = -1;
  }

  // Whether the last bucket may end as it is, with `p` the first of the next.
  bool MayEndAbove(int p) const {
    const int first = buckets_.back().first_parameter;
    const int behind = buckets_.back().end_parameter;
    const bool is_within_unit = parameters_[p].unit == parameters_[first].unit;
    const bool begins_block = layout_.offsets[first] % kBlockElements == 0;
    return begins_block && times_.AreWholeBehindTheirLastUse(first, behind) &&
           (!is_within_unit || times_.EndBefore(first, behind, p));
  }

  // A unit that comes before this bucket and again behind it, as a table that the head uses, stays
  // long.
  bool ComesEarlier(int p) const {
    const Bucket& last = buckets_.back();
    const int unit = parameters_[p].unit;
    if (unit == parameters_[last.first_parameter].unit) return false;
    int first = p;
    while (first > 0 && parameters_[first - 1].unit == unit) --first;
    return times_.BeginsBefore(first, p + 1, last.first_parameter, last.end_parameter);
  }

  const absl::Span<const ParameterInfo> parameters_;
  const BlockLayout& layout_;
  const BucketOptions& options_;
  const BackwardTimes times_;
  std::vector<Bucket> buckets_;
  int64_t end_ = 0;  // of the last one, in blocks
  int cut_ = -1;     // the last parameter with which the last bucket may begin; -1: none yet
};

}  // namespace

std::vector<Bucket> PlanBuckets(absl::Span<const ParameterInfo> parameters,
                                const BlockLayout& layout, BlockRange whole,
                                const BucketOptions& options) {
  std::vector<Bucket> buckets;
  int64_t most = BlocksWithin(std::min(options.first_bytes, options.bytes_max), options);
  for (int64_t end = whole.end; end > whole.begin;) {
    int64_t blocks = std::min(most, end - whole.begin);
    if (blocks > options.multiple) blocks -= blocks % options.multiple;
    Bucket bucket = {.blocks = {end - blocks, end}};
    const int64_t end_element = end * kBlockElements;
    const auto first_behind =
        std::lower_bound(layout.offsets.begin(), layout.offsets.end(), end_element);
    bucket.end_parameter = static_cast<int>(first_behind - layout.offsets.begin());
    bucket.first_parameter = bucket.end_parameter;
    const int64_t first_element = bucket.blocks.first_element();
    const auto end_of = [&](int p) { return layout.offsets[p] + parameters[p].num_learned(); };
    while (bucket.first_parameter > 0 && end_of(bucket.first_parameter - 1) > first_element) {
      --bucket.first_parameter;
    }
    buckets.push_back(bucket);
    end -= blocks;
    most = BlocksWithin(options.bytes_max, options);
  }
  return buckets;
}

std::vector<Bucket> PlanUnitBuckets(const BlockLayout& layout, BlockRange whole,
                                    const BucketOptions& options) {
  const auto bytes_of = [&](BlockRange blocks) {
    return blocks.num_elements() * options.bytes_per_element;
  };
  std::vector<Bucket> buckets;
  for (size_t u = layout.units.size(); u-- > 0;) {
    const BlockRange unit = layout.units[u];
    if (unit.num_blocks() == 0 || !whole.Overlaps(unit)) continue;
    const bool joins =
        !buckets.empty() && bytes_of(buckets.back().blocks) + bytes_of(unit) <= options.bytes_max;
    if (!joins) buckets.push_back({.blocks = {unit.end, unit.end}});
    buckets.back().blocks.begin = unit.begin;
  }
  const auto parameter_at = [&](int64_t block) {
    const auto found =
        std::lower_bound(layout.offsets.begin(), layout.offsets.end(), block * kBlockElements);
    return static_cast<int>(found - layout.offsets.begin());
  };
  for (Bucket& bucket : buckets) {
    bucket.first_parameter = parameter_at(bucket.blocks.begin);
    bucket.end_parameter = parameter_at(bucket.blocks.end);
  }
  return buckets;
}

std::vector<Bucket> PlanParameterBuckets(absl::Span<const ParameterInfo> parameters,
                                         const BlockLayout& layout, BlockRange whole,
                                         const UseTrace& trace, const BucketOptions& options) {
  return ParameterBuckets(parameters, layout, trace, options).Plan(whole);
}

std::vector<Bucket> PlanFrozenBuckets(absl::Span<const ParameterInfo> parameters,
                                      const BlockLayout& layout, BlockRange whole) {
  std::vector<Bucket> buckets;
  int next = 0;  // parameter
  for (size_t u = 0; u < layout.frozen_units.size(); ++u) {
    const int first = next;
    const auto count = static_cast<int>(parameters.size());
    while (next < count && parameters[next].unit == static_cast<int>(u)) ++next;
    const BlockRange unit = layout.frozen_units[u];
    if (unit.num_blocks() == 0 || !whole.Overlaps(unit)) continue;
    buckets.push_back(
        {.blocks = unit, .first_parameter = first, .end_parameter = next, .frozen = true});
  }
  return buckets;
}

}  // namespace muster::plan
