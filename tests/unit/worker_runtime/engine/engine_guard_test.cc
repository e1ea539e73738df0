// What fails on one rank alone ends all of its groups, whichever of them the others wait in.
// Sources: worker_runtime/engine/rig.h, engine.cc, state_keeper.h, step_runner.h, units_alone.h.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/emulation/emulated_cuda.h"
#include "tests/support/emulation/late_device.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/engine/training_ranks.h"
#include "worker_runtime/cuda/cuda_device.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kRanks = 4;

// What an act may need of the time before.
struct Before {
  std::string saved;  // where a checkpoint lies
  EngineSnapshot snapshot;
};

using Act = std::function<absl::Status(SmallTraining& on, const Before& before)>;

struct NamedAct {
  std::string name;
  Act act;
};

// No rank's engine goes before all ranks have heard: its end would tell the others, too.
std::vector<absl::Status> EndsOf(
    const std::function<absl::Status(Communicator& world, std::latch& all_have_heard)>& body) {
  std::latch all_have_heard(kRanks);
  return OnRanks<absl::Status>(kRanks,
                               [&](Communicator& world) { return body(world, all_have_heard); });
}

void ExpectToldBy(int failing, const std::string& what, const std::vector<absl::Status>& ends) {
  for (int rank = 0; rank < kRanks; ++rank) {
    SCOPED_TRACE(absl::StrCat("rank ", rank));
    if (rank == failing) {
      EXPECT_THAT(ends[rank], StatusIs(absl::StatusCode::kInternal, HasSubstr(what)));
    } else {
      // A rank that passes it on adds nothing.
      EXPECT_THAT(ends[rank], StatusIs(absl::StatusCode::kAborted,
                                       AllOf(HasSubstr(absl::StrCat("rank ", failing, ": ", what)),
                                             Not(ContainsRegex(": rank [0-9]+: rank ")))));
    }
  }
}

TEST(GroupsOfAnEngine, EndWhereOneRankCannotEvaluate) {
  for (const char* preset : {"ddp", "zero-3", "hybrid-shard"}) {
    SCOPED_TRACE(preset);
    ExpectToldBy(1, "no such batch", EndsOf([&](Communicator& world, std::latch& all_have_heard) {
                   auto training = SmallTraining::Create(
                       world, Under(preset, SmallPlan(SumMode::kFast, 1), kRanks));
                   const absl::Status end =
                       (*training)
                           ->engine()
                           .Evaluate(1,
                                     [&](Tape& tape, int64_t) -> absl::StatusOr<Loss> {
                                       if (world.rank() == 1) {
                                         return absl::InternalError("no such batch");
                                       }
                                       return (*training)->Sample(tape);
                                     })
                           .status();
                   all_have_heard.arrive_and_wait();
                   return end;
                 }));
  }
}

TEST(GroupsOfAnEngine, EndWhereTheProgramOfOneRankSaysSo) {
  ExpectToldBy(1, "out of paper", EndsOf([&](Communicator& world, std::latch& all_have_heard) {
                 auto training = SmallTraining::Create(
                     world, Under("hybrid-shard", SmallPlan(SumMode::kFast, 1), kRanks));
                 absl::Status end = absl::InternalError("out of paper");
                 if (world.rank() == 1) {
                   (*training)->engine().Abort("rank 1: out of paper");
                 } else {
                   end = (*training)->Step().status();
                 }
                 all_have_heard.arrive_and_wait();
                 return end;
               }));
}

