// Work that is ordered as it should be gives the same in every order; what relies on more is found.
#include "tests/support/emulation/emulated_cuda.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "tests/support/emulation/counting_cuda.h"
#include "tests/support/emulation/emulated_stream.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/cuda/cuda_api_contract.h"
#include "worker_runtime/kernels/simt.h"

namespace muster::testing {

std::unique_ptr<CudaApi> CudaApiContract::Open(uint64_t seed, std::string&) {
  return std::make_unique<EmulatedCuda>(EmulatedCuda::Options{.seed = seed});
}

namespace {

INSTANTIATE_TEST_SUITE_P(Emulated, CudaApiContract, ::testing::Range<uint64_t>(1, 9));

namespace simt = kernels::simt;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::Lt;

constexpr int kSeeds = 40;
constexpr size_t kBytes = 32 * sizeof(float);

void SetKernel(float value, float* y) { y[threadIdx.x] = value; }
void AddOneKernel(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x] + 1; }

// Two streams, some memory, and what lies in it.
class TwoStreams {
 public:
  explicit TwoStreams(uint64_t seed) : cuda({.seed = seed}) {
    first = *cuda.CreateStream();
    second = *cuda.CreateStream();
    event = *cuda.CreateEvent();
    x = static_cast<float*>(*cuda.Allocate(kBytes));
    y = static_cast<float*>(*cuda.Allocate(kBytes));
    result = static_cast<float*>(*cuda.AllocatePinned(kBytes));
  }
  ~TwoStreams() {
    cuda.Free(x).IgnoreError();
    cuda.Free(y).IgnoreError();
    cuda.FreePinned(result).IgnoreError();
    cuda.DestroyEvent(event).IgnoreError();
    cuda.DestroyStream(first).IgnoreError();
    cuda.DestroyStream(second).IgnoreError();
  }

  template <typename... Parameters, typename... Arguments>
  void Launch(void (*kernel)(Parameters...), CudaStream stream, Arguments... arguments) {
    EXPECT_EQ(simt::Launch(kernel, {.blocks = 1, .threads = 32}, stream, arguments...), nullptr);
  }
  void Fetch(const float* from, CudaStream stream) {
    EXPECT_THAT(cuda.MemcpyAsync(result, from, kBytes, CopyDirection::kToHost, stream), IsOk());
  }
  float Fetched(const float* from, CudaStream stream) {
    Fetch(from, stream);
    EXPECT_THAT(cuda.SynchronizeStream(stream), IsOk());
    return result[7];
  }

  EmulatedCuda cuda;
  CudaStream first, second;
  CudaEvent event;
  float* x;
  float* y;
  float* result;
};

TEST(EmulatedCuda, KernelsOfAStreamRunInItsOrder) {
  for (int seed = 1; seed <= kSeeds; ++seed) {
    TwoStreams on(seed);
    on.Launch(&SetKernel, on.first, 1.0f, on.x);
    for (int i = 0; i < 10; ++i) on.Launch(&AddOneKernel, on.first, on.x, on.x);
    EXPECT_EQ(on.Fetched(on.x, on.first), 11) << seed;
  }
}

// How many orders give what the second stream should see, with and without its wait.
int OrdersThatAgree(bool with_event, int far_apart) {
  int right = 0;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    TwoStreams on(seed);
    for (int i = 0; i < far_apart; ++i) on.Launch(&SetKernel, on.first, 0.0f, on.x);
    on.Launch(&SetKernel, on.first, 3.0f, on.x);
    EXPECT_THAT(on.cuda.RecordEvent(on.event, on.first), IsOk());
    if (with_event) {
      EXPECT_THAT(on.cuda.StreamWaitEvent(on.second, on.event), IsOk());
    }
    on.Launch(&AddOneKernel, on.second, on.x, on.y);
    if (on.Fetched(on.y, on.second) == 4) ++right;
  }
  return right;
}

TEST(EmulatedCuda, AMissingEventIsFoundByManyOrders) {
  for (const int far_apart : {0, 30}) {
    EXPECT_EQ(OrdersThatAgree(true, far_apart), kSeeds);
    EXPECT_LT(OrdersThatAgree(false, far_apart), kSeeds * 3 / 4);
  }
}

