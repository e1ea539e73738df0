// A rank's state that outlives its engine, and a world that goes on from what its ranks have of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <latch>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/engine/reader_training.h"
#include "tests/unit/worker_runtime/engine/watched_communicator.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

// Micro-batches of a step of every world of these tests.
constexpr int64_t kMicroBatches = 12;

Plan PlanOn(int ranks) { return SmallPlan(SumMode::kOrdered, kMicroBatches / ranks); }

std::unique_ptr<SmallTraining> MakeTraining(Communicator& world, const Plan& plan,
                                            DType dtype = DType::kF32) {
  auto training = SmallTraining::Create(world, plan, dtype);
  EXPECT_THAT(training, IsOk());
  return *std::move(training);
}

EngineSnapshot SnapshotOf(Engine& engine) {
  auto snapshot = engine.TakeSnapshot();
  EXPECT_THAT(snapshot, IsOk());
  return snapshot.ok() ? *std::move(snapshot) : EngineSnapshot();
}

// Snapshots of each rank, after so many steps of the plan.
std::vector<EngineSnapshot> SnapshotsAfter(int ranks, const Plan& plan, int steps,
                                           DType dtype = DType::kF32) {
  return OnRanks<EngineSnapshot>(ranks, [&](Communicator& world) {
    auto training = MakeTraining(world, plan, dtype);
    EXPECT_THAT(training->Steps(steps), IsOk());
    return SnapshotOf(training->engine());
  });
}

struct GoneOn {
  absl::Status status;
  int from_rank = -1;
  int num_ranks = 0;  // that gave of their state
  int64_t from_step = -1;
  std::string hash;
};

// A new world, each of whose ranks brings a snapshot, until `steps` steps are made in all.
std::vector<GoneOn> GoOn(const std::vector<EngineSnapshot>& brought, const Plan& plan, int steps,
                         DType dtype = DType::kF32) {
  return OnRanks<GoneOn>(static_cast<int>(brought.size()), [&](Communicator& world) -> GoneOn {
    auto training = MakeTraining(world, plan, dtype);
    Engine& engine = training->engine();
    const auto restored = engine.Restore(brought[world.rank()]);
    if (!restored.ok()) return {.status = restored.status()};
    EXPECT_EQ(engine.step(), restored->step);
    const auto losses = training->Steps(steps - static_cast<int>(restored->step));
    return {losses.status(), restored->rank, restored->num_ranks, restored->step,
            engine.ParameterHash().value_or("none")};
  });
}

void ExpectAll(const std::vector<GoneOn>& ranks, int from_rank, int64_t from_step,
               const std::string& hash, int num_ranks = 1) {
  for (const GoneOn& rank : ranks) {
    EXPECT_THAT(rank.status, IsOk());
    EXPECT_EQ(rank.from_rank, from_rank);
    EXPECT_EQ(rank.num_ranks, num_ranks);
    EXPECT_EQ(rank.from_step, from_step);
    EXPECT_EQ(rank.hash, hash);
  }
}

