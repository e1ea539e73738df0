// Every schedule x ranks x micro-batches x stages of a rank: taken or refused, and what is taken
// ends and costs what the papers say, in whole numbers.
#include "worker_runtime/plan/schedules/generators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/plan/schedules/prove_schedule.h"

namespace muster::plan {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::Each;
using ::testing::HasSubstr;

std::string NameOf(absl::string_view name, const ScheduleShape& shape) {
  return absl::StrCat(name, ", ", shape.ranks, " ranks, ", shape.stages_per_rank, " stages each, ",
                      shape.micro_batches, " micro-batches");
}

void ForEachShape(const std::function<void(const ScheduleShape&)>& visit) {
  for (int ranks = 2; ranks <= 8; ++ranks) {
    for (int stages = 1; stages <= 3; ++stages) {
      for (int64_t m = 1; m <= 2 * ranks + 1; ++m) visit({ranks, stages, m});
    }
  }
}

// Costs of several proportions; one stage takes them all.
const std::vector<PassCosts>& Costs() {
  static const std::vector<PassCosts> costs = {
      {1, 1, 1}, {2, 3, 1}, {3, 2, 2}, {5, 4, 3}, {7, 9, 2}};
  return costs;
}

// What a schedule of `shape` costs, if it has one.
void ForEachProof(absl::string_view name,
                  const std::function<void(const ScheduleShape&, const PassCosts&,
                                           const ScheduleProof&)>& visit) {
  int taken = 0;
  ForEachShape([&](const ScheduleShape& shape) {
    const absl::StatusOr<Schedule> schedule = MakeSchedule(name, shape);
    if (!schedule.ok()) return;
    for (const PassCosts& costs : Costs()) {
      SCOPED_TRACE(NameOf(name, shape));
      const absl::StatusOr<ScheduleProof> proof = ProveSchedule(*schedule, costs);
      ASSERT_THAT(proof, IsOk());
      visit(shape, costs, *proof);
      ++taken;
    }
  });
  EXPECT_GT(taken, 0);
}

int64_t PeakOf(const ScheduleProof& proof, int rank) { return proof.ranks[rank].peak_live; }

TEST(Schedules, AreTakenOrRefusedAndEndWhereTheyAreTaken) {
  int refused = 0;
  int taken = 0;
  for (const std::string& name : ScheduleNames()) {
    ForEachShape([&](const ScheduleShape& shape) {
      SCOPED_TRACE(NameOf(name, shape));
      const absl::StatusOr<Schedule> schedule = MakeSchedule(name, shape);
      if (!schedule.ok()) {
        EXPECT_THAT(schedule, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name)));
        ++refused;
        return;
      }
      ++taken;
      EXPECT_EQ(schedule->num_ranks(), shape.ranks);
      EXPECT_EQ(schedule->num_stages(), shape.ranks * shape.stages_per_rank);
      EXPECT_THAT(ProveSchedule(*schedule, {}), IsOk());
    });
  }
  // 77 pairs of ranks and micro-batches: three schedules of one stage, two of two, and
  // interleaved of two and of three but for the seven odd 2p + 1.
  EXPECT_EQ(taken, 5 * 77 + 2 * (77 - 7));
  EXPECT_EQ(taken + refused, 6 * 3 * 77);
}

// Source: Huang et al., "GPipe", 2019: (p - 1) (F + B), all micro-batches live.
TEST(Schedules, GPipeCostsWhatItsPaperSays) {
  ForEachProof("gpipe",
               [](const ScheduleShape& shape, const PassCosts& costs, const ScheduleProof& proof) {
                 const int64_t both = costs.forward + costs.Of(PassKind::kBackward);
                 EXPECT_EQ(proof.bubble(), (shape.ranks - 1) * both);
                 EXPECT_EQ(proof.end, (shape.micro_batches + shape.ranks - 1) * both);
                 EXPECT_EQ(proof.idle_share(),
                           FractionOf(shape.ranks - 1, shape.micro_batches + shape.ranks - 1));
                 EXPECT_EQ(proof.peak_micro_batches(), FractionOf(shape.micro_batches, 1));
               });
}

