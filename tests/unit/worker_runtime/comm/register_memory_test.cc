// How ranks agree on a registration, and how lanes carry tasks: without a device.
// registration_test.cc has a backend.
#include "worker_runtime/comm/register_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/status_matchers.h"
#include "worker_runtime/comm/lane_task.h"
#include "worker_runtime/comm/loopback/loopback_communicator.h"

namespace muster::comm {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

// What each rank's `body` returns.
std::vector<absl::Status> OnRanks(int size,
                                  const std::function<absl::Status(Communicator&)>& body) {
  auto communicators = MakeLoopbackCommunicators({.size = size});
  std::vector<absl::Status> ends(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { ends[rank] = body(*communicators[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
  return ends;
}

TEST(RegisterOnAllRanks, KeepsWhatAllHaveRegistered) {
  std::atomic<int> given_up = 0;
  const auto ends = OnRanks(3, [&](Communicator& c) {
    auto registration = RegisterOnAllRanks(
        c, [&]() -> absl::StatusOr<Registration> { return Registration([&] { ++given_up; }); });
    EXPECT_THAT(c.Barrier().Wait(), IsOk());
    EXPECT_EQ(given_up, 0);
    EXPECT_THAT(c.Barrier().Wait(), IsOk());
    return registration.status();
  });
  EXPECT_THAT(ends, Each(IsOk()));
  EXPECT_EQ(given_up, 3);
}

TEST(RegisterOnAllRanks, GivesAllUpWhereSomeHaveFailedAndTellsAllWhatTheFirstOfThemSays) {
  const std::string long_words(2000, 'x');
  for (const std::string& words : {std::string("no room"), long_words}) {
    std::atomic<int> given_up = 0;
    const auto ends = OnRanks(4, [&](Communicator& c) {
      const auto registration = RegisterOnAllRanks(c, [&]() -> absl::StatusOr<Registration> {
        if (c.rank() == 1) return absl::ResourceExhaustedError(words);
        if (c.rank() == 2) return absl::UnimplementedError("too old");
        return Registration([&] { ++given_up; });
      });
      EXPECT_THAT(c.Barrier().Wait(), IsOk());
      EXPECT_EQ(given_up, 2);
      return registration.status();
    });
    EXPECT_THAT(ends, Each(StatusIs(absl::StatusCode::kResourceExhausted,
                                    HasSubstr("rank 1: " + words.substr(0, 400)))));
    for (const absl::Status& end : ends) EXPECT_EQ(end, ends[0]);
  }
}

TEST(RegisterOnAllRanks, GivesUpItsOwnWhereTheGroupFails) {
  std::atomic<int> given_up = 0;
  const auto ends = OnRanks(2, [&](Communicator& c) {
    if (c.rank() == 1) {
      c.Abort("no more");
      return absl::OkStatus();
    }
    return RegisterOnAllRanks(
               c,
               [&]() -> absl::StatusOr<Registration> { return Registration([&] { ++given_up; }); })
        .status();
  });
  EXPECT_THAT(ends[0], StatusIs(absl::StatusCode::kAborted, HasSubstr("no more")));
  EXPECT_EQ(given_up, 1);
}

TEST(Registrations, AreCountedAtTheEndOfTheirCommunicatorAndSilentAfterIt) {
  int given_up = 0;
  auto registrations = std::make_unique<Registrations>();
  Registration first = registrations->Add([&] { ++given_up; });
  Registration second = registrations->Add([&] { given_up += 10; });
  first = Registration();
  EXPECT_EQ(given_up, 1);
  EXPECT_EQ(registrations->Close(), 1);
  registrations.reset();
  second = Registration();
  EXPECT_EQ(given_up, 1);
}

TEST(LaneTask, IsWaitedForUntilTheLaneHasRunItOrEnded) {
  for (const bool runs : {true, false}) {
    bool has_run = false;
    const LaneTask task("a task", [&] {
      has_run = true;
      return absl::InternalError("its own words");
    });
    std::thread lane([&] {
      if (runs) {
        task.Run();
      } else {
        task.AsCall().Finish(absl::AbortedError("the lane has ended"));
      }
    });
    EXPECT_THAT(task.Wait(), runs ? StatusIs(absl::StatusCode::kInternal, HasSubstr("own words"))
                                  : StatusIs(absl::StatusCode::kAborted, HasSubstr("has ended")));
    lane.join();
    EXPECT_EQ(has_run, runs);
    EXPECT_TRUE(task.AsCall().deadline.is_infinite());
  }
}

}  // namespace
}  // namespace muster::comm