TEST(EngineOfNoRank, IsMadeWhereOneCannotRunItsSample) {
  for (const int stages : {1, 2}) {
    const auto ends = EndsOf([&](Communicator& world, std::latch& all_have_heard) {
      Plan plan = SmallPlan(SumMode::kFast, 2);
      plan.stages = stages;
      ParameterStore store;
      const auto gpt = *Decoder::Create(kSmallGpt, store);
      const UnitModel units = gpt->Units();
      const auto sample = [&](Tape& tape) -> absl::StatusOr<Loss> {
        if (world.rank() == 1) return absl::InternalError("no such batch");
        const SmallBatch batch(0, 0);
        return gpt->ComputeLoss(tape, batch.tokens(), batch.targets);
      };
      const auto model = [&](Tape& tape, UnitRange range, const ModelInput& input,
                             absl::Span<const Activation> received) -> absl::StatusOr<StageOutput> {
        if (world.rank() == 1) return absl::InternalError("no such batch");
        return units(tape, range, input, received);
      };
      const Engine::BatchSize size = {.batch = kRows, .sequence = kSmallGpt.context};
      const absl::Status end = stages == 1
                                   ? Engine::Create(world, store, plan, sample).status()
                                   : Engine::Create(world, store, plan, model, size).status();
      all_have_heard.arrive_and_wait();
      return end;
    });
    EXPECT_THAT(ends, Each(StatusIs(absl::StatusCode::kInternal, Eq("rank 1: no such batch"))));
  }
}

// The device of `failing` fails after a step and a save to `saved`; then all ranks act.
std::vector<absl::Status> EndsWithADevice(const std::string& preset, int failing,
                                          const std::string& saved, const Act& act) {
  EmulatedCuda cuda({.seed = 8});
  std::vector<absl::Status> ends = EndsOf([&](Communicator& world, std::latch& all_have_heard) {
    const std::unique_ptr<Device> device = MakeLateDevice(cuda);
    auto training = SmallTraining::Create(
        world, Under(preset, SmallPlan(SumMode::kFast, 1), kRanks), DType::kF32, device.get());
    EXPECT_THAT((*training)->Steps(1), IsOk());
    EXPECT_THAT((*training)->engine().Save(saved, {}), IsOk());
    const Before before = {saved, *(*training)->engine().TakeSnapshot()};
    if (world.rank() == failing) {
      static_cast<const CudaDevice&>(*device).Keep(absl::InternalError("it fell off the bus"));
    }
    const absl::Status end = act(**training, before);
    all_have_heard.arrive_and_wait();
    return end;
  });
  EXPECT_THAT(cuda.Finish(), IsOk());
  return ends;
}

class ActsOfAllRanks : public ::testing::TestWithParam<NamedAct> {};

TEST_P(ActsOfAllRanks, EndWithTheDeviceOfOne) {
  for (const std::string preset : {"ddp", "hybrid-shard"}) {
    for (const int failing : {0, 1}) {
      SCOPED_TRACE(absl::StrCat("rank ", failing, " under ", preset));
      const TemporaryDirectory directory;
      const std::string saved = directory.File("saved");
      ExpectToldBy(failing, "it fell off the bus",
                   EndsWithADevice(preset, failing, saved, GetParam().act));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Engine, ActsOfAllRanks,
    ::testing::ValuesIn(std::vector<NamedAct>{
        {"Step", [](SmallTraining& on, const Before&) { return on.Step().status(); }},
        {"Evaluate", [](SmallTraining& on, const Before&) { return on.Evaluate(1).status(); }},
        // The others may hear of it in the step that follows.
        {"ParameterHash",
         [](SmallTraining& on, const Before&) -> absl::Status {
           MUSTER_RETURN_IF_ERROR(on.engine().ParameterHash().status());
           return on.Step().status();
         }},
        {"Load", [](SmallTraining& on,
                    const Before& before) { return on.engine().Load(before.saved).status(); }},
        {"Restore",
         [](SmallTraining& on, const Before& before) {
           return on.engine().Restore(before.snapshot).status();
         }},
        {"Save",
         [](SmallTraining& on, const Before& before) {
           return on.engine().Save(absl::StrCat(before.saved, "_again"), {});
         }},
    }),
    [](const auto& act) { return act.param.name; });

}  // namespace
}  // namespace muster::testing
