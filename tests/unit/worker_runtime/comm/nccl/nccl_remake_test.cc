// How ranks leave an NCCL communicator and come together in the next one, over a library in NCCL's
// place: what is called, in which order, and that nothing is left behind. Ranks are threads.
#include "worker_runtime/comm/nccl/nccl_remake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <functional>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/comm/nccl/fake_nccl.h"
#include "worker_runtime/comm/failure_cell.h"
#include "worker_runtime/comm/meeting.h"
#include "worker_runtime/comm/memory_store.h"

namespace muster::comm {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

using Fate = FakeNccl::Fate;
using Ranks = std::unique_ptr<NcclRanks>;

class NcclRemake : public ::testing::Test {
 protected:
  ~NcclRemake() override { nccl_.CheckRules(); }

  NcclRanksOptions Options(int rank, int size, const std::string& prefix,
                           absl::Duration time = absl::Minutes(2)) {
    return {.rank = rank,
            .size = size,
            .group = "dp",
            .prefix = prefix,
            .deadline = MonoNow() + time,
            .failure = [this] { return failure_.Get(); }};
  }

  Ranks Connect(int rank, int size, std::shared_ptr<const NcclLibrary> library = nullptr) {
    if (library == nullptr) library = nccl_.library();
    auto ranks = NcclRanks::Connect(library, store_, Options(rank, size, "first"));
    EXPECT_THAT(ranks, IsOk());
    return ranks.ok() ? *std::move(ranks) : nullptr;
  }

  // `size` ranks connect; `program` says what each makes of it. They are destroyed when all
  // programs have ended.
  using Program = std::function<void(int rank, Ranks& ranks)>;
  void OnRanks(int size, const Program& program) {
    std::barrier all_done(size);
    OnThreads(size, [&](int rank) {
      Ranks ranks = Connect(rank, size);
      if (ranks != nullptr) program(rank, ranks);
      all_done.arrive_and_wait();
    });
  }
  static void OnThreads(int size, const std::function<void(int rank)>& program) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) threads.emplace_back([&, rank] { program(rank); });
    for (std::thread& thread : threads) thread.join();
  }

  static void Revoke(Ranks& ranks) { ranks->Revoke(MonoNow() + absl::Minutes(2)); }

  // Does what NcclCommunicator::Make does: on each rank of the new group at the same time.
  absl::StatusOr<Ranks> Remake(Ranks former, const NcclRanksOptions& options) {
    EXPECT_THAT(SayWhatItWas(former.get(), store_, options), IsOk());
    EXPECT_THAT(Meet(store_, {.rank = options.rank,
                              .size = options.size,
                              .group = options.group,
                              .prefix = options.prefix,
                              .deadline = options.deadline}),
                IsOk());
    return ShrinkOrConnect(nccl_.library(), std::move(former), store_, options);
  }

  FakeNccl nccl_;
  MemoryStore store_;
  FailureCell failure_;
};

TEST_F(NcclRemake, AConnectedCommunicatorIsFinalizedAndDestroyed) {
  OnThreads(2, [&](int rank) {
    const Ranks ranks = Connect(rank, 2);
    ASSERT_NE(ranks, nullptr);
    EXPECT_EQ(ranks->place().rank, rank);
    EXPECT_EQ(ranks->place().size, 2);
    EXPECT_EQ(ranks->place().hindrance, "its NCCL communicator was not revoked");
    ranks->Close(MonoNow() + absl::Minutes(2));
    EXPECT_THAT(nccl_.CallsOfThisThread(), ElementsAre(absl::StrCat("a/", rank, " init"),
                                                       absl::StrCat("a/", rank, " finalize"),
                                                       absl::StrCat("a/", rank, " destroy")));
  });
}

// --- Revoking

TEST_F(NcclRemake, ARevokedCommunicatorIsKeptUntilItsEnd) {
  Ranks ranks = Connect(0, 1);
  Revoke(ranks);
  EXPECT_EQ(ranks->place().hindrance, "");
  Revoke(ranks);  // once is enough
  EXPECT_THAT(nccl_.CallsOfThisThread(), ElementsAre("a/0 init", "a/0 revoke"));
  ranks->Close(MonoNow() + absl::Minutes(2));
  EXPECT_THAT(nccl_.CallsOfThisThread(), ElementsAre("a/0 init", "a/0 revoke", "a/0 abort"));
}