// The second stream should not write what the first has yet to read.
TEST(EmulatedCuda, AWriteThatDoesNotWaitForAReaderIsFoundHoweverFarAhead) {
  int overtaken = 0;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    TwoStreams on(seed);
    on.Launch(&SetKernel, on.first, 3.0f, on.x);
    EXPECT_THAT(on.cuda.SynchronizeStream(on.first), IsOk());
    on.Launch(&AddOneKernel, on.first, on.x, on.y);
    for (int i = 0; i < 20; ++i) on.Launch(&SetKernel, on.second, 9.0f, on.x);
    on.Fetch(on.x, on.second);
    if (on.Fetched(on.y, on.first) != 4) ++overtaken;
  }
  EXPECT_THAT(overtaken, AllOf(Gt(kSeeds / 8), Lt(kSeeds)));
}

TEST(EmulatedCuda, NothingRunsBeforeTheHostWaits) {
  TwoStreams on(1);
  on.Launch(&SetKernel, on.first, 3.0f, on.x);
  on.Fetch(on.x, on.first);
  EXPECT_TRUE(std::isnan(on.result[0]));
  EXPECT_THAT(on.cuda.SynchronizeStream(on.first), IsOk());
  EXPECT_EQ(on.result[0], 3);
}

// A batch that is written over before it has left.
// As a collective does until the other ranks' devices have come to it.
TEST(EmulatedCuda, WorkThatMayNotRunYetHoldsUpItsOwnStreamAlone) {
  for (int seed = 0; seed < kSeeds; ++seed) {
    TwoStreams on(seed);
    std::atomic<bool> may_run = false;
    EmulatedStream::Of(on.first).EnqueueWhen([&] { return may_run.load(); }, [] { return ""; });
    on.Launch(SetKernel, on.first, 1.0f, on.x);
    on.Launch(SetKernel, on.second, 2.0f, on.y);
    EXPECT_EQ(on.Fetched(on.y, on.second), 2);
    EXPECT_THAT(on.cuda.QueryStream(on.first), IsOkAndHolds(false));
    std::thread other([&] { may_run = true; });
    EXPECT_EQ(on.Fetched(on.x, on.first), 1);
    other.join();
  }
}

TEST(EmulatedCuda, PinnedMemoryIsReadWhenTheCopyRunsAndNotWhenItIsAskedFor) {
  TwoStreams on(1);
  on.result[7] = 1;
  EXPECT_THAT(on.cuda.MemcpyAsync(on.x, on.result, kBytes, CopyDirection::kToDevice, on.first),
              IsOk());
  on.result[7] = 2;
  EXPECT_EQ(on.Fetched(on.x, on.first), 2);
}

TEST(EmulatedCuda, CopiesThatAreNotPinnedOrNotOfTheDeviceAreRefused) {
  TwoStreams on(1);
  float mine[32] = {};
  const auto copy = [&](void* to, const void* from, size_t bytes, CopyDirection direction) {
    return on.cuda.MemcpyAsync(to, from, bytes, direction, on.first);
  };
  EXPECT_THAT(copy(on.x, mine, kBytes, CopyDirection::kToDevice),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no pinned memory")));
  EXPECT_THAT(copy(mine, on.x, kBytes, CopyDirection::kToHost),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no pinned memory")));
  EXPECT_THAT(copy(on.x, on.result, kBytes, CopyDirection::kWithinDevice),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no memory of the device")));
  EXPECT_THAT(copy(on.x + 1, on.y, kBytes, CopyDirection::kWithinDevice),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("copy of 128 bytes to")));
}

TEST(EmulatedCuda, ACopyOfMemoryThatIsGivenBackBeforeItRunsIsFound) {
  EmulatedCuda cuda({.seed = 1});
  const CudaStream stream = *cuda.CreateStream();
  void* const to = *cuda.Allocate(16);
  void* const from = *cuda.AllocatePinned(16);
  EXPECT_THAT(cuda.MemcpyAsync(to, from, 16, CopyDirection::kToDevice, stream), IsOk());
  EXPECT_THAT(cuda.FreePinned(from), IsOk());
  EXPECT_THAT(cuda.SynchronizeStream(stream),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("or no longer")));
  EXPECT_THAT(cuda.LastError(), StatusIs(absl::StatusCode::kInternal));
  EXPECT_THAT(cuda.Finish(), StatusIs(absl::StatusCode::kInternal));
}

TEST(EmulatedCuda, WhatAKernelDoesWrongIsSaidByTheNextWait) {
  TwoStreams on(1);
  EXPECT_EQ(simt::Launch(&SetKernel, {.blocks = 1, .threads = 33}, on.first, 1.0f, on.x), nullptr);
  EXPECT_THAT(on.cuda.SynchronizeStream(on.first),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("a block of 33 threads")));
  EXPECT_THAT(on.cuda.LastError(), StatusIs(absl::StatusCode::kInternal));
}

