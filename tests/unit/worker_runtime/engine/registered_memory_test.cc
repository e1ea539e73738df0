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

using namespace ::muster::testing;

struct Calls {
  int64_t in_registered = 0;
  int64_t others = 0;
};

// Two ranks do `body` and reduce a bucket.
template <typename Body>
Calls OnStreams(const Body& body) {
  EmulatedCuda cuda({.seed = 41});
  StreamFigures figures;
  {
    auto communicators = MakeStreamCommunicators(cuda, {.size = 2}, &figures);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        const std::unique_ptr<Device> device = MakeLateDevice(cuda);
        SmallRig small(*communicators[rank], SmallPlan(SumMode::kFast, 1), device.get());
        RegisteredMemory registered(small.rig());
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
  const Calls calls = OnStreams([](RegisteredMemory& registered) {
    registered.Want(true);
    EXPECT_THAT(registered.BeforeStep(), IsOk());
  });
  EXPECT_EQ(calls.in_registered, 2);
  EXPECT_EQ(calls.others, 0);
}

TEST(RegisteredMemory, IsNoneWhereItIsWantedTooLateOrIsAnotherNow) {
  Calls calls = OnStreams([](RegisteredMemory& registered) {
    EXPECT_THAT(registered.BeforeStep(), IsOk());
    registered.Want(true);
    EXPECT_THAT(registered.BeforeStep(), IsOk());
  });
  EXPECT_EQ(calls.in_registered, 0);
  calls = OnStreams([](RegisteredMemory& registered) {
    registered.Want(true);
    EXPECT_THAT(registered.BeforeStep(), IsOk());
    registered.Clear();
  });
  EXPECT_EQ(calls.in_registered, 0);
}

}  // namespace
}  // namespace muster::engine