TEST_F(NcclRemake, AnOlderNcclAborts) {
  Ranks ranks = Connect(0, 1, nccl_.older_library());
  Revoke(ranks);
  EXPECT_THAT(nccl_.CallsOfThisThread(), ElementsAre("a/0 init", "a/0 abort"));
  EXPECT_EQ(ranks->place().hindrance, "NCCL 2.21.5 has no ncclCommRevoke (2.28.7 and newer)");
}

TEST_F(NcclRemake, OneThatMemoryWasRegisteredWithIsAborted) {
  Ranks ranks = Connect(0, 1);
  ranks->HoldsMemory();
  Revoke(ranks);
  EXPECT_THAT(nccl_.CallsOfThisThread(), ElementsAre("a/0 init", "a/0 abort"));
  EXPECT_EQ(ranks->place().hindrance, "memory was registered with it");
}

TEST_F(NcclRemake, WhatDoesNotStopInTimeIsAborted) {
  nccl_.Destine("revoke", 0, Fate::kHangs);
  Ranks ranks = Connect(0, 1);
  ranks->Revoke(MonoNow() + absl::Milliseconds(30));
  EXPECT_THAT(nccl_.CallsOfThisThread(), ElementsAre("a/0 init", "a/0 revoke", "a/0 abort"));
  EXPECT_EQ(ranks->place().hindrance, "NCCL did not stop what ran on a communicator in time");
}

// Its state stays that of its proxy, which ncclCommShrink refuses.
TEST_F(NcclRemake, OneThatMetAnErrorOnTheNetworkIsAborted) {
  Ranks ranks = Connect(0, 1);
  nccl_.LoseConnection(0);
  Revoke(ranks);
  EXPECT_THAT(nccl_.CallsOfThisThread(), ElementsAre("a/0 init", "a/0 revoke", "a/0 abort"));
  EXPECT_THAT(ranks->place().hindrance, HasSubstr("remote error"));
}

TEST_F(NcclRemake, AnAbortedOneSaysWhy) {
  Ranks ranks = Connect(0, 1);
  ranks->Abort("calls of it were captured");
  Revoke(ranks);
  EXPECT_THAT(nccl_.CallsOfThisThread(), ElementsAre("a/0 init", "a/0 abort"));
  EXPECT_EQ(ranks->place().hindrance, "calls of it were captured");
}

// --- Shrinking

TEST_F(NcclRemake, ShrinkingNeedsWhatIsRevoked) {
  Ranks ranks = Connect(0, 1);
  const auto shrunk = NcclRanks::Shrink(*ranks, {1}, Options(0, 1, "next"));
  EXPECT_THAT(shrunk, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not revoked")));
}

TEST_F(NcclRemake, ShrinkingWithDifferentListsFails) {
  OnRanks(4, [&](int rank, Ranks& ranks) {
    if (rank >= 2) return;
    Revoke(ranks);
    const std::vector<int> without = rank == 0 ? std::vector<int>{2} : std::vector<int>{2, 3};
    EXPECT_THAT(NcclRanks::Shrink(*ranks, without, Options(rank, 2, "next")),
                testing::HasStatusCode(absl::StatusCode::kInvalidArgument));
    EXPECT_EQ(ranks->get(), nullptr);
  });
}

// The former one's abort ends NCCL's job, which writes the new one: first that, then what came of
// it.
TEST_F(NcclRemake, WhatNcclShrinksHalfWayIsAbortedAfterTheFormer) {
  nccl_.Destine("shrink", 1, Fate::kFails);
  OnRanks(3, [&](int rank, Ranks& ranks) {
    if (rank != 1) return;
    Revoke(ranks);
    EXPECT_THAT(
        NcclRanks::Shrink(*ranks, {2}, Options(1, 2, "next")),
        StatusIs(absl::StatusCode::kUnavailable, HasSubstr("failed in NCCL: system error")));
    EXPECT_THAT(nccl_.CallsOfThisThread(), ElementsAre("a/1 init", "a/1 revoke", "a/1 shrink",
                                                       "a-2/1 init", "a/1 abort", "a-2/1 abort"));
    EXPECT_THAT(ranks->place().hindrance, HasSubstr("system error"));
  });
}

TEST_F(NcclRemake, AShrinkThatHangsEndsAtItsDeadline) {
  OnRanks(3, [&](int rank, Ranks& ranks) {
    if (rank != 0) return;  // nobody else comes
    Revoke(ranks);
    EXPECT_THAT(NcclRanks::Shrink(*ranks, {2}, Options(0, 2, "next", absl::Milliseconds(30))),
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         HasSubstr("did not shrink group dp to its 2 ranks in time")));
    EXPECT_THAT(nccl_.CallsOfThisThread(), ElementsAre("a/0 init", "a/0 revoke", "a/0 shrink",
                                                       "a/0 abort", "a-2/0 init", "a-2/0 abort"));
  });
}

