// Whether a group is made from an earlier one: what is decided, and that all ranks hear the same or
// fail in time.
#include "worker_runtime/comm/shrink_agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <functional>
#include <thread>

#include "tests/support/status_matchers.h"
#include "worker_runtime/comm/failure_cell.h"
#include "worker_runtime/comm/memory_store.h"

namespace muster::comm {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::IsOkAndHolds;
using ::muster::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The places of a group of which there were `size`, by their ranks there; -1: somebody new.
std::vector<std::optional<FormerPlace>> Were(int size, const std::vector<int>& ranks) {
  std::vector<std::optional<FormerPlace>> places;
  for (const int rank : ranks) {
    std::optional<FormerPlace>& place = places.emplace_back();
    if (rank >= 0) place = FormerPlace{.identity = "x", .rank = rank, .size = size};
  }
  return places;
}

TEST(DecideShrink, LeavesOutThoseWhoAreGone) {
  EXPECT_THAT(DecideShrink(Were(4, {0, 1, 3})).without, ElementsAre(2));
  EXPECT_THAT(DecideShrink(Were(5, {1, 3})).without, ElementsAre(0, 2, 4));
  EXPECT_EQ(DecideShrink(Were(5, {1, 3})).reason, "the others of 5 ranks are all here, in order");
}

void ExpectAnew(const std::vector<std::optional<FormerPlace>>& places, const std::string& reason) {
  const ShrinkDecision decision = DecideShrink(places);
  EXPECT_FALSE(decision.shrinks());
  EXPECT_THAT(decision.reason, HasSubstr(reason));
}

TEST(DecideShrink, MakesAnewWhereSomebodyIsNew) {
  ExpectAnew(Were(4, {0, 1, -1}), "rank 2 is new");
  ExpectAnew(Were(4, {-1, 0, 1}), "rank 0 is new");
}

TEST(DecideShrink, MakesAnewWhereTheOrderHasChanged) {
  ExpectAnew(Were(4, {0, 3, 1}), "rank 2 was rank 1 of 4, which is out of order");
  ExpectAnew(Were(4, {0, 1, 1}), "rank 2 was rank 1 of 4, which is out of order");
  ExpectAnew(Were(3, {0, 1, 3}), "rank 2 was rank 3 of 3, which is out of order");
}

TEST(DecideShrink, MakesAnewWhereNobodyIsGoneOrNobodyElseIsLeft) {
  ExpectAnew(Were(3, {0, 1, 2}), "no rank is gone");
  ExpectAnew(Were(3, {1}), "one rank has no peer");
}

TEST(DecideShrink, MakesAnewWhereRanksWereInDifferentGroups) {
  auto places = Were(4, {0, 1, 3});
  places[2]->identity = "y";
  ExpectAnew(places, "ranks 0 and 2 were not in one group");
  places = Were(4, {0, 1, 3});
  places[1]->size = 5;
  ExpectAnew(places, "ranks 0 and 1 were not in one group");
}

TEST(DecideShrink, MakesAnewWhereOneCannotShrink) {
  auto places = Were(4, {0, 1, 3});
  places[1]->hindrance = "calls of it were captured";
  ExpectAnew(places, "rank 1: calls of it were captured");
}

// --- Over a store

const MonoTime kGenerous = MonoNow() + absl::Minutes(2);

class Group {
 public:
  explicit Group(int size) : size_(size), said_(size) {}