// Three of four ranks, after three steps and in the middle of the fourth: one has not begun it, one
// waits for what the last has not sent, one is in its backward pass. The last has died, and has no
// snapshot.
std::vector<EngineSnapshot> Survivors() {
  std::promise<void> death;
  const std::shared_future<void> died = death.get_future().share();
  return OnRanks<EngineSnapshot>(4, [&](Communicator& world) {
    auto training = MakeTraining(world, PlanOn(4));
    EXPECT_THAT(training->Steps(3), IsOk());
    if (world.rank() == 0) {
      training->before_forward = [&](int64_t) {
        died.wait();
        return absl::OkStatus();
      };
    }
    if (world.rank() == 2) training->within_backward = [&] { died.wait(); };
    if (world.rank() == 3) {
      training->before_forward = [&](int64_t index) {
        if (index < 2) return absl::OkStatus();
        world.Abort("rank 3 has died");
        death.set_value();
        return absl::UnavailableError("this is the end");
      };
    }
    const absl::Status failure = training->Step().status();
    if (world.rank() == 3) return EngineSnapshot();
    EXPECT_THAT(failure, StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 3 has died")));
    return SnapshotOf(training->engine());
  });
}

TEST(EngineSnapshot, IsTheStateAfterTheLastCompleteStepAndFewerRanksGoOnFromItToTheSameBits) {
  std::vector<EngineSnapshot> survivors = Survivors();
  EXPECT_TRUE(survivors.back().empty());
  survivors.pop_back();
  ExpectAll(GoOn(survivors, PlanOn(3), 6), 0, 3, Train(1, PlanOn(1), 6).hash);
}

TEST(EngineSnapshot, GoesToARankThatIsNewWhicheverRankThatIs) {
  const std::string expected = Train(1, PlanOn(1), 6).hash;
  for (const int newcomer : {0, 1, 3}) {
    std::vector<EngineSnapshot> brought = Survivors();
    std::swap(brought[newcomer], brought[3]);
    ExpectAll(GoOn(brought, PlanOn(4), 6), newcomer == 0 ? 1 : 0, 3, expected);
  }
}

TEST(EngineSnapshot, OfTheRankThatHasMadeTheMostStepsIsTaken) {
  std::vector<EngineSnapshot> brought = SnapshotsAfter(3, PlanOn(3), 2);
  brought[1] = std::move(SnapshotsAfter(3, PlanOn(3), 3)[0]);
  brought[2] = std::move(SnapshotsAfter(3, PlanOn(3), 3)[0]);
  ExpectAll(GoOn(brought, PlanOn(3), 5), 1, 3, Train(1, PlanOn(1), 5).hash);
}

TEST(EngineSnapshot, IsNotFoundOnAnyRankWhereNoneHasOneAndNothingIsChanged) {
  const auto ranks = OnRanks<std::string>(3, [](Communicator& world) {
    auto training = MakeTraining(world, PlanOn(3));
    EXPECT_THAT(training->engine().Restore(EngineSnapshot()),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("none of 3 ranks")));
    EXPECT_THAT(training->Steps(2), IsOk());
    return training->engine().ParameterHash().value_or("none");
  });
  EXPECT_THAT(ranks, Each(Train(1, PlanOn(1), 2).hash));
}

TEST(EngineSnapshot, OfAReplicatedPlanIsRestoredByEveryPlan) {
  const std::string expected = Train(1, PlanOn(1), 5).hash;
  for (const std::string& preset : DataParallelPresets()) {
    SCOPED_TRACE(preset);
    std::vector<EngineSnapshot> brought(4);
    brought[2] = std::move(SnapshotsAfter(2, PlanOn(2), 3)[1]);
    ExpectAll(GoOn(brought, Under(preset, PlanOn(4), 4), 5), 2, 3, expected);
  }
}

// Steps on batches of a reader, since the engine cuts the model.
TEST(EngineSnapshot, OfAReplicatedPlanIsRestoredByAPipeline) {
  EngineSnapshot taken;
  const auto whole = OnRanks<std::string>(1, [&](Communicator& world) {
    ReaderTraining on(world, PlanOn(1), nullptr);
    on.Steps(3);
    taken = SnapshotOf(*on.engine);
    on.Steps(2);
    return on.Hash();
  });
  Plan plan = PlanOn(1);
  plan.stages = 2;
  const EngineSnapshot none;
  const auto hashes = OnRanks<std::string>(2, [&](Communicator& world) {
    ReaderTraining on(world, plan, nullptr);
    EXPECT_THAT(on.engine->Restore(world.rank() == 1 ? taken : none), IsOk());
    on.Steps(2);
    return on.Hash();
  });
  EXPECT_THAT(hashes, Each(whole[0]));
}

constexpr const char* kSpread[] = {"zero-1", "zero-2", "zero-3", "full-shard"};

TEST(EngineSnapshot, OfShardsIsPutTogetherForEveryPlan) {
  const std::string expected = Train(1, PlanOn(1), 5).hash;
  for (const char* from : kSpread) {
    const std::vector<EngineSnapshot> brought = SnapshotsAfter(3, Under(from, PlanOn(3), 3), 3);
    for (const std::string& to : DataParallelPresets()) {
      SCOPED_TRACE(absl::StrCat(from, " to ", to));
      ExpectAll(GoOn(brought, Under(to, PlanOn(3), 3), 5), 0, 3, expected, 3);
    }
  }
}

