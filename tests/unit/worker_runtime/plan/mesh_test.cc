#include "worker_runtime/plan/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace muster::plan {
namespace {

using ::muster::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Plan Sharded(int64_t shard_ranks = 0, int64_t secondary_ranks = 0) {
  Plan plan = *PlanPreset("zero-3");
  plan.shard_ranks = shard_ranks;
  plan.gathering.secondary_ranks = secondary_ranks;
  return plan;
}

// Three places, of each two groups of four, of which neighbours are near.
Mesh Deep() { return *MeshOf(Sharded(4, 2), 3, 24); }

TEST(Mesh, CountsRanksAlongTheInnermostDimensionFirst) {
  const Mesh mesh = Deep();
  EXPECT_EQ(mesh, Mesh({3, 2, 2, 2, 1}));
  EXPECT_EQ(mesh.size(), 24);
  EXPECT_EQ(mesh.places(), 3);
  EXPECT_EQ(mesh.replicas(), 8);
  const int rank = 8 + 4 + 2 + 1;
  for (const Dimension one :
       {Dimension::kPipeline, Dimension::kReplica, Dimension::kShard, Dimension::kSecondary}) {
    EXPECT_EQ(mesh.CoordinateOf(rank, one), 1) << static_cast<int>(one);
  }
  EXPECT_EQ(mesh.CoordinateOf(rank, Dimension::kTensor), 0);
  EXPECT_EQ(mesh.IndexOf(rank, kWorld), rank);
  EXPECT_EQ(mesh.IndexOf(rank, kReplicas), 7);
  EXPECT_EQ(mesh.IndexOf(rank, kShards), 3);
  EXPECT_EQ(mesh.IndexOf(rank, {}), 0);
  EXPECT_EQ(mesh.Moved(rank, Dimension::kPipeline, 2), 23);
  EXPECT_EQ(mesh.Moved(rank, Dimension::kReplica, 0), 11);
}

TEST(Mesh, HasAGroupForEachSetOfDimensions) {
  const Mesh mesh = Deep();
  EXPECT_THAT(mesh.RanksOf(13, kReplicas), ElementsAre(8, 9, 10, 11, 12, 13, 14, 15));
  EXPECT_THAT(mesh.RanksOf(13, kShards), ElementsAre(12, 13, 14, 15));
  EXPECT_THAT(mesh.RanksOf(13, {Dimension::kSecondary}), ElementsAre(12, 13));
  EXPECT_THAT(mesh.RanksOf(13, {Dimension::kReplica}), ElementsAre(9, 13));
  EXPECT_THAT(mesh.RanksOf(13, {Dimension::kPipeline}), ElementsAre(5, 13, 21));
  EXPECT_THAT(mesh.RanksOf(13, {Dimension::kPipeline, Dimension::kSecondary}),
              ElementsAre(4, 5, 12, 13, 20, 21));
  EXPECT_EQ(mesh.FirstOf(13, {Dimension::kPipeline}), 5);
  EXPECT_EQ(mesh.NameOf(13, kWorld), "world");
  EXPECT_EQ(mesh.NameOf(13, kReplicas), "stage1");
  EXPECT_EQ(mesh.NameOf(13, kShards), "shards1.1");
  EXPECT_EQ(mesh.NameOf(13, {Dimension::kReplica}), "replicas1.1");
  EXPECT_EQ(mesh.NameOf(13, {Dimension::kSecondary}), "secondary1.2");
}

TEST(Mesh, HasTensorRanksInnermost) {
  Plan plan = Sharded(2);
  plan.tensor_ranks = 4;
  const Mesh mesh = *MeshOf(plan, 3, 48);
  EXPECT_EQ(mesh, Mesh({3, 2, 2, 1, 4}));
  EXPECT_EQ(mesh.replicas(), 4);
  EXPECT_THAT(mesh.RanksOf(21, {Dimension::kTensor}), ElementsAre(20, 21, 22, 23));
  EXPECT_THAT(mesh.RanksOf(21, kReplicas), ElementsAre(17, 21, 25, 29));
  EXPECT_THAT(mesh.RanksOf(21, kShards), ElementsAre(17, 21));
  EXPECT_EQ(mesh.RanksOf(21, kSameParts).size(), 12);
  EXPECT_EQ(mesh.NameOf(21, {Dimension::kTensor}), "tensor1.1");
  EXPECT_EQ(mesh.NameOf(21, kReplicas), "stage1.t1");
  EXPECT_EQ(mesh.NameOf(21, kShards), "shards1.0.t1");
  EXPECT_EQ(mesh.NameOf(21, kSameParts), "stages.t1");
}

TEST(Mesh, LeavesOutDimensionsOfOneRank) {
  const Mesh mesh = *MeshOf(Sharded(), 1, 4);
  EXPECT_EQ(mesh, Mesh({1, 1, 4, 1, 1}));
  EXPECT_EQ(mesh.Spread(kWorld), mesh.Spread(kShards));
  EXPECT_EQ(mesh.NameOf(2, kShards), "world");
  EXPECT_EQ(Mesh().Spread(kWorld), Dimensions({}));
}

TEST(MeshOf, HasNoShardsWhereNothingIsSharded) {
  EXPECT_EQ(*MeshOf(*PlanPreset("ddp"), 2, 8), Mesh({2, 4, 1, 1, 1}));
  Plan zero_2 = *PlanPreset("zero-2");  // parameters are whole, so none are near
  zero_2.shard_ranks = 4;
  EXPECT_EQ(*MeshOf(zero_2, 1, 8), Mesh({1, 2, 4, 1, 1}));
}

TEST(MeshOf, RefusesWhatDoesNotDivide) {
  constexpr auto kRefused = absl::StatusCode::kInvalidArgument;
  Plan tensor;
  tensor.tensor_ranks = 3;
  EXPECT_THAT(MeshOf(tensor, 1, 8),
              StatusIs(kRefused, HasSubstr("tensor_ranks is 3, which does not divide the ranks of "
                                           "the job, 8; 2 or 4 would")));
  EXPECT_THAT(MeshOf(tensor, 2, 9),
              StatusIs(kRefused, HasSubstr("3 groups of tensor ranks cannot be divided into 2")));
  EXPECT_THAT(MeshOf(Sharded(), 3, 8), StatusIs(kRefused, HasSubstr("8 ranks cannot be divided")));
  EXPECT_THAT(
      MeshOf(Sharded(3), 1, 8),
      StatusIs(kRefused,
               HasSubstr("shard_ranks is 3, which does not divide the ranks that train the same "
                         "parameters, 8; 2 or 4 would")));
  EXPECT_THAT(MeshOf(Sharded(4, 3), 1, 8),
              StatusIs(kRefused, HasSubstr("secondary_ranks is 3, which does not divide")));
  EXPECT_THAT(MeshOf(Sharded(Plan::kRanksOfNode), 1, 8),
              StatusIs(kRefused, HasSubstr("of a node")));
}

}  // namespace
}  // namespace muster::plan
