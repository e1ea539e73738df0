#include "worker_runtime/plan/mesh.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/plan/field_checks.h"

namespace muster::plan {
namespace {

constexpr Dimension kAll[kNumDimensions] = {Dimension::kPipeline, Dimension::kReplica,
                                            Dimension::kShard, Dimension::kSecondary,
                                            Dimension::kTensor};

absl::Status Refuse(absl::string_view field, int64_t value, absl::string_view what, int64_t whole) {
  return PlanError(field, absl::StrCat(" is ", value, ", which does not divide ", what, ", ", whole,
                                       "; ", NearestDivisors(whole, value), " would"));
}

}  // namespace

int Mesh::SizeOf(Dimensions along) const {
  int size = 1;
  for (const Dimension one : kAll) {
    if (along.Has(one)) size *= SizeOf(one);
  }
  return size;
}

int Mesh::StepOf(Dimension one) const {
  int step = 1;
  for (const Dimension other : kAll) {
    if (other > one) step *= SizeOf(other);
  }
  return step;
}

int Mesh::CoordinateOf(int rank, Dimension one) const { return rank / StepOf(one) % SizeOf(one); }

int Mesh::IndexOf(int rank, Dimensions along) const {
  int index = 0;
  for (const Dimension one : kAll) {
    if (along.Has(one)) index = index * SizeOf(one) + CoordinateOf(rank, one);
  }
  return index;
}

int Mesh::FirstOf(int rank, Dimensions along) const {
  for (const Dimension one : kAll) {
    if (along.Has(one)) rank = Moved(rank, one, 0);
  }
  return rank;
}

std::vector<int> Mesh::RanksOf(int rank, Dimensions along) const {
  std::vector<int> ranks = {FirstOf(rank, along)};
  for (const Dimension one : kAll) {
    if (!along.Has(one)) continue;
    std::vector<int> more;
    for (const int first : ranks) {
      for (int i = 0; i < SizeOf(one); ++i) more.push_back(first + i * StepOf(one));
    }
    ranks = std::move(more);
  }
  return ranks;
}

int Mesh::Moved(int rank, Dimension one, int coordinate) const {
  return rank + (coordinate - CoordinateOf(rank, one)) * StepOf(one);
}

Dimensions Mesh::Spread(Dimensions along) const {
  for (const Dimension one : kAll) {
    if (SizeOf(one) == 1) along.Remove(one);
  }
  return along;
}

std::string Mesh::NameOf(int rank, Dimensions along) const {
  const int place = PlaceOf(rank);
  const int part = CoordinateOf(rank, Dimension::kTensor);
  const std::string of_part = tensor_ranks() == 1 ? "" : absl::StrCat(".t", part);
  const auto is = [&](Dimensions other) { return Spread(other) == Spread(along); };
  if (is(kWorld)) return "world";
  if (tensor_ranks() > 1 && is({Dimension::kTensor})) {
    return absl::StrCat("tensor", place, ".", IndexOf(rank, kReplicas));
  }
  if (is(kReplicas)) return absl::StrCat("stage", place, of_part);
  if (is(kSameParts)) return absl::StrCat("stages", of_part);
  if (is(kShards)) {
    return absl::StrCat("shards", place, ".", CoordinateOf(rank, Dimension::kReplica), of_part);
  }
  if (is({Dimension::kReplica})) {
    return absl::StrCat("replicas", place, ".", IndexOf(rank, kShards), of_part);
  }
  return absl::StrCat("secondary", place, ".",
                      IndexOf(rank, {Dimension::kReplica, Dimension::kShard}), of_part);
}

absl::StatusOr<Mesh> MeshOf(const Plan& plan, int places, int world_size) {
  if (world_size % plan.tensor_ranks != 0) {
    return Refuse("tensor_ranks", plan.tensor_ranks, "the ranks of the job", world_size);
  }
  const auto tensor = static_cast<int>(plan.tensor_ranks);
  const int ranks = world_size / tensor;
  if (places < 1 || ranks % places != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("plan: ", ranks, tensor == 1 ? " ranks" : " groups of tensor ranks",
                     " cannot be divided into ", places, " places of a pipeline"));
  }
  const int replicas = ranks / places;
  if (plan.optimizer.placement != Placement::kShard) return Mesh({places, replicas, 1, 1, tensor});
  const bool of_node = plan.shard_ranks == Plan::kRanksOfNode ||
                       plan.gathering.secondary_ranks == Plan::kRanksOfNode;
  if (of_node) {
    return absl::InvalidArgumentError(
        "plan: it shards over the ranks of a node, and does not say how many these are; "
        "CompletePlan puts their number in");
  }
  const int64_t shards = plan.shard_ranks == 0 ? replicas : plan.shard_ranks;
  if (replicas % shards != 0) {
    return Refuse("shard_ranks", shards, "the ranks that train the same parameters", replicas);
  }
  const int64_t few = plan.gathering.secondary_ranks;
  if (few != 0 && shards % few != 0) {
    return Refuse("gathering.secondary_ranks", few, "the ranks of a shard group", shards);
  }
  const bool has_few = few > 1 && few < shards && plan.parameters.placement == Placement::kShard;
  const auto near = static_cast<int>(has_few ? few : 1);
  const auto all = static_cast<int>(shards);
  return Mesh({places, replicas / all, all / near, near, tensor});
}

}  // namespace muster::plan
