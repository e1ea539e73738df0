#include "worker_runtime/options/mesh_option.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace muster::plan {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::HasSubstr;

PlanOptions Of(const std::string& preset) {
  PlanOptions options;
  options.plan = *PlanPreset(preset);
  return options;
}

TEST(ReadMesh, PutsEachSizeWhereItBelongs) {
  PlanOptions options = Of("zero-3");
  EXPECT_THAT(ReadMesh("shard=4,pp=2,dp=3,tp=8", options), IsOk());
  EXPECT_EQ(options.plan.stages, 2);
  EXPECT_EQ(options.plan.shard_ranks, 4);
  EXPECT_EQ(options.replicas, 3);
  EXPECT_EQ(options.plan.tensor_ranks, 8);
}

TEST(ReadMesh, LeavesWhatItDoesNotName) {
  PlanOptions options = Of("hybrid-shard");
  EXPECT_THAT(ReadMesh("pp=2", options), IsOk());
  EXPECT_EQ(options.plan.shard_ranks, Plan::kRanksOfNode);
  EXPECT_EQ(options.replicas, 0);
  EXPECT_THAT(ReadMesh("shard=8", options), IsOk()) << "which overrules the preset";
  EXPECT_EQ(options.plan.shard_ranks, 8);
}

TEST(ReadMesh, SaysWhatWasExpected) {
  PlanOptions options = Of("zero-3");
  const auto expect_refused = [&](const std::string& text, const std::string& why) {
    EXPECT_THAT(ReadMesh(text, options),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)))
        << text;
  };
  expect_refused("", "there is no dimension ''");
  expect_refused("pp=2,ep=2", "there is no dimension 'ep'; expected pp (stages)");
  expect_refused("tp=0", "expected a number of ranks for tp, as in tp=2");
  expect_refused("pp", "expected a number of ranks for pp, as in pp=2");
  expect_refused("pp=0", "expected a number of ranks for pp");
  expect_refused("pp=2=3", "expected a number of ranks for pp");
  expect_refused("dp=99999999999999999999", "expected a number of ranks for dp");
  expect_refused("pp=2,pp=2", "pp is named twice");
}

TEST(ReadMesh, RefusesWhatAnotherOptionSaysOtherwise) {
  constexpr auto kRefused = absl::StatusCode::kInvalidArgument;
  PlanOptions options = Of("zero-3");
  options.plan.stages = 4;
  options.plan.shard_ranks = 2;
  EXPECT_THAT(ReadMesh("pp=4,shard=2", options), IsOk()) << "which is the same";
  EXPECT_THAT(ReadMesh("pp=2", options),
              StatusIs(kRefused, HasSubstr("pp is 2, and --stages says 4; leave one")));
  EXPECT_THAT(ReadMesh("shard=4", options),
              StatusIs(kRefused, HasSubstr("shard is 4, and --shard_ranks says 2")));
  PlanOptions ddp = Of("ddp");
  EXPECT_THAT(ReadMesh("shard=4", ddp),
              StatusIs(kRefused, HasSubstr("plan ddp shards nothing; add --plan=zero-1")));
}

}  // namespace
}  // namespace muster::plan
