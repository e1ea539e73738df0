#include "worker_runtime/plan/program_draft.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/worker_runtime/plan/programs.h"

namespace muster::plan {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

TEST(ProgramDraft, HasTheBucketsOfItsStageAndNoActions) {
  const Job job({.stages = 2, .replicas = 2}, {.accumulation = 2});
  const DraftOf first(job, 1), last(job, 2);
  EXPECT_EQ(first.draft.place, 0);
  EXPECT_EQ(last.draft.place, 1);
  for (const DraftOf* at : {&first, &last}) {
    const Program& program = at->draft.program;
    EXPECT_THAT(program.actions, IsEmpty());
    ASSERT_THAT(program.buckets, testing::Not(IsEmpty()));
    for (const Bucket& bucket : program.buckets) {
      EXPECT_TRUE(job.stages[at->draft.place].blocks.Overlaps(bucket.blocks));
      EXPECT_FALSE(job.stages[1 - at->draft.place].blocks.Overlaps(bucket.blocks));
    }
  }
}

TEST(ProgramDraft, GivesEachBucketItsGroups) {
  const Job deep({.stages = 2, .replicas = 8},
                 {.preset = "zero-3-hpz", .shard_ranks = 4, .secondary_ranks = 2});
  const DraftOf rank_13(deep, 13);
  const Program& program = rank_13.draft.program;
  const auto name = [&](int group) { return program.mesh.NameOf(13, program.groups[group]); };
  for (const Bucket& bucket : program.buckets) {
    const BucketGroups& groups = bucket.groups;
    EXPECT_EQ(name(groups.shards.group), "shards1.1");
    EXPECT_EQ(groups.shards.rank, 1);
    EXPECT_EQ(groups.shards.size, 4);
    EXPECT_EQ(name(groups.near.group), "secondary1.2");
    EXPECT_EQ(groups.near.rank, 1);
    EXPECT_EQ(groups.near.size, 2);
    EXPECT_EQ(name(groups.sums), "stage1");
    EXPECT_EQ(name(groups.copies), "replicas1.1");
    EXPECT_EQ(bucket.owned, ShardOf(bucket.blocks, 1, 4));
    EXPECT_THAT(NormedBlocks(13, {.is_shared = true}, program),
                Not(Contains(OwnedBy(13, bucket, program))))
        << "rank 9 has the same shard";
    EXPECT_THAT(NormedBlocks(9, {.is_shared = true}, program),
                Contains(OwnedBy(9, bucket, program)));
  }
  const Job whole({.stages = 2, .replicas = 2}, {});
  const DraftOf rank_2(whole, 2);
  for (const Bucket& bucket : rank_2.draft.program.buckets) {
    EXPECT_EQ(bucket.groups.shards, Shards());
    EXPECT_EQ(bucket.groups.copies, bucket.groups.sums) << "all replicas have the same sums";
    EXPECT_EQ(bucket.owned, bucket.blocks);
  }
}

// Gradients are rounded for their way, two copies at a time.
TEST(ProgramDraft, GivesTheRoomOfACopyToTheNextButOne) {
  const Job job({.replicas = 2}, {.bucket_blocks = 2, .reduce_dtype = DType::kBf16});
  DraftOf of(job);
  ProgramDraft& draft = of.draft;
  ASSERT_GE(draft.program.buckets.size(), 3);
  for (int b = 0; b < 3; ++b) {
    EXPECT_EQ(draft.Add({.body = Reduce{.bucket = b,
                                        .exchange = {.group = draft.groups.sums, .bytes = 4096}}}),
              b);
  }
  const std::vector<Action>& actions = draft.program.actions;
  EXPECT_EQ(ExchangeOf(actions[0])->padding, 0);
  EXPECT_GT(ExchangeOf(actions[1])->padding, 0);
  EXPECT_EQ(ExchangeOf(actions[2])->padding, 0);
  EXPECT_THAT(actions[1].after, IsEmpty());
  EXPECT_THAT(actions[2].after, ElementsAre(0)) << "the first has left by then";
  draft.Finish();
  EXPECT_EQ(draft.program.padding_bytes, 2 * ExchangeOf(actions[1])->padding);
}

}  // namespace
}  // namespace muster::plan