TEST(EmulatedCuda, FreeingWaitsForTheDevice) {
  TwoStreams on(1);
  on.Launch(&SetKernel, on.first, 3.0f, on.x);
  on.Fetch(on.x, on.first);
  EXPECT_THAT(on.cuda.Free(*on.cuda.Allocate(1)), IsOk());
  EXPECT_EQ(on.result[0], 3);
}

void WriteBehindKernel(float* y) { y[33] = 1; }

TEST(EmulatedCuda, AWriteRightBehindAnAllocationIsFoundWhenItIsFreed) {
  EmulatedCuda cuda({.seed = 1});
  const CudaStream stream = *cuda.CreateStream();
  auto* const y = static_cast<float*>(*cuda.Allocate(32 * sizeof(float)));
  EXPECT_EQ(simt::Launch(&WriteBehindKernel, {.blocks = 1, .threads = 32}, stream, y), nullptr);
  EXPECT_THAT(cuda.Free(y),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("an allocation of 128 bytes")));
  EXPECT_THAT(cuda.Free(y), StatusIs(absl::StatusCode::kInternal));
}

using EmulatedCudaDeathTest = ::testing::Test;

TEST(EmulatedCudaDeathTest, AKernelThatUsesFreedMemoryEndsTheProcess) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  TwoStreams on(1);
  const auto use_after_free = [&] {
    auto* const freed = static_cast<float*>(*on.cuda.Allocate(kBytes));
    on.cuda.Free(freed).IgnoreError();
    on.Launch(&AddOneKernel, on.first, freed, on.x);
    on.cuda.SynchronizeStream(on.first).IgnoreError();
  };
  EXPECT_DEATH(use_after_free(), "");
}

TEST(EmulatedCudaDeathTest, TheHostCannotReadTheDevicesMemory) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  TwoStreams on(1);
  volatile float* const memory = on.x;
  EXPECT_DEATH(
      {
        const float number = memory[0];
        (void)number;
      },
      "");
}

TEST(EmulatedCudaDeathTest, AWriteFarBehindAnAllocationEndsTheProcess) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  TwoStreams on(1);
  const auto write = [&] {
    on.Launch(&SetKernel, on.first, 1.0f, on.x + 64);
    on.cuda.SynchronizeStream(on.first).IgnoreError();
  };
  EXPECT_DEATH(write(), "");
}

TEST(EmulatedCuda, CapturesThatACudaDeviceWouldRefuseAreRefused) {
  TwoStreams on(1);
  const auto refused = [](const char* why) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why));
  };
  on.Launch(&SetKernel, on.second, 1.0f, on.y);
  ASSERT_THAT(on.cuda.RecordEvent(on.event, on.second), IsOk());
  ASSERT_THAT(on.cuda.BeginCapture(on.first), IsOk());
  EXPECT_THAT(on.cuda.StreamWaitEvent(on.first, on.event), refused("outside of the capture"));
  EXPECT_THAT(on.cuda.SynchronizeStream(on.second), refused("while this thread captures"));
  EXPECT_THAT(on.cuda.Allocate(1), refused("while this thread captures"));
  on.Launch(&SetKernel, on.first, 1.0f, on.x);
  ASSERT_THAT(on.cuda.RecordEvent(on.event, on.first), IsOk());
  EXPECT_THAT(on.cuda.QueryEvent(on.event), refused("does not run"));
  ASSERT_THAT(on.cuda.StreamWaitEvent(on.second, on.event), IsOk());
  on.Launch(&AddOneKernel, on.second, on.x, on.y);
  EXPECT_THAT(on.cuda.EndCapture(on.second), refused("not begun on"));
  EXPECT_THAT(on.cuda.EndCapture(on.first), refused("has not come back"));
  EXPECT_THAT(on.cuda.StreamWaitEvent(on.first, on.event), refused("that has ended"));
  EXPECT_EQ(on.Fetched(on.y, on.second), 1);
}