// --- Shrinking, or connecting: all alike

TEST_F(NcclRemake, ThoseWhoAreLeftShrinkWhatTheyHad) {
  std::barrier all_made(3);
  OnRanks(4, [&](int rank, Ranks& ranks) {
    if (rank == 2) return;
    const std::string identity = ranks->place().identity;
    const int now = rank < 2 ? rank : rank - 1;
    Revoke(ranks);
    auto made = Remake(std::move(ranks), Options(now, 3, "next"));
    ASSERT_THAT(made, IsOk());
    EXPECT_EQ((*made)->place().identity, identity + "-2");
    EXPECT_EQ((*made)->place().rank, now);
    EXPECT_EQ((*made)->place().size, 3);
    EXPECT_THAT(nccl_.CallsOfThisThread(),
                ElementsAre(absl::StrCat("a/", rank, " init"), absl::StrCat("a/", rank, " revoke"),
                            absl::StrCat("a/", rank, " shrink"), absl::StrCat("a-2/", now, " init"),
                            absl::StrCat("a/", rank, " abort")));
    all_made.arrive_and_wait();
  });
}

TEST_F(NcclRemake, WhatWasShrunkIsShrunkAgain) {
  OnRanks(4, [&](int rank, Ranks& ranks) {
    if (rank == 0) return;
    Revoke(ranks);
    auto three = Remake(std::move(ranks), Options(rank - 1, 3, "next"));
    ASSERT_THAT(three, IsOk());
    Revoke(*three);
    if (rank == 2) return;
    auto two = Remake(*std::move(three), Options(rank == 1 ? 0 : 1, 2, "after"));
    ASSERT_THAT(two, IsOk());
    EXPECT_THAT((*two)->place().identity, ::testing::EndsWith("-0-1"));
    EXPECT_EQ(nccl_.CallsOfThisThread().back(), absl::StrCat("a-0/", rank == 1 ? 0 : 2, " abort"));
  });
}

// Rank 2 is new, and takes the place of one that is gone.
TEST_F(NcclRemake, AllConnectWhereOneIsNew) {
  OnRanks(3, [&](int rank, Ranks& ranks) {
    if (rank == 2) {
      ranks.reset();
    } else {
      Revoke(ranks);
    }
    auto made = Remake(std::move(ranks), Options(rank, 3, "next"));
    ASSERT_THAT(made, IsOk());
    EXPECT_THAT(nccl_.CallsOfThisThread().back(), absl::StrCat("b/", rank, " init"));
    EXPECT_THAT(nccl_.CallsOfThisThread(), Not(Contains(HasSubstr("shrink"))));
  });
}

TEST_F(NcclRemake, AllConnectWhereRankZeroIsNew) {
  OnRanks(3, [&](int rank, Ranks& ranks) {
    if (rank == 2) {
      ranks.reset();
    } else {
      Revoke(ranks);
    }
    auto made = Remake(std::move(ranks), Options((rank + 1) % 3, 3, "next"));
    ASSERT_THAT(made, IsOk());
    EXPECT_THAT(nccl_.CallsOfThisThread().back(), absl::StrCat("b/", (rank + 1) % 3, " init"));
  });
}

TEST_F(NcclRemake, AllConnectWhereTheOrderHasChanged) {
  OnRanks(3, [&](int rank, Ranks& ranks) {
    if (rank == 2) return;
    Revoke(ranks);
    auto made = Remake(std::move(ranks), Options(1 - rank, 2, "next"));
    ASSERT_THAT(made, IsOk());
    EXPECT_THAT(
        nccl_.CallsOfThisThread(),
        ElementsAre(absl::StrCat("a/", rank, " init"), absl::StrCat("a/", rank, " revoke"),
                    absl::StrCat("a/", rank, " abort"), absl::StrCat("b/", 1 - rank, " init")));
  });
}