  // Runs `program` on each rank, whose places were `places`; all have said so before any decides.
  using Program = std::function<void(int rank, ShrinkAgreement& agreement, bool was_there)>;
  void OnEachRank(const std::vector<std::optional<FormerPlace>>& places, const Program& program) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size_; ++rank) {
      threads.emplace_back([&, rank] {
        ShrinkAgreement agreement = Agreement(rank, kGenerous);
        EXPECT_THAT(agreement.Say(places[rank]), IsOk());
        said_.arrive_and_wait();
        program(rank, agreement, places[rank].has_value());
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  ShrinkAgreement Agreement(int rank, MonoTime deadline) {
    return ShrinkAgreement(store_, {.rank = rank,
                                    .size = size_,
                                    .group = "dp",
                                    .prefix = "test",
                                    .deadline = deadline,
                                    .failure = [this] { return failure_.Get(); }});
  }

  FailureCell& failure() { return failure_; }

 private:
  const int size_;
  MemoryStore store_;
  FailureCell failure_;
  std::barrier<> said_;
};

// What each rank of the group is told.
std::vector<ShrinkDecision> DecisionsOf(const std::vector<std::optional<FormerPlace>>& places) {
  const int size = static_cast<int>(places.size());
  std::vector<ShrinkDecision> decisions(size);
  Group(size).OnEachRank(places, [&](int rank, ShrinkAgreement& agreement, bool was_there) {
    const auto decision = agreement.Decide(was_there);
    ASSERT_THAT(decision, IsOk());
    decisions[rank] = *decision;
  });
  return decisions;
}

MATCHER_P(LeavesOut, ranks, "") { return arg.without == ranks; }

TEST(ShrinkAgreement, TellsAllRanksWhomToLeaveOut) {
  EXPECT_THAT(DecisionsOf(Were(5, {0, 2, 4})), Each(LeavesOut(std::vector<int>{1, 3})));
}

TEST(ShrinkAgreement, TellsAllRanksToMakeAnewWhereOneIsNew) {
  EXPECT_THAT(DecisionsOf(Were(4, {0, 1, -1})), Each(LeavesOut(std::vector<int>{})));
  EXPECT_THAT(DecisionsOf(Were(4, {-1, 0, 1})), Each(LeavesOut(std::vector<int>{})));
  EXPECT_EQ(DecisionsOf(Were(4, {-1, 0, 1}))[2].reason, "rank 0 is new");
}

TEST(ShrinkAgreement, TellsAllRanksToMakeAnewWhereOneCannot) {
  auto places = Were(4, {0, 1, 3});
  places[2]->hindrance = "its NCCL is older, by far";
  const std::vector<ShrinkDecision> decisions = DecisionsOf(places);
  EXPECT_THAT(decisions, Each(LeavesOut(std::vector<int>{})));
  EXPECT_EQ(decisions[1].reason, "rank 2: its NCCL is older, by far");
}

// The first round of a job has no group before it.
TEST(ShrinkAgreement, WhoWasInNoGroupBeforeAsksNobody) {
  Group group(2);
  for (const int rank : {1, 0}) {
    ShrinkAgreement agreement = group.Agreement(rank, kGenerous);
    const auto decision = agreement.Decide(/*was_there=*/false);
    ASSERT_THAT(decision, IsOk());
    EXPECT_FALSE(decision->shrinks());
  }
}

TEST(ShrinkAgreement, TakesARankThatSaysNothingForANewOne) {
  Group group(2);
  ShrinkAgreement agreement = group.Agreement(0, kGenerous);
  ASSERT_THAT(agreement.Say(FormerPlace{.identity = "x", .size = 3}), IsOk());
  const auto decision = agreement.Decide(/*was_there=*/true);
  ASSERT_THAT(decision, IsOk());
  EXPECT_FALSE(decision->shrinks());
  EXPECT_EQ(decision->reason, "rank 1 has not said what it was");
}

TEST(ShrinkAgreement, IsConcludedOnceAllHaveShrunk) {
  Group(3).OnEachRank(Were(4, {0, 1, 3}), [](int, ShrinkAgreement& agreement, bool was_there) {
    ASSERT_THAT(agreement.Decide(was_there), IsOk());
    EXPECT_THAT(agreement.GivenUp(), IsOk());
    EXPECT_THAT(agreement.Conclude(absl::OkStatus()), IsOkAndHolds(true));
  });
}

// Those for whom it went well undo it.
TEST(ShrinkAgreement, ComesOffOnNoRankWhereOneFails) {
  for (const int failing : {0, 2}) {
    Group(3).OnEachRank(
        Were(4, {0, 1, 3}), [failing](int rank, ShrinkAgreement& agreement, bool was_there) {
          ASSERT_THAT(agreement.Decide(was_there), IsOk());
          EXPECT_THAT(agreement.Conclude(rank == failing ? absl::UnavailableError("no memory")
                                                         : absl::OkStatus()),
                      IsOkAndHolds(false));
        });
  }
}

TEST(ShrinkAgreement, RanksThatHangInItHearThatAnotherHasFailed) {
  Group(3).OnEachRank(Were(4, {0, 1, 3}), [](int rank, ShrinkAgreement& agreement, bool was_there) {
    ASSERT_THAT(agreement.Decide(was_there), IsOk());
    absl::Status status = absl::UnavailableError("no memory");
    if (rank != 1) {
      status = absl::OkStatus();
      while (status.ok() && MonoNow() < kGenerous) status = agreement.GivenUp();
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kCancelled, "rank 1: no memory"));
    }
    EXPECT_THAT(agreement.Conclude(status), IsOkAndHolds(false));
  });
}

TEST(ShrinkAgreement, NamesTheRankThatDiedWhileItShrank) {
  Group group(3);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      ShrinkAgreement agreement = group.Agreement(rank, MonoNow() + absl::Milliseconds(300));
      EXPECT_THAT(agreement.Conclude(absl::OkStatus()),
                  StatusIs(absl::StatusCode::kDeadlineExceeded,
                           HasSubstr("rank 2 of 3 did not say in time how group dp shrank")));
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(ShrinkAgreement, NamesRankZeroWhereItDiedBeforeItDecided) {
  Group group(3);
  ShrinkAgreement agreement = group.Agreement(2, MonoNow() + absl::Milliseconds(100));
  EXPECT_THAT(agreement.Decide(/*was_there=*/true),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("rank 0 of 3 did not say in time how group dp is made"),
                             HasSubstr("rank 2"))));
}

TEST(ShrinkAgreement, EndsWithAFailureOfTheGroup) {
  Group group(3);
  std::vector<std::thread> ranks;
  std::barrier waiting(4);
  const auto end = [&](int rank, const std::function<absl::Status(ShrinkAgreement&)>& wait) {
    ranks.emplace_back([&, rank, wait] {
      ShrinkAgreement agreement = group.Agreement(rank, kGenerous);
      waiting.arrive_and_wait();
      EXPECT_THAT(wait(agreement), StatusIs(absl::StatusCode::kUnavailable, "rank 1 is gone"));
    });
  };
  end(2, [](ShrinkAgreement& agreement) { return agreement.Decide(true).status(); });
  end(2, [](ShrinkAgreement& agreement) { return agreement.Conclude({}).status(); });
  end(0, [](ShrinkAgreement& agreement) { return agreement.Conclude({}).status(); });
  waiting.arrive_and_wait();
  group.failure().Set(absl::UnavailableError("rank 1 is gone"));
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace
}  // namespace muster::comm