// Source: Narayanan et al., 2021, section 2.2.1: GPipe's time, at most p - r micro-batches live.
TEST(Schedules, OneForwardOneBackwardCostsWhatItsPaperSays) {
  ForEachProof("1f1b", [](const ScheduleShape& shape, const PassCosts& costs,
                          const ScheduleProof& proof) {
    const int64_t both = costs.forward + costs.Of(PassKind::kBackward);
    EXPECT_EQ(proof.bubble(), (shape.ranks - 1) * both);
    EXPECT_EQ(proof.end, (shape.micro_batches + shape.ranks - 1) * both);
    for (int rank = 0; rank < shape.ranks; ++rank) {
      EXPECT_EQ(PeakOf(proof, rank), std::min<int64_t>(shape.micro_batches, shape.ranks - rank));
    }
  });
}

// Source: the same, section 2.2.2: of v stages the v-th part of the time that ranks wait, where
// there are as many micro-batches as ranks. With fewer, a stage's turn comes before the micro-batch
// is round: v - 1 times as many passes as micro-batches are missing.
TEST(Schedules, InterleavedCostsWhatItsPaperSays) {
  ForEachProof("interleaved", [](const ScheduleShape& shape, const PassCosts& costs,
                                 const ScheduleProof& proof) {
    const int64_t both = costs.forward + costs.Of(PassKind::kBackward);  // of one stage
    const int64_t missing = std::max<int64_t>(0, shape.ranks - shape.micro_batches);
    EXPECT_EQ(proof.bubble(), (shape.ranks - 1 + (shape.stages_per_rank - 1) * missing) * both);
    const int64_t m = shape.micro_batches;
    const int64_t round = m / std::max<int64_t>(1, m / shape.ranks);
    for (int rank = 0; rank < shape.ranks; ++rank) {
      EXPECT_EQ(PeakOf(proof, rank),
                std::min<int64_t>(m * shape.stages_per_rank, (shape.stages_per_rank - 1) * round +
                                                                 2 * (shape.ranks - 1 - rank) + 1));
    }
  });
}

// Source: Qi et al., 2023, table 1: (p - 1) (F + I - W), and p micro-batches on every rank. With
// fewer micro-batches than ranks, fewer gradients of weights are there to fill the end.
TEST(Schedules, ZeroBubbleH1CostsWhatItsPaperSays) {
  ForEachProof(
      "zb-h1", [](const ScheduleShape& shape, const PassCosts& costs, const ScheduleProof& proof) {
        ASSERT_LE(costs.weight_gradient, std::min(costs.forward, costs.input_gradient));
        const int64_t filled = std::min<int64_t>(shape.micro_batches, shape.ranks) - 1;
        EXPECT_EQ(proof.bubble(), (shape.ranks - 1) * (costs.forward + costs.input_gradient) -
                                      filled * costs.weight_gradient);
        for (int rank = 0; rank < shape.ranks; ++rank) {
          EXPECT_EQ(PeakOf(proof, rank), std::min<int64_t>(shape.micro_batches, shape.ranks));
        }
      });
}

// Source: Qi et al., 2023, section 6: no rank waits between its first pass and its last, and p
// micro-batches are live, where F, I and W are alike and there are 2p - 1 micro-batches.
TEST(Schedules, ZeroBubbleVCostsWhatItsPaperSays) {
  for (int ranks = 2; ranks <= 8; ++ranks) {
    for (int64_t m = 1; m <= 4 * ranks; ++m) {
      const ScheduleShape shape = {ranks, 2, m};
      SCOPED_TRACE(NameOf("zbv", shape));
      const absl::StatusOr<Schedule> schedule = MakeSchedule("zbv", shape);
      ASSERT_THAT(schedule, IsOk());
      const absl::StatusOr<ScheduleProof> proof = ProveSchedule(*schedule, {3, 3, 3});
      ASSERT_THAT(proof, IsOk());
      EXPECT_EQ(proof->bubble(), 3 * 2 * std::max<int64_t>(0, 2 * ranks - 1 - m));
      EXPECT_EQ(proof->peak_micro_batches(), FractionOf(std::min<int64_t>(m, ranks), 1));
    }
  }
}

