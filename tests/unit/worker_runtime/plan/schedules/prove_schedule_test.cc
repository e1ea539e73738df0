// What is wrong with a schedule is found, and said with the smallest change that mends it.
#include "worker_runtime/plan/schedules/prove_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/plan/schedules/generators.h"

namespace muster::plan {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

Schedule Made(absl::string_view name, int ranks, int64_t micro_batches) {
  return *MakeSchedule(name, {ranks, UsualStagesPerRank(name), micro_batches});
}

void ExpectBroken(const Schedule& schedule, const std::string& message) {
  EXPECT_THAT(ProveSchedule(schedule, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
}

// The place of a pass.
std::vector<StagePass>::iterator Find(Schedule& schedule, int rank, const StagePass& pass) {
  std::vector<StagePass>& passes = schedule.passes[rank];
  return std::find(passes.begin(), passes.end(), pass);
}

void Leave(Schedule& schedule, int rank, const StagePass& pass) {
  schedule.passes[rank].erase(Find(schedule, rank, pass));
}

void PutBefore(Schedule& schedule, int rank, const StagePass& pass, const StagePass& before) {
  Leave(schedule, rank, pass);
  schedule.passes[rank].insert(Find(schedule, rank, before), pass);
}

void PutBehind(Schedule& schedule, int rank, const StagePass& pass, const StagePass& other) {
  Leave(schedule, rank, pass);
  schedule.passes[rank].insert(Find(schedule, rank, other) + 1, pass);
}

constexpr PassKind kF = PassKind::kForward;
constexpr PassKind kB = PassKind::kBackward;
constexpr PassKind kI = PassKind::kInputGradient;
constexpr PassKind kW = PassKind::kWeightGradient;

TEST(ProveSchedule, FindsAMissingGradientOfWeights) {
  Schedule schedule = Made("zb-h1", 3, 4);
  Leave(schedule, 1, {kW, 1, 2});
  ExpectBroken(schedule, "rank 1 has I1.2 and no W1.2");
  ExpectBroken(schedule, "put W1.2 behind I1.2");
}

TEST(ProveSchedule, FindsPassesThatAreMissingTwiceThereOrElsewhere) {
  Schedule without_forward = Made("1f1b", 2, 2);
  Leave(without_forward, 1, {kF, 1, 1});
  ExpectBroken(without_forward,
               "stage 1 never goes forward over micro-batch 1; add F1.1 to rank 1");
  Schedule without_backward = Made("1f1b", 2, 2);
  Leave(without_backward, 0, {kB, 0, 1});
  ExpectBroken(without_backward, "stage 0 never goes backward over micro-batch 1; add B0.1");
  Schedule twice = Made("1f1b", 2, 2);
  twice.passes[0].push_back({kB, 0, 0});
  ExpectBroken(twice, "rank 0 has B0.0 twice");
  Schedule elsewhere = Made("1f1b", 2, 2);
  elsewhere.passes[0].push_back({kF, 1, 0});
  ExpectBroken(elsewhere, "rank 0 has F1.0, and stage 1 lies on rank 1");
  Schedule parts = Made("1f1b", 2, 2);
  parts.passes[0].push_back({kW, 0, 0});
  ExpectBroken(parts, "rank 0 has B0.0 and W0.0, which is a part of it");
  Schedule beyond = Made("1f1b", 2, 2);
  beyond.passes[0].push_back({kF, 0, 2});
  ExpectBroken(beyond, "rank 0 has F0.2, and there are 2 stages and 2 micro-batches");
}

// Two ranks that take what they hand to each other in different orders wait for each other.
TEST(ProveSchedule, FindsTwoOrdersAndTheSmallestChangeThatEnds) {
  Schedule schedule = Made("1f1b", 2, 3);
  // Rank 1 wants the third micro-batch before it gives the first gradient, which rank 0 waits for.
  PutBefore(schedule, 1, {kF, 1, 2}, {kB, 1, 0});
  const absl::StatusOr<ScheduleProof> proof = ProveSchedule(schedule, {});
  EXPECT_THAT(proof,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("rank 0 stands at B0.0, which waits for B1.0 of rank 1"),
                             HasSubstr("rank 1 stands at F1.2, which waits for F0.2 of rank 0"))));
  EXPECT_THAT(proof, StatusIs(absl::StatusCode::kInvalidArgument,
                              HasSubstr("with F0.2 put before B0.0 on rank 0 it would end")));
}

// No pass put earlier mends a backward pass in front of all forward passes.
TEST(ProveSchedule, ProposesAPassToPutLater) {
  Schedule schedule = Made("gpipe", 2, 2);
  PutBefore(schedule, 0, {kB, 0, 0}, {kF, 0, 0});
  ExpectBroken(schedule, "with B0.0 put behind F0.1 on rank 0 it would end");
}

// Every pass of every rank put anywhere else: what would hang is refused with a change with which
// it ends, since the way back is one.
TEST(ProveSchedule, ProposesChangesThatEnd) {
  int mended = 0;
  for (const char* name : {"1f1b", "zb-h1", "zbv", "interleaved"}) {
    const Schedule whole = Made(name, 3, 3);
    for (int rank = 0; rank < whole.num_ranks(); ++rank) {
      const auto count = static_cast<int64_t>(whole.passes[rank].size());
      for (int64_t from = 0; from < count; ++from) {
        for (int64_t to = 0; to < count; ++to) {
          Schedule moved = whole;
          std::vector<StagePass>& passes = moved.passes[rank];
          const StagePass pass = passes[from];
          passes.erase(passes.begin() + from);
          passes.insert(passes.begin() + to, pass);
          const absl::StatusOr<ScheduleProof> proof = ProveSchedule(moved, {});
          if (proof.ok()) continue;
          const std::string message(proof.status().message());
          if (message.find(" stands at ") == std::string::npos) continue;
          const size_t at = std::min(message.find("; with "), message.size());
          char kinds[2] = {};
          char side[8] = {};
          StagePass put;
          StagePass other;
          int where = 0;
          ASSERT_EQ(std::sscanf(message.c_str() + at,
                                "; with %c%d.%ld put %7s %c%d.%ld on rank %d it would end",
                                &kinds[0], &put.stage, &put.micro_batch, side, &kinds[1],
                                &other.stage, &other.micro_batch, &where),
                    8)
              << message;
          for (const PassKind kind : {kF, kB, kI, kW}) {
            if (LetterOf(kind) == kinds[0]) put.kind = kind;
            if (LetterOf(kind) == kinds[1]) other.kind = kind;
          }
          const std::string word = side;
          ASSERT_TRUE(word == "before" || word == "behind") << message;
          (word == "before" ? PutBefore : PutBehind)(moved, where, put, other);
          EXPECT_THAT(ProveSchedule(moved, {}), IsOk()) << message;
          ++mended;
        }
      }
    }
  }
  EXPECT_GT(mended, 100);
}

TEST(ProveSchedule, FindsGradientsThatAreAddedInAnotherOrder) {
  Schedule schedule = Made("gpipe", 2, 3);
  PutBefore(schedule, 0, {kB, 0, 2}, {kB, 0, 1});
  ExpectBroken(schedule, "rank 0 has B0.2 before B0.1: gradients are added in the order");
}

using Order = std::vector<std::vector<PassOfRank>>;

void ExpectBrokenOrder(const Schedule& schedule, const Order& order, const std::string& message) {
  EXPECT_THAT(ProveOrder(schedule, order, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
}

TEST(ProveOrder, FindsADroppedWait) {
  const Schedule schedule = Made("1f1b", 2, 2);
  const Order whole = OrderOfRanks(schedule, {});
  ASSERT_THAT(ProveOrder(schedule, whole, {}), IsOk());
  // It is not received; it is, and the pass does not wait.
  for (const bool is_received : {false, true}) {
    Order order = whole;
    PassOfRank& backward = order[0][2];
    ASSERT_EQ(ToString(backward.pass), "B0.0");
    ASSERT_EQ(backward.receives.size(), 1U);
    if (is_received) {
      backward.needs.clear();
    } else {
      backward.receives.clear();
    }
    ExpectBrokenOrder(schedule, order,
                      "rank 0: B0.0 does not wait for what it computes from; put RECV gradient of "
                      "stage 1, micro-batch 0 from rank 1 before it");
  }
}

TEST(ProveOrder, FindsTransfersInTwoOrders) {
  const Schedule schedule = Made("gpipe", 2, 2);
  Order order = OrderOfRanks(schedule, {});
  // Both are received before anything is computed, in the other order.
  ASSERT_EQ(order[1][1].receives.size(), 1U);
  order[1][0].receives.insert(order[1][0].receives.begin(), order[1][1].receives[0]);
  order[1][1].receives.clear();
  ExpectBrokenOrder(schedule, order,
                    "transfer 0 from rank 0 to rank 1 is SEND activation of stage 0, micro-batch 0 "
                    "to rank 1 on one side and RECV activation of stage 0, micro-batch 1 from rank "
                    "0 on the other");
}

TEST(ProveOrder, FindsWhatIsSentTooEarlyOrNever) {
  const Schedule schedule = Made("gpipe", 2, 2);
  Order early = OrderOfRanks(schedule, {});
  Order never = early;
  ASSERT_EQ(early[0][1].sends.size(), 1U);
  early[0][0].sends.push_back(early[0][1].sends[0]);
  early[0][1].sends.clear();
  never[0][0].sends.clear();
  never[0][1].sends.clear();
  ExpectBrokenOrder(schedule, early, "comes before the pass that makes it");
  ExpectBrokenOrder(schedule, never, "waits for what is never sent");
}

// The slowest stage sets the pace between the first and the last pass.
TEST(ProveSchedule, CountsWithStagesThatTakeTimesOfTheirOwn) {
  const PassCosts costs = {.input_gradient = 2, .times_of_stage = {1, 3, 2}};
  const ScheduleProof proof = *ProveSchedule(Made("gpipe", 3, 4), costs);
  constexpr int64_t kPipe = (1 + 3 + 2) + (4 - 1) * 3;
  EXPECT_EQ(proof.end, kPipe * (1 + 3));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(proof.ranks[rank].busy, 4 * (1 + 3) * costs.times_of_stage[rank]);
  }
}

TEST(ProveSchedule, CountsTheTransfersBetweenRanks) {
  // Each boundary between ranks is passed twice by each micro-batch; a V turns round on one rank.
  EXPECT_EQ(ProveSchedule(Made("1f1b", 4, 3), {})->num_transfers, 2 * 3 * 3);
  EXPECT_EQ(ProveSchedule(Made("zbv", 4, 3), {})->num_transfers, 2 * 6 * 3);
  EXPECT_EQ(ProveSchedule(Made("interleaved", 4, 4), {})->num_transfers, 2 * 7 * 4);
}

}  // namespace
}  // namespace muster::plan
