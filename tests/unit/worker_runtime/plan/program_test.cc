#include "worker_runtime/plan/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace muster::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// One bucket of four blocks, of which this rank owns one.
Program Small() {
  return {.mesh = Mesh({6, 1, 2, 1, 1}),
          .rank = 1,
          .groups = {kWorld},
          .sums = {.root_slots = {0, 2}},
          .buckets = {{.blocks = {4, 8}, .owned = {5, 6}}}};
}

TEST(Action, IsOfTheKindThatItsBodySays) {
  const std::vector<Action> actions = {{.body = Pass{}},
                                       {.body = Pass{.of = {.kind = PassKind::kBackward}}},
                                       {.body = Pass{.of = {.kind = PassKind::kInputGradient}}},
                                       {.body = Pass{.of = {.kind = PassKind::kWeightGradient}}},
                                       {.body = Transfer{.is_send = true}},
                                       {.body = Transfer{}},
                                       {.body = Reduce{}},
                                       {.body = Replicate{}},
                                       {.body = SumLoss{}},
                                       {.body = ShareLoss{}},
                                       {.body = Norm{}},
                                       {.body = SumSquares{}},
                                       {.body = Clip{}},
                                       {.body = Update{}},
                                       {.body = Unshard{}},
                                       {.body = Reshard{}}};
  std::vector<std::string> names;
  for (const Action& action : actions) names.emplace_back(ToString(action.kind()));
  EXPECT_THAT(names, ElementsAre("FORWARD", "BACKWARD", "BACKWARD_INPUT", "BACKWARD_WEIGHT", "SEND",
                                 "RECV", "REDUCE", "REPLICATE", "LOSS", "SHARE_LOSS", "NORM",
                                 "SQUARES", "CLIP", "UPDATE", "UNSHARD", "RESHARD"));
}

TEST(Action, HasNoBodyButItsOwn) {
  const Action update = {.body = Update{.bucket = 3}};
  EXPECT_EQ(update.As<Update>().bucket, 3);
  EXPECT_EQ(update.If<Replicate>(), nullptr);
  EXPECT_EQ(ExchangeOf(update), nullptr);
  EXPECT_EQ(BackwardOf(update), kNone);
  EXPECT_THAT(EntriesOf(update), IsEmpty());
  EXPECT_EQ(BucketOf({.body = Clip{}}), kNone);
}

TEST(BlocksOf, AreWhatTheRankOwnsWhereItUpdatesOrReplicates) {
  const Program program = Small();
  EXPECT_EQ(BlocksOf({.body = Reduce{}}, program), (BlockRange{4, 8}));
  EXPECT_EQ(BlocksOf({.body = Unshard{}}, program), (BlockRange{4, 8}));
  EXPECT_EQ(BlocksOf({.body = Replicate{}}, program), (BlockRange{5, 6}));
  EXPECT_EQ(BlocksOf({.body = Update{}}, program), (BlockRange{5, 6}));
  EXPECT_EQ(BlocksOf({.body = Pass{}}, program).num_blocks(), 0);
}

TEST(BytesOfCopy, AreThoseOfEachRootOfASum) {
  EXPECT_EQ(BytesOfCopy({.body = Reduce{.exchange = {.bytes = 10}}}, Small()), 20);
  EXPECT_EQ(BytesOfCopy({.body = Unshard{.exchange = {.bytes = 10}}}, Small()), 10);
}

TEST(Describe, SaysWhatEachBodyHas) {
  const Program program = Small();
  EXPECT_EQ(Describe({.body = Pass{.of = {PassKind::kBackward, 1, 2},
                                   .slot = 3,
                                   .merges = {{.left_slot = 0, .right_slot = 3}}}},
                     program),
            "BACKWARD stage 1 micro-batch 2 to slot 3 0+=3");
  EXPECT_EQ(
      Describe(
          {.body =
               Transfer{.is_send = true, .what = {Payload::kTied, 1, 2}, .place = 5, .bytes = 8}},
          program),
      "SEND stage 1 micro-batch 2 tied gradient to rank 11, 8 bytes");
  EXPECT_EQ(Describe({.body = Unshard{.place = 7,
                                      .secondary = true,
                                      .exchange = {.collective = Collective::kAllGather}}},
                     program),
            "UNSHARD bucket 0 blocks [4, 8) at place 7, secondary shards all-gather in world");
  EXPECT_EQ(Describe({.body = Reshard{.place = 7, .unshard = 12}}, program),
            "RESHARD bucket 0 blocks [4, 8) at place 7 of 12");
}

}  // namespace
}  // namespace muster::plan
