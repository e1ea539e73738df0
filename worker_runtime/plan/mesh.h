// The dimensions over which the ranks of a job lie, and which ranks exchange with which.
//
// Threads: pure.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/plan.h"

namespace muster::plan {

inline constexpr int kNone = -1;

// The outermost comes first. Ranks are neighbours along the innermost.
enum class Dimension : uint8_t {
  kPipeline,   // places of the pipeline, each of which has a stage, or several in turn (ScheduleOf)
  kReplica,    // ranks with the same shards
  kShard,      // ranks with other parts of the states
  kSecondary,  // of those the neighbours that share parameters between two uses (hpZ)
  kTensor,     // ranks that compute a layer together, with parts of its matrices (TensorRanks)
};
inline constexpr int kNumDimensions = 5;

// A set of dimensions.
class Dimensions {
 public:
  constexpr Dimensions(std::initializer_list<Dimension> all) {
    for (const Dimension one : all) bits_ |= Bit(one);
  }
  constexpr bool Has(Dimension one) const { return (bits_ & Bit(one)) != 0; }
  constexpr void Remove(Dimension one) { bits_ &= ~Bit(one); }
  friend auto operator<=>(const Dimensions&, const Dimensions&) = default;

 private:
  static constexpr uint32_t Bit(Dimension one) { return 1U << static_cast<unsigned>(one); }
  uint32_t bits_ = 0;
};

inline constexpr Dimensions kWorld = {Dimension::kPipeline, Dimension::kReplica, Dimension::kShard,
                                      Dimension::kSecondary, Dimension::kTensor};
// Those who train the same stages, each on its own micro-batches.
inline constexpr Dimensions kReplicas = {Dimension::kReplica, Dimension::kShard,
                                         Dimension::kSecondary};
// Those who hold the shards of one whole.
inline constexpr Dimensions kShards = {Dimension::kShard, Dimension::kSecondary};
// Those who hold the same parts of matrices, of any stage.
inline constexpr Dimensions kSameParts = {Dimension::kPipeline, Dimension::kReplica,
                                          Dimension::kShard, Dimension::kSecondary};

// A table of ranks and their coordinates. Ranks count along the innermost dimension first. Replica
// r of all places together works on the micro-batches [r * accumulation, (r + 1) * accumulation) of
// a step, where r is its index along kReplicas.
class Mesh {
 public:
  using Sizes = std::array<int, kNumDimensions>;  // [Dimension]

  Mesh() : Mesh(Sizes{1, 1, 1, 1, 1}) {}
  explicit Mesh(const Sizes& sizes) : sizes_(sizes) {}

  int SizeOf(Dimension one) const { return sizes_[static_cast<size_t>(one)]; }
  int SizeOf(Dimensions along) const;
  int size() const { return SizeOf(kWorld); }
  int places() const { return SizeOf(Dimension::kPipeline); }
  int replicas() const { return SizeOf(kReplicas); }
  int tensor_ranks() const { return SizeOf(Dimension::kTensor); }

  int PlaceOf(int rank) const { return CoordinateOf(rank, Dimension::kPipeline); }
  int CoordinateOf(int rank, Dimension one) const;
  // Its number among RanksOf(rank, along).
  int IndexOf(int rank, Dimensions along) const;
  // The ranks that differ from it along these dimensions alone, and it itself, ascending; and the
  // first of them.
  std::vector<int> RanksOf(int rank, Dimensions along) const;
  int FirstOf(int rank, Dimensions along) const;
  // The rank that has its coordinates, but for this one.
  int Moved(int rank, Dimension one, int coordinate) const;
  // Leaves out those along which there is one rank: groups along equal dimensions are the same
  // ranks.
  Dimensions Spread(Dimensions along) const;
  // Such a group, for people: "stage0", "shards0.1".
  std::string NameOf(int rank, Dimensions along) const;

  friend bool operator==(const Mesh&, const Mesh&) = default;

 private:
  int StepOf(Dimension one) const;  // from a rank to the next along it

  Sizes sizes_;
};

// Ranks that hold a state together.
struct Shards {
  int group = kNone;  // of Program::groups
  int rank = 0;       // of this one in it
  int size = 1;
  friend bool operator==(const Shards&, const Shards&) = default;

  // Blocks of the largest shard of so many.
  int64_t LargestOf(int64_t blocks) const { return (blocks + size - 1) / size; }
  // The blocks of all shards of so many, with the padding that makes shards alike.
  int64_t PaddedOf(int64_t blocks) const { return LargestOf(blocks) * size; }
};

// The mesh of so many ranks, of which a pipeline has `places`: 1 where there is none.
//
// Errors: kInvalidArgument: places, plan.tensor_ranks, plan.shard_ranks or
// plan.gathering.secondary_ranks do not divide what they are part of; names the field.
absl::StatusOr<Mesh> MeshOf(const Plan& plan, int places, int world_size);

}  // namespace muster::plan
