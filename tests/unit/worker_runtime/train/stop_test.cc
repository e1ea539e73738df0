// How training ends before its time: signals, and the ranks' agreement on them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <thread>
#include <vector>

#include "tests/support/status_matchers.h"
#include "worker_runtime/comm/loopback/loopback_communicator.h"
#include "worker_runtime/train/stop.h"

namespace muster::train {
namespace {

using ::muster::testing::IsOkAndHolds;
using ::testing::Each;
using ::testing::ExitedWithCode;
using ::testing::KilledBySignal;

TEST(StopSignal, IsZeroUntilASignalComes) {
  const StopSignal signal;
  EXPECT_EQ(signal.received(), 0);
}

TEST(StopSignal, NotesTheFirstSignalAndTheProgramGoesOn) {
  const StopSignal signal;
  raise(SIGINT);
  EXPECT_EQ(signal.received(), SIGINT);
}

TEST(StopSignal, IsForgottenByTheNextOne) {
  {
    const StopSignal signal;
    raise(SIGTERM);
  }
  const StopSignal next;
  EXPECT_EQ(next.received(), 0);
}

TEST(StopSignalDeathTest, EndsTheProgramAtTheSecondOfAKind) {
  EXPECT_EXIT(
      {
        const StopSignal signal;
        raise(SIGTERM);
        raise(SIGTERM);
      },
      KilledBySignal(SIGTERM), "");
}

TEST(StopSignalDeathTest, EndsTheProgramAtTheSecondOfTwoKinds) {
  EXPECT_EXIT(
      {
        const StopSignal signal;
        raise(SIGTERM);
        raise(SIGINT);
      },
      KilledBySignal(SIGINT), "");
}

TEST(StopSignalDeathTest, LeavesAnIgnoredSignalIgnored) {
  EXPECT_EXIT(
      {
        ::signal(SIGINT, SIG_IGN);
        int received = 0;
        {
          const StopSignal signal;
          raise(SIGINT);
          received = signal.received();
        }
        raise(SIGINT);
        std::_Exit(received);
      },
      ExitedWithCode(0), "");
}

TEST(EndBySignalDeathTest, IsSeenByTheParentAsThatSignal) {
  EXPECT_EXIT(EndBySignal(SIGINT), KilledBySignal(SIGINT), "");
}

// What each of the ranks hears when rank r has received `own_signals[r]`.
std::vector<absl::StatusOr<int>> Vote(const std::vector<int>& own_signals) {
  const int size = static_cast<int>(own_signals.size());
  auto world = comm::MakeLoopbackCommunicators({.group = "world", .size = size});
  std::vector<absl::StatusOr<int>> heard(size, 0);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      StopVote vote(*world[rank]);
      vote.Begin(own_signals[rank]);
      heard[rank] = vote.End();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return heard;
}

TEST(StopVote, LetsAllRanksGoOnWhileNoneHasASignal) {
  EXPECT_THAT(Vote({0, 0, 0}), Each(IsOkAndHolds(0)));
}

TEST(StopVote, StopsAllRanksForTheSignalOfOne) {
  EXPECT_THAT(Vote({0, SIGTERM, 0}), Each(IsOkAndHolds(SIGTERM)));
}

TEST(StopVote, ChoosesTheSameSignalOnAllRanksWhereTheyDiffer) {
  EXPECT_THAT(Vote({SIGINT, SIGTERM}), Each(IsOkAndHolds(SIGTERM)));
}

}  // namespace
}  // namespace muster::train
