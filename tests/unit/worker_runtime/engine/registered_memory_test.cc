#include "worker_runtime/engine/registered_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/emulation/emulated_cuda.h"
#include "tests/support/emulation/late_device.h"
#include "tests/support/emulation/stream_communicators.h"
#include "tests/unit/worker_runtime/engine/small_rig.h"

namespace muster::engine {
namespace {

using ::muster::testing::ActionsOf;
using ::muster::testing::EmulatedCuda;
using ::muster::testing::IsOk;
using ::muster::testing::MakeLateDevice;
using ::muster::testing::MakeStreamCommunicators;
using ::muster::testing::SmallPlan;
using ::muster::testing::SmallRig;
using ::muster::testing::StreamFigures;

struct Calls {
  int64_t in_registered = 0;
  int64_t others = 0;
};

// Two ranks do `body` and reduce a bucket.
template <typename Body>
Calls OnStreams(bool wanted, const Body& body) {
  EmulatedCuda cuda({.seed = 41});
  StreamFigures figures;
  {
    auto communicators = MakeStreamCommunicators(cuda, {.size = 2}, &figures);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        const std::unique_ptr<Device> device = MakeLateDevice(cuda);
        SmallRig small(*communicators[rank], SmallPlan(SumMode::kFast, 1), device.get());
        RegisteredMemory registered(small.rig(), wanted);
        body(registered);
        Rig& rig = small.rig();
        const int reduce = ActionsOf(rig.program, plan::ActionKind::kReduce).front();
        const plan::Action& action = rig.program.actions[reduce];
        EXPECT_THAT(rig.reduction->Start(action).Wait(), IsOk());
        rig.reduction->Finish(action);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_THAT(cuda.Finish(), IsOk());
  return {figures.registered_calls, figures.other_calls};
}

TEST(RegisteredMemory, IsWhatReductionsWorkInIfItIsWanted) {
  for (const bool wanted : {true, false}) {
    const Calls calls = OnStreams(
        wanted, [](RegisteredMemory& registered) { EXPECT_THAT(registered.Register(), IsOk()); });
    EXPECT_EQ(calls.in_registered, wanted ? 2 : 0);
    EXPECT_EQ(calls.others, wanted ? 0 : 2);
  }
}

TEST(RegisteredMemory, IsNoneOnceItWasCleared) {
  const Calls calls = OnStreams(true, [](RegisteredMemory& registered) {
    EXPECT_THAT(registered.Register(), IsOk());
    registered.Clear();
  });
  EXPECT_EQ(calls.in_registered, 0);
  EXPECT_EQ(calls.others, 2);
}

}  // namespace
}  // namespace muster::engine
