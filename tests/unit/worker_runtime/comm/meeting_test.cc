#include "worker_runtime/comm/meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/comm/memory_store.h"

namespace muster::comm {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::IsOkAndHolds;
using ::muster::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

MeetingOptions Of(int rank, int size, const std::string& machine = "") {
  return {.rank = rank,
          .size = size,
          .group = "world",
          .prefix = "test",
          .machine = machine,
          .deadline = MonoNow() + absl::Minutes(2)};
}

absl::StatusOr<std::string> Joined(absl::Span<const std::string> said) {
  return absl::StrJoin(said, " ");
}

void OnEachRank(int size, const std::function<void(int rank)>& act) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back([&act, rank] { act(rank); });
  for (std::thread& thread : threads) thread.join();
}

TEST(Meet, TellsEachRankWhoIsOnItsMachine) {
  MemoryStore store;
  OnEachRank(5, [&](int rank) {
    const auto here = Meet(store, Of(rank, 5, rank % 2 == 0 ? "even" : "odd"));
    ASSERT_THAT(here, IsOk());
    if (rank % 2 == 0) {
      EXPECT_THAT(*here, ElementsAre(0, 2, 4));
    } else {
      EXPECT_THAT(*here, ElementsAre(1, 3));
    }
  });
}

TEST(Meet, LeavesARankWithoutAMachineAlone) {
  MemoryStore store;
  OnEachRank(
      3, [&](int rank) { EXPECT_THAT(Meet(store, Of(rank, 3)), IsOkAndHolds(ElementsAre(rank))); });
}

TEST(DecideTogether, HasAllFollowWhatRankZeroMakesOfWhatAllSay) {
  MemoryStore store;
  OnEachRank(4, [&](int rank) {
    EXPECT_THAT(DecideTogether(store, Of(rank, 4), absl::StrCat("r", rank), Joined),
                IsOkAndHolds("r0 r1 r2 r3"));
  });
}

TEST(SayWithoutWaiting, IsHeardByThoseWhoWait) {
  MemoryStore told, heard;
  EXPECT_THAT(SayWithoutWaiting(told, Of(0, 2), "", "so it is"), IsOk());
  EXPECT_THAT(DecideTogether(told, Of(1, 2), "r1", Joined), IsOkAndHolds("so it is"));
  EXPECT_THAT(SayWithoutWaiting(heard, Of(1, 2), "r1", ""), IsOk());
  EXPECT_THAT(DecideTogether(heard, Of(0, 2), "r0", Joined), IsOkAndHolds("r0 r1"));
}

TEST(DecideTogether, NamesWhoDidNotComeOnEveryRank) {
  MemoryStore store;
  const auto names_rank_one =
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               HasSubstr("rank 1 of 3 did not come to group world; rank 0 waited"));
  EXPECT_THAT(SayWithoutWaiting(store, Of(2, 3), "r2", ""), IsOk());
  MeetingOptions soon = Of(0, 3);
  soon.deadline = MonoNow() + absl::Milliseconds(1);
  EXPECT_THAT(DecideTogether(store, soon, "r0", Joined), names_rank_one);
  EXPECT_THAT(DecideTogether(store, Of(2, 3), "r2", Joined), names_rank_one);
}

}  // namespace
}  // namespace muster::comm
