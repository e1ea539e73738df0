#include "muster/runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "proto/base/environment.h"
#include "proto/base/mono_time.h"
#include "tests/support/fake_agent.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/comm/operation_ring.h"

namespace muster {
namespace {

using ::muster::testing::FakeAgent;
using ::muster::testing::IsOk;
using ::muster::testing::IsOkAndHolds;
using ::muster::testing::StatusIs;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TEST(Runtime, IsOneRankOfOneWithoutALauncher) {
  auto runtime = Runtime::FromEnvironment(EnvironmentMap{});
  ASSERT_THAT(runtime, IsOk());
  EXPECT_EQ((*runtime)->rank(), 0);
  EXPECT_EQ((*runtime)->size(), 1);
  auto world = (*runtime)->MakeCommunicator("world");
  ASSERT_THAT(world, IsOk());
  EXPECT_EQ((*world)->backend(), "gloo");
  std::vector<float> data = {1, 2, 3};
  EXPECT_THAT((*world)->AllReduce(BufferOf(data)).Wait(), IsOk());
  EXPECT_THAT(data, ::testing::ElementsAre(1, 2, 3));
  EXPECT_THAT((*runtime)->Finish(10), IsOk());
}

TEST(Runtime, MarksProgressAndOperationsOnTheBoardOfItsAgent) {
  const FakeAgent agent(Round(2));
  const testing::TemporaryDirectory directory;
  BoardHeader header = NewBoardHeader();
  std::string bytes(kBoardBytes, '\0');
  std::memcpy(bytes.data(), &header, sizeof(header));
  testing::WriteFile(directory.File("board"), bytes);
  EnvironmentMap environment = agent.EnvironmentOf(0, 1);
  environment["MUSTER_BOARD"] = directory.File("board");
  auto runtime = Runtime::FromEnvironment(environment);
  ASSERT_THAT(runtime, IsOk());
  (*runtime)->SetProgress(5, Phase::kBackward);
  auto world = (*runtime)->MakeCommunicator("world");
  ASSERT_THAT(world, IsOk());
  ASSERT_THAT((*world)->Barrier().Wait(), IsOk());

  auto reader = comm::OperationRing::OpenBoard(directory.File("board"));
  ASSERT_THAT(reader, IsOk());
  const BoardSnapshot snapshot = (*reader)->Snapshot();
  EXPECT_EQ(snapshot.step, 5);
  EXPECT_EQ(snapshot.phase, Phase::kBackward);
  ASSERT_EQ(snapshot.operations.size(), 1u);
  EXPECT_EQ(Describe(snapshot, snapshot.operations[0]), "barrier #0 (group world), done");
}

TEST(Runtime, NamesABoardThatIsNone) {
  const FakeAgent agent(Round(2));
  EnvironmentMap environment = agent.EnvironmentOf(0, 1);
  environment["MUSTER_BOARD"] = "/dev/null";
  EXPECT_THAT(Runtime::FromEnvironment(environment),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("MUSTER_BOARD=/dev/null")));
}

TEST(Runtime, SaysWhatToDoWhenTorchrunStartedIt) {
  const FakeAgent agent(Round(2));
  EnvironmentMap environment = agent.EnvironmentOf(1, 4);
  std::erase_if(environment, [](const auto& entry) { return entry.first.starts_with("MUSTER_"); });
  EXPECT_THAT(Runtime::FromEnvironment(environment),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("RANK=1 and WORLD_SIZE=4"), HasSubstr("muster run"))));
}

TEST(Runtime, NamesTheSocketOfAnAgentThatIsGone) {
  EnvironmentMap environment;
  {
    const FakeAgent agent(Round(2));
    environment = agent.EnvironmentOf(0, 1);
  }
  EXPECT_THAT(
      Runtime::FromEnvironment(environment),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr(environment["MUSTER_AGENT_SOCKET"])));
}

TEST(Runtime, SaysThatTheAgentRefusedAWorkerOfAnotherRound) {
  const FakeAgent agent(Round(5));
  EnvironmentMap environment = agent.EnvironmentOf(0, 1);
  environment["MUSTER_ROUND"] = "2";
  EXPECT_THAT(Runtime::FromEnvironment(environment),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("refused this process: it is not of round 5")));
}

