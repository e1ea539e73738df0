// What ranks hand to each other is in one order on both sides, and each has what its passes need.
#include "worker_runtime/plan/schedules/pass_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/plan/schedules/generators.h"

namespace muster::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Schedule Made(absl::string_view name, int ranks, int64_t micro_batches) {
  return *MakeSchedule(name, {ranks, UsualStagesPerRank(name), micro_batches});
}

TEST(PassesOf, ReceiveWhatTheyNeedInTheOrderOfItsSender) {
  const Schedule schedule = Made("1f1b", 2, 2);
  const std::vector<PassOfRank> first = PassesOf(schedule, {}, 0);
  ASSERT_EQ(first.size(), 4U);
  EXPECT_THAT(first[0].receives, IsEmpty());
  EXPECT_THAT(first[0].sends, ElementsAre(HandedBy{{Payload::kActivation, 0, 0}, 1}));
  EXPECT_THAT(first[2].receives, ElementsAre(HandedBy{{Payload::kGradient, 1, 0}, 1}));
  EXPECT_THAT(first[2].needs, ElementsAre(Handed{Payload::kGradient, 1, 0}));
}

// What a rank has itself does not travel.
TEST(PassesOf, KeepWhatTheirOwnRankGoesOnWith) {
  const Schedule schedule = Made("zbv", 2, 1);  // ranks 0 1 1 0
  for (const PassOfRank& own : PassesOf(schedule, {}, 1)) {
    const bool to_itself = (own.pass.kind == PassKind::kForward && own.pass.stage == 1) ||
                           (own.pass.kind == PassKind::kInputGradient && own.pass.stage == 2);
    EXPECT_EQ(own.keeps, to_itself) << ToString(own.pass);
    EXPECT_FALSE(own.keeps && !own.sends.empty()) << ToString(own.pass);
  }
}

// Under every schedule, with tied stages, what one rank sends to another is what that receives from
// it, in one order, and all that is needed has been received.
TEST(PassesOf, HaveOneOrderOnBothSidesOfEveryWay) {
  int num_ways = 0;
  for (const std::string& name : ScheduleNames()) {
    for (int ranks = 2; ranks <= 4; ++ranks) {
      for (int64_t micro_batches = 1; micro_batches <= 2 * ranks + 1; ++micro_batches) {
        const absl::StatusOr<Schedule> schedule =
            MakeSchedule(name, {ranks, UsualStagesPerRank(name), micro_batches});
        if (!schedule.ok()) continue;
        const int last = schedule->num_stages() - 1;
        std::vector<TiedStages> tied;
        if (schedule->rank_of_stage[0] != schedule->rank_of_stage[last]) {
          tied.push_back({.borrower = last, .lender = 0, .first_micro_batch = micro_batches / 2});
        }
        std::map<std::pair<int, int>, std::vector<Handed>> sent;
        std::map<std::pair<int, int>, std::vector<Handed>> received;
        for (int place = 0; place < ranks; ++place) {
          std::vector<Handed> there;
          for (const PassOfRank& own : PassesOf(*schedule, tied, place)) {
            for (const HandedBy& from : own.receives) {
              received[{from.place, place}].push_back(from.what);
              there.push_back(from.what);
            }
            for (const Handed& needed : own.needs) {
              EXPECT_THAT(there, ::testing::Contains(needed)) << name;
            }
            for (const HandedBy& to : own.sends) sent[{place, to.place}].push_back(to.what);
          }
        }
        EXPECT_EQ(sent, received) << name << " over " << ranks << ", " << micro_batches;
        num_ways += static_cast<int>(sent.size());
      }
    }
  }
  EXPECT_GT(num_ways, 300);
}

// Ranks that wait for each other have an order too, for the proof to refuse.
TEST(OrderOfRanks, IsThatOfEachRankAlsoWhereTheyWouldHang) {
  for (const bool hangs : {false, true}) {
    Schedule schedule = Made("interleaved", 2, 4);
    // The backward passes of the last micro-batch before all forward passes.
    if (hangs)
      std::rotate(schedule.passes[1].begin(), schedule.passes[1].end() - 1,
                  schedule.passes[1].end());
    const std::vector<std::vector<PassOfRank>> order = OrderOfRanks(schedule, {});
    ASSERT_EQ(order.size(), 2U);
    for (int place = 0; place < 2; ++place) {
      const std::vector<PassOfRank> alone = PassesOf(schedule, {}, place);
      ASSERT_EQ(order[place].size(), schedule.passes[place].size());
      for (size_t i = 0; i < alone.size(); ++i) {
        EXPECT_EQ(order[place][i].pass, schedule.passes[place][i]);
        EXPECT_EQ(order[place][i].receives, alone[i].receives);
        EXPECT_EQ(order[place][i].sends, alone[i].sends);
      }
    }
  }
}

}  // namespace
}  // namespace muster::plan