TEST(EngineSnapshot, OfShardsGoesToMoreRanksAndOthers) {
  std::vector<EngineSnapshot> brought = SnapshotsAfter(2, Under("zero-3", PlanOn(2), 2), 3);
  brought.resize(4);
  std::swap(brought[0], brought[3]);
  ExpectAll(GoOn(brought, Under("full-shard", PlanOn(4), 4), 5), 1, 3, Train(1, PlanOn(1), 5).hash,
            2);
}

TEST(EngineSnapshot, OfALostShardIsMissedOnEveryRank) {
  for (const char* preset : kSpread) {
    SCOPED_TRACE(preset);
    const Plan plan = Under(preset, PlanOn(2), 2);
    std::vector<EngineSnapshot> brought = SnapshotsAfter(2, plan, 3);
    brought[1] = EngineSnapshot();
    for (const GoneOn& rank : GoOn(brought, plan, 5)) {
      EXPECT_THAT(rank.status, StatusIs(absl::StatusCode::kNotFound,
                                        AllOf(HasSubstr("2 ranks have no whole state together"),
                                              HasSubstr("after step 3 they lack "))));
    }
  }
}

// Two groups of two ranks.
TEST(EngineSnapshot, OfShardsWithReplicasOutlivesTheLossOfEachRank) {
  const std::string expected = Train(1, PlanOn(1), 5).hash;
  for (const char* preset : {"hybrid-shard", "hybrid-shard-zero2"}) {
    const Plan plan = Under(preset, PlanOn(4), 4);
    ASSERT_EQ(plan.shard_ranks, 2);
    for (int lost = 0; lost < 4; ++lost) {
      SCOPED_TRACE(absl::StrCat(preset, " without rank ", lost));
      std::vector<EngineSnapshot> brought = SnapshotsAfter(4, plan, 3);
      brought[lost] = EngineSnapshot();
      ExpectAll(GoOn(brought, plan, 5), lost == 0 ? 1 : 0, 3, expected, 2);
    }
  }
}

// Two ranks that were lost may have held the same shard, or each another.
TEST(EngineSnapshot, OfShardsWithReplicasOutlivesTheLossOfAWholeReplica) {
  const Plan plan = Under("hybrid-shard", PlanOn(4), 4);
  std::vector<EngineSnapshot> brought = SnapshotsAfter(4, plan, 3);
  std::vector<EngineSnapshot> left;
  left.push_back(std::move(brought[2]));
  left.push_back(std::move(brought[3]));
  ExpectAll(GoOn(left, Under("hybrid-shard", PlanOn(2), 2), 5), 0, 3, Train(1, PlanOn(1), 5).hash,
            2);
  left[1] = std::move(brought[0]);
  EXPECT_THAT(GoOn(left, PlanOn(2), 5)[0].status, StatusIs(absl::StatusCode::kNotFound));
}

// What a rank has updated is its own, also where the others never hear of it.
TEST(EngineSnapshot, OfShardsHasTheStepWhoseUpdatesAreDoneThoughTheirGathersFailed) {
  const std::string expected = Train(1, PlanOn(1), 4).hash;
  for (const char* preset : {"zero-1", "zero-2"}) {
    SCOPED_TRACE(preset);
    Plan plan = Under(preset, PlanOn(4), 4);
    plan.buckets.bytes_max = 8'000;
    std::latch all_update(4);
    const std::vector<EngineSnapshot> brought =
        OnRanks<EngineSnapshot>(4, [&](Communicator& world) {
          auto training = MakeTraining(world, plan);
          EXPECT_THAT(training->Steps(1), IsOk());
          bool updates = false;
          training->engine().OnAction([&](const TimedAction& action) {
            if (!absl::StartsWith(action.what, "UPDATE") || std::exchange(updates, true)) return;
            all_update.arrive_and_wait();
            world.Abort("rank 4 has died");
          });
          EXPECT_THAT(training->Step(), StatusIs(absl::StatusCode::kAborted));
          EngineSnapshot taken = SnapshotOf(training->engine());
          EXPECT_EQ(taken.step(), 2);
          return taken;
        });
    ExpectAll(GoOn(brought, plan, 4), 0, 2, expected, 4);
  }
}