// Source: arXiv 2412.19437, 2024, table 2: each of p ranks with two stages waits at most
// (p - 1) (F&B + B - 3W), and 2p + 1 of its two stages' micro-batches are live. A rank that goes
// forward before it goes backward, and not at once, hands on its output I earlier.
TEST(Schedules, DualPipeVCostsAtMostWhatItsPaperSays) {
  constexpr PassCosts kAllCosts[] = {{3, 3, 3}, {4, 3, 2}, {10, 10, 1}, {2, 3, 1}, {2, 5, 2}};
  for (int ranks = 2; ranks <= 8; ++ranks) {
    for (int64_t m = 2 * ranks; m <= 4 * ranks; ++m) {
      const ScheduleShape shape = {ranks, 2, m};
      SCOPED_TRACE(NameOf("dualpipev", shape));
      const absl::StatusOr<Schedule> schedule = MakeSchedule("dualpipev", shape);
      ASSERT_THAT(schedule, IsOk());
      for (const PassCosts& costs : kAllCosts) {
        const absl::StatusOr<ScheduleProof> proof = ProveSchedule(*schedule, costs);
        ASSERT_THAT(proof, IsOk());
        const int64_t backward = costs.Of(PassKind::kBackward);
        const int64_t most =
            (ranks - 1) * (costs.forward + 2 * backward - 3 * costs.weight_gradient);
        if (costs.forward >= costs.input_gradient) {
          EXPECT_EQ(proof->bubble(), most - (ranks - 1) * costs.input_gradient);
        } else {
          EXPECT_LT(proof->bubble(), most);
        }
        EXPECT_EQ(proof->peak_micro_batches(), FractionOf(2 * ranks + 1, 2));
      }
    }
  }
}

TEST(Schedules, OfOneRankNeverWait) {
  for (const std::string& name : ScheduleNames()) {
    SCOPED_TRACE(name);
    const absl::StatusOr<Schedule> schedule = MakeSchedule(name, {1, UsualStagesPerRank(name), 4});
    ASSERT_THAT(schedule, IsOk());
    const absl::StatusOr<ScheduleProof> proof = ProveSchedule(*schedule, {2, 3, 1});
    ASSERT_THAT(proof, IsOk());
    EXPECT_EQ(proof->bubble(), 0);
    EXPECT_EQ(proof->num_transfers, 0);
  }
}

TEST(Schedules, HaveTheRanksOfStagesThatTheirPapersDraw) {
  EXPECT_THAT(MakeSchedule("zbv", {3, 2, 1})->rank_of_stage,
              ::testing::ElementsAre(0, 1, 2, 2, 1, 0));
  EXPECT_THAT(MakeSchedule("interleaved", {3, 2, 1})->rank_of_stage,
              ::testing::ElementsAre(0, 1, 2, 0, 1, 2));
}

TEST(Schedules, AreFoundByNamesThatPeopleWrite) {
  EXPECT_EQ(MakeSchedule("ZB_H1", {2, 1, 2})->name, "zb-h1");
  EXPECT_THAT(MakeSchedule("gpip", {2, 1, 2}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("did you mean gpipe?")));
}

TEST(Schedules, RefuseWhatTheyHaveNoOrderForWithTheNearestThatTheyHave) {
  EXPECT_THAT(MakeSchedule("interleaved", {4, 2, 9}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("9 micro-batches into 2 rounds; the nearest that it can are 8 and "
                                 "10")));
  EXPECT_THAT(MakeSchedule("interleaved", {4, 1, 8}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("with one it is 1f1b")));
  EXPECT_THAT(MakeSchedule("gpipe", {4, 2, 8}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("interleaved has several")));
  EXPECT_THAT(MakeSchedule("dualpipev", {4, 1, 8}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("dualpipev has two stages")));
  EXPECT_THAT(MakeSchedule("zbv", {4, 3, 8}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("zbv has two stages")));
  EXPECT_THAT(MakeSchedule("gpipe", {8, 1, 1 << 20}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 262144")));
}

}  // namespace
}  // namespace muster::plan