// Within a graph as without: the second branch needs what the first makes.
TEST(EmulatedCuda, BranchesOfAGraphKeepTheirOwnOrderOnly) {
  int right = 0;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    TwoStreams on(seed);
    const CudaEvent back = *on.cuda.CreateEvent();
    EXPECT_THAT(on.cuda.BeginCapture(on.first), IsOk());
    on.Launch(&SetKernel, on.first, 0.0f, on.y);
    EXPECT_THAT(on.cuda.RecordEvent(on.event, on.first), IsOk());
    EXPECT_THAT(on.cuda.StreamWaitEvent(on.second, on.event), IsOk());
    on.Launch(&SetKernel, on.first, 3.0f, on.x);
    on.Launch(&AddOneKernel, on.second, on.x, on.y);
    EXPECT_THAT(on.cuda.RecordEvent(back, on.second), IsOk());
    EXPECT_THAT(on.cuda.StreamWaitEvent(on.first, back), IsOk());
    const auto graph = on.cuda.EndCapture(on.first);
    ASSERT_THAT(graph, IsOk());
    EXPECT_THAT(on.cuda.LaunchGraph(*graph, on.first), IsOk());
    if (on.Fetched(on.y, on.first) == 4) ++right;
    EXPECT_THAT(on.cuda.DestroyGraph(*graph), IsOk());
    EXPECT_THAT(on.cuda.DestroyEvent(back), IsOk());
  }
  EXPECT_THAT(right, AllOf(Gt(0), Lt(kSeeds * 7 / 8)));
}

TEST(EmulatedCuda, WhatIsNotGivenBackIsNamedAtTheEnd) {
  EmulatedCuda cuda({.seed = 1});
  void* const memory = *cuda.Allocate(1);
  const CudaStream stream = *cuda.CreateStream();
  EXPECT_THAT(cuda.Finish(),
              StatusIs(absl::StatusCode::kInternal,
                       AllOf(HasSubstr("1 allocations of the device"), HasSubstr("1 streams"))));
  EXPECT_THAT(cuda.Free(memory), IsOk());
  EXPECT_THAT(cuda.DestroyStream(stream), IsOk());
  EXPECT_THAT(cuda.Finish(), IsOk());
  EXPECT_THAT(cuda.SynchronizeStream(stream), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(CountingCuda, CountsSinceTheLastMark) {
  EmulatedCuda cuda({.seed = 1});
  CountingCuda counting(cuda);
  const CudaStream stream = *counting.CreateStream();
  const CudaEvent event = *counting.CreateEvent();
  void* const memory = *counting.Allocate(16);
  EXPECT_THAT(counting.MemsetAsync(memory, 0, 16, stream), IsOk());
  EXPECT_THAT(counting.RecordEvent(event, stream), IsOk());
  EXPECT_THAT(counting.SynchronizeEvent(event), IsOk());
  EXPECT_THAT(counting.SynchronizeStream(stream), IsOk());
  EXPECT_EQ(counting.since_mark().allocations, 1);
  EXPECT_EQ(counting.since_mark().made, 2);
  EXPECT_EQ(counting.since_mark().copies, 1);
  EXPECT_EQ(counting.since_mark().host_waits, 2);
  counting.Mark();
  EXPECT_EQ(counting.since_mark().host_waits, 0);
  EXPECT_THAT(counting.Free(memory), IsOk());
  EXPECT_EQ(counting.since_mark().frees, 1);
  EXPECT_EQ(counting.since_mark().allocations, 0);
}

}  // namespace
}  // namespace muster::testing