TEST(Runtime, KeepsValuesInTheAgentsStore) {
  const FakeAgent agent(Round(2));
  auto a = Runtime::FromEnvironment(agent.EnvironmentOf(0, 2));
  auto b = Runtime::FromEnvironment(agent.EnvironmentOf(1, 2));
  ASSERT_THAT(a, IsOk());
  ASSERT_THAT(b, IsOk());
  const MonoTime soon = MonoNow() + absl::Seconds(5);
  ASSERT_THAT((*a)->store().Set("key", "value", soon), IsOk());
  EXPECT_THAT((*b)->store().Wait("key", soon), IsOkAndHolds("value"));
  EXPECT_THAT((*b)->store().Wait("other", MonoNow() + absl::Milliseconds(50)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST(Runtime, JoinsTheRanksOfAJobOverGloo) {
  FakeAgent agent(Round(2));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&agent, rank] {
      auto runtime = Runtime::FromEnvironment(agent.EnvironmentOf(rank, 3));
      ASSERT_THAT(runtime, IsOk());
      EXPECT_EQ((*runtime)->restart_count(), 3);
      for (const std::string group : {"world", "again", "again"}) {
        auto communicator = (*runtime)->MakeCommunicator(group, "gloo");
        ASSERT_THAT(communicator, IsOk());
        std::vector<int64_t> sum = {rank};
        EXPECT_THAT((*communicator)->AllReduce(BufferOf(sum)).Wait(), IsOk());
        EXPECT_EQ(sum[0], 3);
        EXPECT_THAT((*communicator)->Barrier().Wait(), IsOk());
      }
      EXPECT_THAT((*runtime)->Finish(77), IsOk());
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

// A GPU by its name alone.
class NamedGpu final : public Device {
 public:
  explicit NamedGpu(std::string uuid) : uuid_(std::move(uuid)) {}
  absl::string_view name() const override { return "named"; }
  bool has_elements() const override { return false; }
  const Operations& operations(DType) const override { std::abort(); }
  const Device& meta() const override { return *this; }
  std::optional<GpuIdentity> gpu() const override { return GpuIdentity{.uuid = uuid_}; }

 private:
  const std::string uuid_;
};

// Runs `act` with the runtime of each rank, a thread each.
void OnEachRank(int size, const std::function<void(Runtime& runtime, int rank)>& act) {
  FakeAgent agent(Round(2));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&agent, &act, rank, size] {
      auto runtime = Runtime::FromEnvironment(agent.EnvironmentOf(rank, size));
      ASSERT_THAT(runtime, IsOk());
      act(**runtime, rank);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(Runtime, AgreesOnGlooForRanksThatShareAGpuAndSaysWhy) {
  OnEachRank(3, [](Runtime& runtime, int rank) {
    const NamedGpu gpu(rank == 0 ? "GPU-a" : "GPU-b");
    auto world = runtime.MakeCommunicator("world", "", {.device = &gpu});
    ASSERT_THAT(world, IsOk());
    EXPECT_EQ((*world)->backend(), "gloo");
    EXPECT_THAT((*world)->notes(),
                AnyOf(HasSubstr("ranks 1 and 2 of 3 share GPU-b"), HasSubstr("has no NCCL")));
    EXPECT_THAT((*world)->Barrier().Wait(), IsOk());
    auto part = (*world)->Split(0, rank);
    ASSERT_THAT(part, IsOk());
    EXPECT_EQ((*part)->notes(), "");
    EXPECT_THAT((*part)->Barrier().Wait(), IsOk());
  });
}

TEST(Runtime, AgreesOnGlooWhereOneRankComputesOnTheHost) {
  OnEachRank(2, [](Runtime& runtime, int rank) {
    const NamedGpu gpu("GPU-a");
    auto world = runtime.MakeCommunicator("world", "", {.device = rank == 0 ? &gpu : nullptr});
    ASSERT_THAT(world, IsOk());
    EXPECT_EQ((*world)->backend(), "gloo");
    EXPECT_THAT((*world)->Barrier().Wait(), IsOk());
  });
}

TEST(Runtime, RefusesNcclByNameToRanksThatShareAGpu) {
  OnEachRank(2, [](Runtime& runtime, int) {
    const NamedGpu gpu("GPU-a");
    const CommunicatorOptions options = {.connect_timeout = absl::Seconds(30), .device = &gpu};
    EXPECT_THAT(runtime.MakeCommunicator("world", "nccl", options).status().message(),
                AnyOf(HasSubstr("ranks 0 and 1 of 2 share GPU-a"), HasSubstr("linked without NCCL"),
                      HasSubstr("NCCL library")));
  });
}

// Two of three ranks go on in the next round, as ranks 1 and 0 of two; the third never comes again.
TEST(Runtime, GoesOnInTheNextRoundInTheSameProcess) {
  FakeAgent before(Round(2)), after(Round(3));
  std::atomic<int> num_ready = 0;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      auto runtime = Runtime::FromEnvironment(before.EnvironmentOf(rank, 3));
      ASSERT_THAT(runtime, IsOk());
      (*runtime)->SurviveRounds();
      auto world = (*runtime)->MakeCommunicator("world", "gloo");
      ASSERT_THAT(world, IsOk());
      auto part = (*world)->Split(0, rank);
      ASSERT_THAT(part, IsOk());
      ++num_ready;
      if (rank == 2) {
        // It is stuck elsewhere, and so says nothing; its peers' calls could hang for ten minutes.
        EXPECT_TRUE(before.WaitForParked(2));
        return;
      }
      std::vector<int64_t> sum = {1};
      EXPECT_THAT((*world)->AllReduce(BufferOf(sum)).Wait(),
                  StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 2 is gone")));
      EXPECT_THAT((*part)->Barrier().Wait(), StatusIs(absl::StatusCode::kAborted));
      EXPECT_THAT((*runtime)->store().Wait("never", MonoNow() + absl::Minutes(1)),
                  StatusIs(absl::StatusCode::kAborted));
      part->reset();
      world->reset();
      auto next = (*runtime)->NextRound(absl::Seconds(30));
      ASSERT_THAT(next, IsOk());
      EXPECT_EQ((*next)->rank(), 1 - rank);
      EXPECT_EQ((*next)->size(), 2);
      (*next)->SurviveRounds();
      runtime->reset();
      auto smaller = (*next)->MakeCommunicator("world", "gloo");
      ASSERT_THAT(smaller, IsOk());
      sum = {rank + 1};
      EXPECT_THAT((*smaller)->AllReduce(BufferOf(sum)).Wait(), IsOk());
      EXPECT_EQ(sum[0], 3);
    });
  }
  EXPECT_TRUE(before.WaitForSurvivors(3));
  const MonoTime deadline = MonoNow() + absl::Seconds(50);
  while (num_ready < 3 && MonoNow() < deadline) absl::SleepFor(absl::Milliseconds(1));
  absl::SleepFor(absl::Milliseconds(50));  // into the middle of the call, or before it: alike
  before.EndRound(true, "rank 2 is gone");
  EXPECT_TRUE(before.WaitForParked(2));
  for (const int rank : {0, 1}) before.GiveRound(rank, after.EnvironmentOf(1 - rank, 2));
  for (std::thread& rank : ranks) rank.join();
  EXPECT_TRUE(after.WaitForSurvivors(2));
}

TEST(Runtime, HearsThatNoRoundFollows) {
  FakeAgent agent(Round(2));
  auto runtime = Runtime::FromEnvironment(agent.EnvironmentOf(0, 2));
  ASSERT_THAT(runtime, IsOk());
  (*runtime)->SurviveRounds();
  ASSERT_TRUE(agent.WaitForSurvivors(1));
  agent.EndRound(false, "no restart is left");
  EXPECT_THAT((*runtime)->NextRound(absl::Minutes(1)).status(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("no restart is left")));
}

TEST(Runtime, WaitsForNoRoundWhereTheFailureIsItsOwn) {
  FakeAgent agent(Round(2));
  auto runtime = Runtime::FromEnvironment(agent.EnvironmentOf(0, 2));
  ASSERT_THAT(runtime, IsOk());
  EXPECT_THAT((*runtime)->NextRound(absl::Minutes(1)).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("SurviveRounds")));
  (*runtime)->SurviveRounds();
  EXPECT_THAT((*runtime)->NextRound(absl::Milliseconds(50)).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  agent.HangUp();
  EXPECT_THAT((*runtime)->NextRound(absl::Minutes(1)).status(),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST(Runtime, ACommunicatorThatIsMadeTooLateIsAbortedAtOnce) {
  FakeAgent agent(Round(2));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      auto runtime = Runtime::FromEnvironment(agent.EnvironmentOf(rank, 2));
      ASSERT_THAT(runtime, IsOk());
      if (rank == 0) {
        (*runtime)->SurviveRounds();
        ASSERT_TRUE(agent.WaitForSurvivors(1));
        agent.EndRound(true, "rank 7 is gone");
      }
      auto world =
          (*runtime)->MakeCommunicator("world", "gloo", {.connect_timeout = absl::Seconds(2)});
      if (world.ok()) {
        EXPECT_THAT((*world)->Barrier().Wait(), StatusIs(absl::StatusCode::kAborted));
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

// Three ranks, of which the last is gone in the next round; a new process is in its place.
TEST(Runtime, RemakesACommunicatorOfAnEarlierRound) {
  FakeAgent before(Round(2)), after(Round(3));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      auto runtime = Runtime::FromEnvironment(before.EnvironmentOf(rank, 3));
      ASSERT_THAT(runtime, IsOk());
      auto made = (*runtime)->MakeCommunicator("dp");
      ASSERT_THAT(made, IsOk());
      ASSERT_THAT((*made)->Barrier().Wait(), IsOk());  // all have met before one leaves
      if (rank == 2) made->reset();
      runtime = Runtime::FromEnvironment(after.EnvironmentOf(rank, 3));
      ASSERT_THAT(runtime, IsOk());
      auto next = rank == 2 ? (*runtime)->MakeCommunicator("dp")
                            : (*runtime)->RemakeCommunicator(*std::move(made));
      ASSERT_THAT(next, IsOk());
      EXPECT_EQ((*next)->group(), "dp");
      std::vector<int64_t> sum = {rank};
      EXPECT_THAT((*next)->AllReduce(BufferOf(sum)).Wait(), IsOk());
      EXPECT_EQ(sum[0], 3);
      EXPECT_THAT((*next)->Barrier().Wait(), IsOk());
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(Runtime, RemakesNothingOfNothing) {
  auto runtime = Runtime::FromEnvironment(EnvironmentMap{});
  ASSERT_THAT(runtime, IsOk());
  EXPECT_THAT((*runtime)->RemakeCommunicator(nullptr),
              StatusIs(absl::StatusCode::kInvalidArgument));
  // One rank, remade from what has failed.
  auto world = (*runtime)->MakeCommunicator("world");
  ASSERT_THAT(world, IsOk());
  (*world)->Abort("enough");
  auto again = (*runtime)->RemakeCommunicator(*std::move(world));
  ASSERT_THAT(again, IsOk());
  EXPECT_THAT((*again)->Barrier().Wait(), IsOk());
}

TEST(Runtime, RefusesBackendsThatCannotServeTheJob) {
  const FakeAgent agent(Round(2));
  EnvironmentMap environment = agent.EnvironmentOf(0, 2);
  environment["GLOO_SOCKET_IFNAME"] = "eth77";
  auto runtime = Runtime::FromEnvironment(environment);
  ASSERT_THAT(runtime, IsOk());
  EXPECT_THAT((*runtime)->MakeCommunicator("a", "loopback"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("threads of one process")));
  EXPECT_THAT((*runtime)->MakeCommunicator("b", "mpi"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("loopback, gloo, nccl")));
  EXPECT_THAT((*runtime)->MakeCommunicator("c", "gloo"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("GLOO_SOCKET_IFNAME=eth77"), HasSubstr("lo (127.0.0.1)"))));
}

const StopState kOpen = {.is_stopping = true, .reason = "node b is drained"};

StopState At(int64_t step) {
  return {.is_stopping = true, .step = step, .reason = "node b is drained"};
}

TEST(Runtime, NeverStopsWithoutAnAgent) {
  auto runtime = Runtime::FromEnvironment(EnvironmentMap{});
  ASSERT_THAT(runtime, IsOk());
  EXPECT_FALSE((*runtime)->ShouldStop(0));
  EXPECT_EQ((*runtime)->stop_reason(), "");
}

// One is a step behind; the other, in the middle of a step, never asks before the step is named.
TEST(Runtime, LeavesAtTheStepThatIsNamedOnceAllHaveSaidHowFarTheyAre) {
  FakeAgent agent(Round(2));
  auto ahead = Runtime::FromEnvironment(agent.EnvironmentOf(0, 2));
  auto behind = Runtime::FromEnvironment(agent.EnvironmentOf(1, 2));
  ASSERT_THAT(ahead, IsOk());
  ASSERT_THAT(behind, IsOk());
  EXPECT_FALSE((*ahead)->ShouldStop(6));
  EXPECT_FALSE((*behind)->ShouldStop(5));
  ASSERT_TRUE(agent.WaitForObeying(2));
  agent.Tell(kOpen);
  ASSERT_TRUE(agent.WaitForFloors(2));
  EXPECT_THAT(agent.floors(), ElementsAre(Pair(0, 7), Pair(1, 6)));
  std::thread held([&] {
    EXPECT_FALSE((*behind)->ShouldStop(6));
    EXPECT_TRUE((*behind)->ShouldStop(7));
  });
  agent.Tell(At(7));
  EXPECT_TRUE((*ahead)->ShouldStop(7));
  held.join();
  EXPECT_EQ((*ahead)->stop_reason(), "node b is drained");
}

TEST(Runtime, IsToldOfAStopThatBeganBeforeItFirstAsked) {
  FakeAgent agent(Round(2));
  agent.Tell(kOpen);
  auto runtime = Runtime::FromEnvironment(agent.EnvironmentOf(0, 1));
  ASSERT_THAT(runtime, IsOk());
  EXPECT_FALSE((*runtime)->ShouldStop(-1));
  ASSERT_TRUE(agent.WaitForFloors(1));
  EXPECT_THAT(agent.floors(), ElementsAre(Pair(0, 0)));
}

TEST(Runtime, PromisesNothingBeforeItFirstAsks) {
  FakeAgent agent(Round(2));
  auto silent = Runtime::FromEnvironment(agent.EnvironmentOf(0, 2));
  auto asking = Runtime::FromEnvironment(agent.EnvironmentOf(1, 2));
  ASSERT_THAT(silent, IsOk());
  ASSERT_THAT(asking, IsOk());
  EXPECT_FALSE((*asking)->ShouldStop(3));
  ASSERT_TRUE(agent.WaitForObeying(1));
  agent.Tell(kOpen);
  ASSERT_TRUE(agent.WaitForFloors(1));
  EXPECT_THAT(agent.floors(), ElementsAre(Pair(1, 4)));
}

TEST(Runtime, GoesOnWhenItsAgentIsGoneWhileItHolds) {
  FakeAgent agent(Round(2));
  auto runtime = Runtime::FromEnvironment(agent.EnvironmentOf(0, 1));
  ASSERT_THAT(runtime, IsOk());
  EXPECT_FALSE((*runtime)->ShouldStop(0));
  ASSERT_TRUE(agent.WaitForObeying(1));
  agent.Tell(kOpen);
  ASSERT_TRUE(agent.WaitForFloors(1));
  std::thread held([&] { EXPECT_FALSE((*runtime)->ShouldStop(1)); });
  agent.HangUp();
  held.join();
}

TEST(Runtime, TellsNotNowFromNeverWhenACheckpointMayNotBePublished) {
  FakeAgent agent(Round(2));
  auto runtime = Runtime::FromEnvironment(agent.EnvironmentOf(0, 1));
  ASSERT_THAT(runtime, IsOk());
  EXPECT_THAT((*runtime)->CommitCheckpoint(8), IsOk());
  agent.AnswerCommitsWith(absl::UnavailableError("not now: cut off"));
  EXPECT_THAT((*runtime)->CommitCheckpoint(8),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("cut off")));
  const absl::Status not_now = (*runtime)->checkpoint_fence().commit(8);
  EXPECT_TRUE(IsRefusedByFence(not_now) && !IsRefusedForGood(not_now)) << not_now;
  agent.AnswerCommitsWith(absl::AbortedError("round 2 is over"));
  EXPECT_THAT((*runtime)->CommitCheckpoint(8),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("round 2 is over")));
  const absl::Status never = (*runtime)->checkpoint_fence().commit(8);
  EXPECT_THAT(never.message(), HasSubstr("round 2 is over"));
  EXPECT_TRUE(IsRefusedByFence(never) && IsRefusedForGood(never)) << never;
  agent.AnswerCommitsWith(absl::InvalidArgumentError("no such step"));
  EXPECT_THAT((*runtime)->CommitCheckpoint(8), StatusIs(absl::StatusCode::kInvalidArgument));
  agent.HangUp();
  EXPECT_THAT((*runtime)->CommitCheckpoint(8), StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace muster
