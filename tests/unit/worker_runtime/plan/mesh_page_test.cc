#include "worker_runtime/plan/mesh_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace muster::plan {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kRefused = absl::StatusCode::kInvalidArgument;

TEST(MeshPage, ShowsWhichCoordinatesANodeHasAndHowFarGroupsReach) {
  const Mesh mesh({2, 2, 2, 2, 1});
  EXPECT_EQ(SizesText(mesh), "pp=2 x dp=2 x shard=4");
  EXPECT_EQ(MeshPage(mesh, 8),
            "\nmesh, pp=2 x dp=2 x shard=4:\n"
            "  node 0                       ranks 0-7: pp=0, dp=0-1, shard=0-3\n"
            "  node 1                       ranks 8-15: pp=1, dp=0-1, shard=0-3\n"
            "  along pp                     groups of 2 ranks, each over 2 nodes\n"
            "  along dp                     groups of 2 ranks, each on one node\n"
            "  along shard                  groups of 4 ranks, each on one node\n");
  EXPECT_THAT(MeshPage(mesh, 3), AllOf(HasSubstr("ranks 15-15: pp=1, dp=1, shard=3"),
                                       HasSubstr("along shard                  groups of 4 ranks, "
                                                 "each over 2 nodes")));
}

TEST(MeshPage, ShowsTheFirstNodesOfMany) {
  const std::string page = MeshPage(Mesh({8, 8, 64, 1, 1}), 8);
  EXPECT_THAT(page, AllOf(HasSubstr("ranks 56-63: pp=0, dp=0, shard=56-63"),
                          HasSubstr("and 504 more"), HasSubstr("each over 8 nodes")));
}

TEST(MeshPage, WarnsWhereTensorRanksLieOnSeveralNodes) {
  const Mesh mesh({1, 2, 1, 1, 8});
  EXPECT_THAT(MeshPage(mesh, 8),
              AllOf(HasSubstr("ranks 8-15: dp=1, tp=0-7"), Not(HasSubstr("warning"))));
  EXPECT_THAT(MeshPage(mesh, 4),
              AllOf(HasSubstr("along tp                     groups of 8 ranks, each over 2 nodes"),
                    HasSubstr("warning: they wait for each other four times in each layer")));
}

TEST(MeshPage, IsEmptyWhereRanksLieAlongOneDimension) {
  EXPECT_EQ(MeshPage(Mesh({1, 8, 1, 1, 1}), 4), "");
  EXPECT_EQ(MeshPage(Mesh({1, 1, 4, 2, 1}), 4), "");
  EXPECT_EQ(SizesText(Mesh()), "dp=1");
}

TEST(CheckReplicas, SaysWhatWouldDo) {
  Plan plan = *PlanPreset("zero-3");
  const Mesh all = *MeshOf(plan, 2, 16);
  EXPECT_THAT(CheckReplicas(plan, all, 0), IsOk());
  EXPECT_THAT(CheckReplicas(plan, all, 1), IsOk());
  EXPECT_THAT(
      CheckReplicas(plan, all, 2),
      StatusIs(kRefused, HasSubstr("dp is 2, and 16 ranks lie over pp=2 x shard=8; plan zero-3 "
                                   "shards over all of them: add shard=4, or leave dp out")));
  plan.shard_ranks = 4;
  EXPECT_THAT(CheckReplicas(plan, *MeshOf(plan, 2, 16), 3),
              StatusIs(kRefused, HasSubstr("lie over pp=2 x dp=2 x shard=4; dp=2 fits")));
}

}  // namespace
}  // namespace muster::plan