TEST_F(NcclRemake, AllConnectWhereOneCouldNotBeRevoked) {
  nccl_.Destine("revoke", 1, Fate::kFails);
  OnRanks(3, [&](int rank, Ranks& ranks) {
    if (rank == 2) return;
    Revoke(ranks);
    auto made = Remake(std::move(ranks), Options(rank, 2, "next"));
    ASSERT_THAT(made, IsOk());
    EXPECT_THAT(nccl_.CallsOfThisThread(),
                ElementsAre(absl::StrCat("a/", rank, " init"), absl::StrCat("a/", rank, " revoke"),
                            absl::StrCat("a/", rank, " abort"), absl::StrCat("b/", rank, " init")));
  });
}

// The others' shrinking hangs, until they hear of it.
TEST_F(NcclRemake, AllConnectWhereShrinkingFailsOnOne) {
  for (const int failing : {0, 1}) {
    nccl_.Destine("shrink", failing, Fate::kFails);
    const std::string prefix = absl::StrCat("next", failing);
    std::barrier all_made(3);
    OnThreads(4, [&](int rank) {
      auto ranks = NcclRanks::Connect(nccl_.library(), store_,
                                      Options(rank, 4, absl::StrCat("first", failing)));
      ASSERT_THAT(ranks, IsOk());
      Revoke(*ranks);
      if (rank == 3) return;
      auto made = Remake(*std::move(ranks), Options(rank, 3, prefix));
      ASSERT_THAT(made, IsOk());
      EXPECT_EQ(nccl_.CallsOfThisThread().back(),
                absl::StrCat(failing == 0 ? "b/" : "d/", rank, " init"));
      all_made.arrive_and_wait();
    });
    nccl_.CheckRules();
  }
}

// Half of the time is left for connecting.
TEST_F(NcclRemake, AllConnectWhereShrinkingHangsOnAll) {
  nccl_.Destine("shrink", 0, Fate::kHangs);
  OnRanks(3, [&](int rank, Ranks& ranks) {
    if (rank == 2) return;
    Revoke(ranks);
    auto made = Remake(std::move(ranks), Options(rank, 2, "next", absl::Seconds(6)));
    ASSERT_THAT(made, IsOk());
    EXPECT_EQ(nccl_.CallsOfThisThread().back(), absl::StrCat("b/", rank, " init"));
  });
}

TEST_F(NcclRemake, ARankThatIsLeftAloneConnects) {
  OnRanks(2, [&](int rank, Ranks& ranks) {
    if (rank == 1) return;
    Revoke(ranks);
    auto made = ShrinkOrConnect(nccl_.library(), std::move(ranks), store_, Options(0, 1, "next"));
    ASSERT_THAT(made, IsOk());
    EXPECT_THAT(nccl_.CallsOfThisThread(),
                ElementsAre("a/0 init", "a/0 revoke", "a/0 abort", "b/0 init"));
  });
}

// The control channel hears of it.
TEST_F(NcclRemake, ADeathWhileRanksShrinkEndsThem) {
  std::barrier have_met(3);
  OnRanks(4, [&](int rank, Ranks& ranks) {
    if (rank == 3) return;
    Revoke(ranks);
    const NcclRanksOptions options = Options(rank, 3, "next");
    ASSERT_THAT(SayWhatItWas(ranks.get(), store_, options), IsOk());
    have_met.arrive_and_wait();
    if (rank == 1) {
      failure_.Set(absl::UnavailableError("rank 1 is gone"));
      return;
    }
    EXPECT_THAT(ShrinkOrConnect(nccl_.library(), std::move(ranks), store_, options),
                StatusIs(absl::StatusCode::kUnavailable, "rank 1 is gone"));
    EXPECT_THAT(nccl_.CallsOfThisThread(), Contains(absl::StrCat("a/", rank, " abort")));
  });
}

TEST_F(NcclRemake, ADeathThatNobodyHearsOfEndsThemAtTheDeadline) {
  std::barrier have_met(3);
  OnRanks(4, [&](int rank, Ranks& ranks) {
    if (rank == 3) return;
    Revoke(ranks);
    const NcclRanksOptions options = Options(rank, 3, "next", absl::Milliseconds(600));
    ASSERT_THAT(SayWhatItWas(ranks.get(), store_, options), IsOk());
    have_met.arrive_and_wait();
    if (rank == 1) return;
    EXPECT_THAT(ShrinkOrConnect(nccl_.library(), std::move(ranks), store_, options),
                testing::HasStatusCode(absl::StatusCode::kDeadlineExceeded));
    EXPECT_THAT(nccl_.CallsOfThisThread(), Contains(absl::StrCat("a/", rank, " abort")));
  });
}

}  // namespace
}  // namespace muster::comm
