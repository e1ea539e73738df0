#include "muster/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/engine/training_ranks.h"

namespace muster {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::OnRanks;
using ::muster::testing::StatusIs;
using ::testing::Each;
using ::testing::HasSubstr;

TEST(CheckAgreement, IsContentWhenAllTextsAreEqual) {
  const auto statuses = OnRanks<absl::Status>(
      4, [](Communicator& world) { return CheckAgreement(world, "a=1\nb=2\n"); });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(CheckAgreement, NamesTheFirstRankAndLineThatDiffer) {
  const auto statuses = OnRanks<absl::Status>(4, [](Communicator& world) {
    return CheckAgreement(world, world.rank() >= 2 ? "a=1\nb=33\nc=4\n" : "a=1\nb=2\nc=3\n");
  });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("b is 2 on rank 0 and b is 33 on rank 2"))));
}

TEST(CheckSameState, NamesTheRankThatHoldsSomethingElse) {
  const std::string same(64, 'a');
  const std::string other(64, 'b');
  EXPECT_THAT(
      OnRanks<absl::Status>(
          3, [&](Communicator& world) { return CheckSameState(world, same, "after loading"); }),
      Each(IsOk()));
  const auto statuses = OnRanks<absl::Status>(3, [&](Communicator& world) {
    return CheckSameState(world, world.rank() == 2 ? other : same, "after loading");
  });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kDataLoss,
                                      HasSubstr("rank 2 differ from those of rank 0 after"))));
}

TEST(DescribeDifference, SaysWhenOneTextEndsBeforeTheOther) {
  EXPECT_EQ(DescribeDifference("a=1\n", "a=1\nw [2, 3] f32\n", 5),
            "nothing follows on rank 0 and the next parameter is w [2, 3] f32 on rank 5");
}

TEST(FromRankZero, CarriesTextAndErrorsToEveryRank) {
  const auto texts = OnRanks<std::string>(3, [](Communicator& world) {
    return FromRankZero(world, world.rank() == 0 ? "found" : "").value();
  });
  EXPECT_THAT(texts, Each("found"));
  const auto statuses = OnRanks<absl::Status>(3, [](Communicator& world) {
    absl::StatusOr<std::string> result = std::string();
    if (world.rank() == 0) result = absl::NotFoundError("no checkpoint in D");
    return FromRankZero(world, result).status();
  });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kNotFound, HasSubstr("D"))));
}

TEST(FromRank, CarriesTextAndErrorsOfAnyRankToEveryRank) {
  const auto texts = OnRanks<std::string>(3, [](Communicator& world) {
    return FromRank(world, 2, world.rank() == 2 ? "found" : "").value();
  });
  EXPECT_THAT(texts, Each("found"));
  const auto statuses = OnRanks<absl::Status>(3, [](Communicator& world) {
    absl::StatusOr<std::string> result = std::string();
    if (world.rank() == 1) result = absl::PermissionDeniedError("not yours");
    return FromRank(world, 1, result).status();
  });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kPermissionDenied, "not yours")));
}

TEST(AllOrNone, GivesEveryRankTheErrorOfTheFirstThatHasOne) {
  const auto all = [](int first_that_fails) {
    return OnRanks<absl::Status>(4, [&](Communicator& world) {
      const bool fails = world.rank() >= first_that_fails;
      return AllOrNone(world, fails ? absl::NotFoundError(absl::StrCat("no D", world.rank()))
                                    : absl::OkStatus());
    });
  };
  EXPECT_THAT(all(4), Each(IsOk()));
  EXPECT_THAT(all(2), Each(StatusIs(absl::StatusCode::kNotFound, "rank 2: no D2")));
  EXPECT_THAT(all(0), Each(StatusIs(absl::StatusCode::kNotFound, "no D0")));
}

TEST(OwnFailure, IsWhatARankHasToldOfAndNotThatItWasLost) {
  for (const int ranks : {1, 3}) {
    const auto told = OnRanks<absl::Status>(ranks, [](Communicator& world) {
      absl::StatusOr<std::string> result = std::string();
      if (world.rank() == 0) result = absl::UnavailableError("cannot write a: EIO");
      return FromRankZero(world, result).status();
    });
    for (const absl::Status& failure : told) EXPECT_TRUE(IsOwnFailure(failure)) << failure;
  }
  const auto refused = OnRanks<absl::Status>(3, [](Communicator& world) {
    return AllOrNone(world, world.rank() == 1 ? absl::UnavailableError("EIO") : absl::OkStatus());
  });
  for (const absl::Status& failure : refused) EXPECT_TRUE(IsOwnFailure(failure)) << failure;
  const auto lost = OnRanks<absl::Status>(3, [](Communicator& world) {
    if (world.rank() == 0) world.Abort("rank 0 has died");
    const absl::Status failure = AllOrNone(world, absl::OkStatus());
    EXPECT_THAT(failure, StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 0 has died")));
    return failure;
  });
  for (const absl::Status& failure : lost) EXPECT_FALSE(IsOwnFailure(failure)) << failure;
  EXPECT_TRUE(AsOwnFailure(absl::OkStatus()).ok());
}

TEST(FromRankZero, WaitsAsLongAsRankZeroTakes) {
  const auto communicators =
      comm::MakeLoopbackCommunicators({.size = 2, .options = {.timeout = absl::Milliseconds(100)}});
  std::thread waiting([&] {
    EXPECT_THAT(FromRankZero(*communicators[1], std::string()),
                testing::IsOkAndHolds(std::string("written")));
  });
  absl::SleepFor(absl::Milliseconds(400));
  EXPECT_THAT(FromRankZero(*communicators[0], std::string("written")),
              testing::IsOkAndHolds(std::string("written")));
  waiting.join();
}

}  // namespace
}  // namespace muster
