#include "worker_runtime/plan/like_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "tests/unit/worker_runtime/plan/programs.h"
#include "worker_runtime/plan/prove_program.h"

namespace muster::plan {
namespace {

using ::testing::ElementsAre;

TEST(LikeRanks, AreOneClassWhereAllDoTheSame) {
  const JobPrograms job = CompileJob(Job({.replicas = 4096}, {}).Input());
  const LikeRanks ranks(job);
  ASSERT_EQ(ranks.size(), 1);
  EXPECT_EQ(ranks.classes()[0].rank, 0);
  ASSERT_EQ(ranks.meetings().size(), 1);
  EXPECT_THAT(ranks.meetings()[0].classes, ElementsAre(0));
}

TEST(LikeRanks, AreAClassForEachPlaceOfAPipeline) {
  const JobPrograms job = CompileJob(Job({.stages = 3, .replicas = 64}, {}).Input());
  const LikeRanks ranks(job);
  ASSERT_EQ(ranks.size(), 3);
  EXPECT_EQ(ranks.classes()[2].rank, 128);
  const LikeRanks::Class& middle = ranks.classes()[1];
  EXPECT_THAT(ranks.meetings()[middle.meetings[0]].classes, ElementsAre(0, 1, 2));  // the world
  EXPECT_THAT(ranks.meetings()[middle.meetings[1]].classes, ElementsAre(1));        // its replicas
  EXPECT_EQ(ranks.PeerOf(1, {.is_send = true, .place = 2}), 2);
}

// One that does something else is met by those of its own groups alone, who are then no longer like
// the others, nor are those who meet them.
TEST(LikeRanks, AreOtherClassesWhereTheyMeetOthers) {
  // Whole blocks for each of two, so that all shards are alike.
  Job whole({.stages = 2, .replicas = 8}, {.preset = "mics", .shard_ranks = 2});
  whole.plan.gathering.persistence_threshold = 0;
  JobPrograms job = CompileJob(whole.Input());
  ASSERT_EQ(LikeRanks(job).size(), 2);
  Program odd = job.programs[0];
  odd.rank = 5;
  job.programs.push_back(std::move(odd));
  job.kind_of_rank[5] = 2;
  const LikeRanks ranks(job);
  // Rank 5 is one; rank 4 shards with it; ranks 1, 3 and 7 have its shards; then there are the
  // others of the first place, and those to whom these four send.
  EXPECT_EQ(ranks.size(), 8);
  EXPECT_EQ(ranks.NameOf(0, 0), NameOfAction(job.programs[0], 0));
}

}  // namespace
}  // namespace muster::plan