// Ranks of two trainings hold the same parameters, each as its own training has left them.
TEST(EngineSnapshot, OfRanksThatAreNotAlikeIsRefusedOnEveryRank) {
  for (const auto& [preset, other] : {std::pair{"ddp", 1}, {"hybrid-shard", 2}}) {
    const Plan plan = Under(preset, PlanOn(4), 2);
    Plan unlike = plan;
    unlike.seed = 4711;
    std::vector<EngineSnapshot> brought = SnapshotsAfter(4, plan, 3);
    std::vector<EngineSnapshot> others = SnapshotsAfter(4, unlike, 3);
    for (int rank = other; rank < 4; ++rank) brought[rank] = std::move(others[rank]);
    for (const GoneOn& rank : GoOn(brought, plan, 5)) {
      EXPECT_THAT(rank.status, StatusIs(absl::StatusCode::kDataLoss,
                                        HasSubstr(absl::StrCat("the parameters of rank ", other,
                                                               " differ from those of rank 0 "))))
          << preset;
    }
  }
}

// Each rank has its own parts already, and no rank asks for those of others to compare them.
TEST(EngineSnapshot, OfTheSameRanksMovesNoParameters) {
  const Plan plan = Under("zero-3", PlanOn(4), 4);
  const std::vector<EngineSnapshot> brought = SnapshotsAfter(4, plan, 2);
  OnRanks<int>(4, [&](Communicator& world) {
    auto training = MakeTraining(world, plan);
    Engine& engine = training->engine();
    const int64_t before = engine.bytes_sent();
    EXPECT_THAT(engine.Restore(brought[world.rank()]), IsOk());
    EXPECT_LT(engine.bytes_sent() - before, engine.memory().parameters / 4) << "of its shard";
    return 0;
  });
}

TEST(EngineSnapshot, IsTakenOfEveryPlanOfOneRank) {
  const std::string expected = Train(1, PlanOn(1), 4).hash;
  for (const std::string& preset : DataParallelPresets()) {
    SCOPED_TRACE(preset);
    ExpectAll(GoOn(SnapshotsAfter(1, Under(preset, PlanOn(1), 1), 2), PlanOn(1), 4), 0, 2,
              expected);
  }
}

TEST(EngineSnapshot, KeepsWhatValuesOfSixteenBitsFollow) {
  Plan plan = PlanOn(2);
  plan.update.stochastic_rounding = true;
  const std::string expected = Train(2, plan, 5, DType::kBf16).hash;
  std::vector<EngineSnapshot> brought = SnapshotsAfter(2, plan, 3, DType::kBf16);
  brought[0] = EngineSnapshot();
  ExpectAll(GoOn(brought, plan, 5, DType::kBf16), 1, 3, expected);
}

TEST(EngineSnapshot, KeepsTheLossScaleAndTheStepsThatItSkipped) {
  struct Course {
    std::vector<double> scales, rates;
    int skipped = 0;
    std::string hash;
  };
  Plan plan = PlanOn(2);
  plan.loss_scaling = kTooLargeAtFirst;
  plan.learning_rate = {.kind = LearningRateSchedule::Kind::kCosine,
                        .peak = 3e-3,
                        .warmup_steps = 2,
                        .total_steps = 12};
  const auto course = [&](bool interrupted) {
    return OnRanks<Course>(2, [&](Communicator& world) {
      auto on = std::make_unique<ReaderTraining>(world, plan, nullptr);
      on->Steps(7);
      Course all = {on->scales, on->rates, on->skipped};
      if (interrupted) {
        EngineSnapshot taken = SnapshotOf(*on->engine);
        on = std::make_unique<ReaderTraining>(world, plan, nullptr);
        EXPECT_THAT(on->engine->Restore(taken), IsOk());
      }
      on->scales.clear();
      on->rates.clear();
      on->skipped = 0;
      on->Steps(5);
      all.scales.insert(all.scales.end(), on->scales.begin(), on->scales.end());
      all.rates.insert(all.rates.end(), on->rates.begin(), on->rates.end());
      all.skipped += on->skipped;
      all.hash = on->Hash();
      return all;
    })[0];
  };
  const Course whole = course(false);
  const Course interrupted = course(true);
  EXPECT_GT(whole.skipped, 0);
  EXPECT_EQ(interrupted.skipped, whole.skipped);
  EXPECT_EQ(interrupted.scales, whole.scales);
  EXPECT_EQ(interrupted.rates, whole.rates);
  EXPECT_EQ(interrupted.hash, whole.hash);
}

