#include "worker_runtime/comm/reduce_kernels.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "muster/sixteen_bits.h"
#include "proto/base/status_macros.h"

namespace muster::comm {
namespace {

template <typename T>
T Sum(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
  } else {
    return a + b;
  }
}

template <typename T>
void CombineAs(ReduceOp op, void* out_bytes, const void* a_bytes, const void* b_bytes,
               int64_t count) {
  T* out = static_cast<T*>(out_bytes);
  const T* a = static_cast<const T*>(a_bytes);
  const T* b = static_cast<const T*>(b_bytes);
  switch (op) {
    case ReduceOp::kSum:
      for (int64_t i = 0; i < count; ++i) out[i] = Sum(a[i], b[i]);
      return;
    case ReduceOp::kMax:
      for (int64_t i = 0; i < count; ++i) out[i] = a[i] < b[i] ? b[i] : a[i];
      return;
    case ReduceOp::kMin:
      for (int64_t i = 0; i < count; ++i) out[i] = b[i] < a[i] ? b[i] : a[i];
      return;
  }
}

class TreeCombiner {
 public:
  TreeCombiner(DType dtype, ReduceOp op, absl::Span<const LeafRange> ranges,
               absl::Span<void* const> roots, int64_t count)
      : dtype_(dtype), op_(op), ranges_(ranges), roots_(roots), count_(count) {}

  // The buffer that holds the sum of `subtree`; takes contributions from left to right.
  void* Take(LeafRange subtree) {
    MUSTER_CHECK(next_ < ranges_.size());
    if (ranges_[next_] == subtree) return roots_[next_++];
    const int64_t middle = subtree.begin + SumTreeSplit(subtree.end - subtree.begin);
    void* left = Take({subtree.begin, middle});
    const void* right = Take({middle, subtree.end});
    Accumulate(dtype_, op_, left, right, count_);
    return left;
  }

 private:
  const DType dtype_;
  const ReduceOp op_;
  const absl::Span<const LeafRange> ranges_;
  const absl::Span<void* const> roots_;
  const int64_t count_;
  size_t next_ = 0;
};

}  // namespace

DType AccumulationType(DType dtype) {
  return dtype == DType::kBf16 || dtype == DType::kF16 ? DType::kF32 : dtype;
}

void Combine(DType dtype, ReduceOp op, void* out, const void* a, const void* b, int64_t count) {
  switch (dtype) {
    case DType::kF64:
      return CombineAs<double>(op, out, a, b, count);
    case DType::kF32:
      return CombineAs<float>(op, out, a, b, count);
    case DType::kI64:
      return CombineAs<int64_t>(op, out, a, b, count);
    case DType::kI32:
      return CombineAs<int32_t>(op, out, a, b, count);
    case DType::kU8:
      return CombineAs<uint8_t>(op, out, a, b, count);
    case DType::kBf16:
    case DType::kF16:
      MUSTER_CHECK(dtype == AccumulationType(dtype));
  }
}

void Accumulate(DType dtype, ReduceOp op, void* into, const void* from, int64_t count) {
  Combine(dtype, op, into, into, from, count);
}

void Widen(DType dtype, void* wide, const void* narrow, int64_t count) {
  if (count == 0) return;
  if (AccumulationType(dtype) == dtype) {
    std::memcpy(wide, narrow, count * SizeOf(dtype));
    return;
  }
  float* out = static_cast<float*>(wide);
  const uint16_t* in = static_cast<const uint16_t*>(narrow);
  if (dtype == DType::kBf16) {
    for (int64_t i = 0; i < count; ++i) out[i] = FromBf16(in[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = FromF16(in[i]);
  }
}

void Narrow(DType dtype, void* narrow, const void* wide, int64_t count) {
  if (count == 0) return;
  if (AccumulationType(dtype) == dtype) {
    std::memcpy(narrow, wide, count * SizeOf(dtype));
    return;
  }
  uint16_t* out = static_cast<uint16_t*>(narrow);
  const float* in = static_cast<const float*>(wide);
  if (dtype == DType::kBf16) {
    for (int64_t i = 0; i < count; ++i) out[i] = ToBf16(in[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = ToF16(in[i]);
  }
}

std::vector<LeafRange> OrderedContributions(int size, int64_t leaves_per_rank) {
  std::vector<LeafRange> out;
  for (int rank = 0; rank < size; ++rank) {
    const LeafRange own{rank * leaves_per_rank, (rank + 1) * leaves_per_rank};
    for (const LeafRange& range : CoverWithSubtrees(own, size * leaves_per_rank)) {
      out.push_back(range);
    }
  }
  return out;
}

int64_t NumContributionsBefore(int rank, int size, int64_t leaves_per_rank) {
  int64_t total = 0;
  for (int r = 0; r < rank; ++r) {
    const LeafRange own{r * leaves_per_rank, (r + 1) * leaves_per_rank};
    total += static_cast<int64_t>(CoverWithSubtrees(own, size * leaves_per_rank).size());
  }
  return total;
}

int64_t MostContributions(int size, int64_t leaves_per_rank) {
  int64_t most = 0;
  for (int rank = 0; rank < size; ++rank) {
    const LeafRange own{rank * leaves_per_rank, (rank + 1) * leaves_per_rank};
    const size_t num_own = CoverWithSubtrees(own, size * leaves_per_rank).size();
    most = std::max(most, static_cast<int64_t>(num_own));
  }
  return most;
}

void CombineByTree(DType dtype, ReduceOp op, absl::Span<const LeafRange> ranges,
                   absl::Span<void* const> roots, int64_t count) {
  MUSTER_CHECK(ranges.size() == roots.size() && !ranges.empty());
  TreeCombiner(dtype, op, ranges, roots, count).Take({0, ranges.back().end});
}

}  // namespace muster::comm
