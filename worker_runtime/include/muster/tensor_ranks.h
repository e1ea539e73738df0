// Ranks that compute a layer together, each with a part of its matrices (tensor parallel).
//
//   const TensorRanks ranks = TensorRanks::Of(world->rank(), plan.tensor_ranks);
//   ParameterStore store(DType::kF32, ranks);
//   auto model = Decoder::Create(config, store);  // the same code as without
//
// A matrix is cut by its outputs, or behind that by its inputs: then what the ranks compute of one
// activation are parts of a sum, which they add up.
//
// Threads: pure.
// Source: Shoeybi et al., "Megatron-LM", 2019, section 3
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"

namespace muster {

struct TensorRanks {
  int rank = 0;  // of this one among them
  int size = 1;  // 1: nothing is cut

  // Those of a rank of the world, where `size` neighbours are tensor ranks of each other
  // (Plan::tensor_ranks).
  static TensorRanks Of(int world_rank, int64_t size) {
    return {.rank = static_cast<int>(world_rank % size), .size = static_cast<int>(size)};
  }
  bool is_first() const { return rank == 0; }
  friend bool operator==(const TensorRanks&, const TensorRanks&) = default;
};

// The axis along which tensor ranks cut a parameter.
struct ParameterCut {
  int axis = 0;
  // What lies side by side along it, as queries, keys and values do: each is cut by itself. Their
  // sum is the axis' size. Empty: the axis is one.
  std::vector<int64_t> sections = {};
  friend bool operator==(const ParameterCut&, const ParameterCut&) = default;
};

// Elements that lie side by side in the whole parameter and in a rank's part of it.
struct ElementRun {
  int64_t first = 0;  // in the part
  int64_t first_in_whole = 0;
  int64_t count = 0;
  friend bool operator==(const ElementRun&, const ElementRun&) = default;
};

// What a rank holds of a parameter, or of anything whose sizes are `whole`. Row-major, as that.
class ParameterPart {
 public:
  // Nothing of `cut`, or one rank: the part is the whole. The cut fits (Check).
  ParameterPart(absl::Span<const int64_t> whole, const std::optional<ParameterCut>& cut,
                TensorRanks ranks);

  // Errors: kInvalidArgument: so many ranks do not divide a section, or the sections are not the
  //         axis; says which, and the nearest number that does.
  static absl::Status Check(absl::Span<const int64_t> whole, const ParameterCut& cut,
                            int64_t ranks);

  bool is_cut() const { return is_cut_; }
  int64_t num_elements() const { return num_elements_; }
  // Calls `visit` for the runs of the part's elements [first, first + count), ascending in both.
  void ForEachRun(int64_t first, int64_t count,
                  absl::FunctionRef<void(const ElementRun& run)> visit) const;
  // How many of the part's elements come before element `first_in_whole` of the whole.
  int64_t CountBefore(int64_t first_in_whole) const;

  // Where the part begins if all parts lie one after the other, that of the first rank first.
  int64_t first_among_parts() const { return is_cut_ ? ranks_.rank * num_elements_ : 0; }

 private:
  bool is_cut_ = false;
  TensorRanks ranks_;
  int64_t num_elements_ = 1;
  std::vector<int64_t> sections_;  // in elements of one line of the whole
  int64_t whole_line_ = 0;         // elements from one index before the axis to the next
};

}  // namespace muster
