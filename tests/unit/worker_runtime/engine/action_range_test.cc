// What a profiler is told of a step, by one that is linked into this program.
#include "worker_runtime/engine/action_range.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nvtx3/nvToolsExt.h>

#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "proto/base/mutex.h"
#include "tests/unit/worker_runtime/engine/training_ranks.h"

namespace muster::testing {
namespace {

struct Profiler {
  base::Mutex mu;
  std::vector<std::string> begun ABSL_GUARDED_BY(mu);
  int open ABSL_GUARDED_BY(mu) = 0;
};
Profiler& TheProfiler() {
  static auto& profiler = *new Profiler();
  return profiler;
}

int Push(const char* name) {
  Profiler& profiler = TheProfiler();
  base::MutexLock lock(profiler.mu);
  profiler.begun.emplace_back(name);
  return profiler.open++;
}
int Pop() {
  Profiler& profiler = TheProfiler();
  base::MutexLock lock(profiler.mu);
  return --profiler.open;
}

int Attach(NvtxGetExportTableFunc_t tables) {
  const auto* const callbacks =
      static_cast<const NvtxExportTableCallbacks*>(tables(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable functions = nullptr;
  unsigned count = 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &functions, &count) == 0) return 0;
  *functions[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(&Push);
  *functions[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(&Pop);
  return 1;
}

TEST(ActionRange, NamesEachActionOfAStepAndWhatIsWaitedFor) {
  InitializeInjectionNvtx2_fnptr = &Attach;  // is looked at with the first range
  OnRanks<int>(2, [](Communicator& world) {
    auto training = SmallTraining::Create(world, SmallPlan(SumMode::kFast, 1));
    EXPECT_THAT((*training)->Steps(1), IsOk());
    return 0;
  });
  Profiler& profiler = TheProfiler();
  base::MutexLock lock(profiler.mu);
  for (const char* name :
       {"FORWARD", "BACKWARD", "REDUCE", "wait for REDUCE", "NORM", "CLIP", "UPDATE"}) {
    EXPECT_THAT(profiler.begun, ::testing::Contains(name));
  }
  EXPECT_EQ(profiler.open, 0);
}

}  // namespace
}  // namespace muster::testing