TEST(EngineSnapshot, OfAnotherOptimizerIsRefusedOnEveryRankAndNothingIsChanged) {
  Plan sgd = PlanOn(2);
  sgd.update = {.kind = UpdateRule::Kind::kSgd, .momentum = 0.9};
  std::vector<EngineSnapshot> brought = SnapshotsAfter(2, sgd, 1);
  const auto hashes = OnRanks<std::string>(2, [&](Communicator& world) {
    auto training = MakeTraining(world, PlanOn(2));
    EXPECT_THAT(training->engine().Restore(brought[world.rank()]),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("the state of rank 0"), HasSubstr("first_moment."))));
    EXPECT_THAT(training->Steps(2), IsOk());
    return training->engine().ParameterHash().value_or("none");
  });
  EXPECT_THAT(hashes, Each(Train(1, PlanOn(1), 2).hash));
}

// Another rank is lost while the world comes together.
TEST(EngineSnapshot, IsOfUseAgainWhereItsRestoringWasInterruptedWhichLeavesNoStateInTheEngine) {
  const std::vector<EngineSnapshot> brought = SnapshotsAfter(3, PlanOn(3), 2);
  const auto interrupted = OnRanks<absl::Status>(3, [&](Communicator& world) {
    auto training = MakeTraining(world, PlanOn(3));
    int arrays = 0;
    training->engine().OnPhase([&](int64_t, Phase) {
      if (world.rank() == 2 && ++arrays == 4) world.Abort("rank 2 has died");
    });
    EXPECT_THAT(training->engine().Restore(brought[world.rank()]),
                StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 2 has died")));
    return training->engine().TakeSnapshot().status();
  });
  EXPECT_THAT(interrupted, Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                                         HasSubstr("the state is of no step"))));
  ExpectAll(GoOn(brought, PlanOn(3), 4), 0, 2, Train(1, PlanOn(1), 4).hash);
}

// The first step of a plan without a sample ends with a collective behind its update.
TEST(EngineSnapshot, HasTheStepWhoseUpdateIsDoneThoughWhatFollowedFailed) {
  const auto steps = OnRanks<int64_t>(2, [](Communicator& world) -> int64_t {
    ParameterStore store;
    const auto gpt = *Decoder::Create(kSmallGpt, store);
    const auto behind_update = static_cast<int64_t>(store.parameters().size()) * world.size();
    bool in_step = false;
    WatchedCommunicator watched(world, [&](int64_t count) {
      if (in_step && count == behind_update) world.Abort("rank 2 has died");
    });
    const auto engine = *Engine::Create(watched, store, SmallPlan(SumMode::kFast, 1));
    const SmallText text;
    const auto reader = *engine->Read(text, kWhole);
    in_step = true;
    EXPECT_THAT(engine->Step(*reader,
                             [&](Tape& tape, const Batch& batch) {
                               return gpt->ComputeLoss(tape, batch.tokens(), batch.targets);
                             }),
                StatusIs(absl::StatusCode::kAborted));
    return SnapshotOf(*engine).step();
  });
  EXPECT_THAT(steps, Each(1));
}

TEST(EngineSnapshot, IsTheStateThatACheckpointHolds) {
  TemporaryDirectory directory;
  const auto hashes = OnRanks<std::string>(2, [&](Communicator& world) {
    auto training = MakeTraining(world, PlanOn(2));
    EXPECT_THAT(training->Steps(3), IsOk());
    const EngineSnapshot taken = SnapshotOf(training->engine());
    EXPECT_EQ(taken.step(), 3);
    // Steps behind it do not reach it.
    EXPECT_THAT(training->Steps(1), IsOk());
    EXPECT_THAT(training->engine().Restore(taken), IsOk());
    EXPECT_THAT(training->engine().Save(directory.path(), {}), IsOk());
    training = MakeTraining(world, PlanOn(2));
    EXPECT_THAT(training->engine().Load(directory.path()), IsOk());
    EXPECT_THAT(training->Steps(1), IsOk());
    return training->engine().ParameterHash().value_or("none");
  });
  EXPECT_THAT(hashes, Each(Train(1, PlanOn(1), 4).hash));
}

}  // namespace
}  // namespace muster::testing
