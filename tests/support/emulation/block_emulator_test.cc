// Kernels that are right run alike in every schedule; kernels that are wrong are found out.
#include "tests/support/emulation/block_emulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "tests/support/emulation/fibre.h"
#include "worker_runtime/kernels/simt.h"

namespace muster::testing {
namespace {

namespace simt = kernels::simt;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kThreads = 128;
constexpr int kSchedules = 20;

// Each thread gets its neighbour's number through shared memory.
template <bool kWithBarrier>
void NeighbourKernel(const float* x, float* y) {
  auto* shared = static_cast<float*>(simt::SharedMemory());
  shared[threadIdx.x] = x[blockIdx.x * kThreads + threadIdx.x];
  if (kWithBarrier) __syncthreads();
  y[blockIdx.x * kThreads + threadIdx.x] = shared[(threadIdx.x + 1) % kThreads];
}

// How many of the schedules 1 … kSchedules give what `kernel` should.
int SchedulesThatAgree(void (*kernel)(const float*, float*)) {
  std::vector<float> x(2 * kThreads);
  std::iota(x.begin(), x.end(), 1.0f);
  std::vector<float> expected;
  for (int i = 0; i < 2 * kThreads; ++i) {
    expected.push_back(x[i / kThreads * kThreads + (i + 1) % kThreads]);
  }
  int right = 0;
  for (int schedule = 1; schedule <= kSchedules; ++schedule) {
    BlockEmulator::SetSchedule(schedule);
    std::vector<float> y(x.size(), -1);
    EXPECT_EQ(
        simt::Launch(kernel,
                     {.blocks = 2, .threads = kThreads, .shared_bytes = kThreads * sizeof(float)},
                     nullptr, x.data(), y.data()),
        nullptr);
    right += y == expected;
  }
  return right;
}

TEST(BlockEmulator, BarriersMakeEveryScheduleGiveTheSame) {
  EXPECT_EQ(SchedulesThatAgree(&NeighbourKernel<true>), kSchedules);
}

TEST(BlockEmulator, SchedulesShowThatABarrierIsMissing) {
  EXPECT_EQ(SchedulesThatAgree(&NeighbourKernel<false>), 0);
}

// What is written last takes the place of what a neighbour may not have read.
template <bool kWithBarrier>
void OverwritingKernel(const float* x, float* y) {
  auto* shared = static_cast<float*>(simt::SharedMemory());
  const unsigned at = blockIdx.x * kThreads + threadIdx.x;
  shared[threadIdx.x] = x[at];
  __syncthreads();
  y[at] = shared[(threadIdx.x + 1) % kThreads];
  if (kWithBarrier) __syncthreads();
  shared[threadIdx.x] = 0;
}

TEST(BlockEmulator, SchedulesShowThatMemoryIsUsedAgainTooEarly) {
  EXPECT_EQ(SchedulesThatAgree(&OverwritingKernel<true>), kSchedules);
  EXPECT_EQ(SchedulesThatAgree(&OverwritingKernel<false>), 0);
}

// Lanes of one warp need a meeting as well.
template <bool kWithMeeting>
void LaneKernel(const float* x, float* y) {
  auto* shared = static_cast<float*>(simt::SharedMemory());
  shared[threadIdx.x] = x[threadIdx.x];
  if (kWithMeeting) simt::SyncWarp();
  y[threadIdx.x] = shared[threadIdx.x ^ 1];
}

TEST(BlockEmulator, LanesOfAWarpAreNotInStep) {
  const std::vector<float> x(32, 1);
  std::vector<float> right(32), wrong(32);
  const kernels::LaunchShape shape = {.blocks = 1, .threads = 32, .shared_bytes = 128};
  EXPECT_EQ(simt::Launch(&LaneKernel<true>, shape, nullptr, x.data(), right.data()), nullptr);
  EXPECT_EQ(simt::Launch(&LaneKernel<false>, shape, nullptr, x.data(), wrong.data()), nullptr);
  EXPECT_THAT(right, Each(1));
  EXPECT_NE(wrong, right);
}

void SharedAsFoundKernel(uint32_t* found) {
  if (threadIdx.x != 0) return;
  auto* shared = static_cast<uint32_t*>(simt::SharedMemory());
  found[blockIdx.x] = shared[0];
  shared[0] = 7;
}

TEST(BlockEmulator, SharedMemoryBeginsAsPoisonInEveryBlock) {
  std::vector<uint32_t> found(3);
  EXPECT_EQ(simt::Launch(&SharedAsFoundKernel, {.blocks = 3, .threads = 32, .shared_bytes = 4},
                         nullptr, found.data()),
            nullptr);
  EXPECT_THAT(found, Each(0xffffffffu));
}

void OrderKernel(std::vector<unsigned>* order) {
  if (threadIdx.x == 0) order->push_back(blockIdx.x + blockIdx.y * gridDim.x);
}

TEST(BlockEmulator, RunsEveryBlockOnceInAnOrderOfTheSchedule) {
  std::set<std::vector<unsigned>> orders;
  for (int schedule = 1; schedule <= kSchedules; ++schedule) {
    BlockEmulator::SetSchedule(schedule);
    std::vector<unsigned> order;
    EXPECT_EQ(
        simt::Launch(&OrderKernel, {.blocks = 3, .blocks_y = 2, .threads = 32}, nullptr, &order),
        nullptr);
    EXPECT_THAT(std::set<unsigned>(order.begin(), order.end()), SizeIs(6));
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 10u);
}

void DivergentBarrierKernel() {
  if (threadIdx.x < 64) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

TEST(BlockEmulator, NamesThreadsAtDifferentBarriers) {
  EXPECT_THAT(simt::Launch(&DivergentBarrierKernel, {.blocks = 1, .threads = kThreads}, nullptr),
              AllOf(HasSubstr("barriers of a block differ"), HasSubstr("block_emulator_test.cc:")));
}

void BarrierOfSomeKernel() {
  if (threadIdx.x != 5) __syncthreads();
}

TEST(BlockEmulator, NamesABarrierThatAThreadEndedWithout) {
  EXPECT_THAT(
      simt::Launch(&BarrierOfSomeKernel, {.blocks = 1, .blocks_y = 2, .threads = 64}, nullptr),
      AllOf(HasSubstr("threads wait for others that do not come: thread 0 is at "),
            HasSubstr("thread 5 has ended (block 0, ")));
}

void DivergentWarpKernel(unsigned* votes) {
  if (simt::Lane() < 16) {
    *votes = simt::Ballot(true);
  } else {
    simt::SyncWarp();
  }
}

TEST(BlockEmulator, NamesLanesAtDifferentOperations) {
  unsigned votes = 0;
  EXPECT_THAT(simt::Launch(&DivergentWarpKernel, {.blocks = 1, .threads = 32}, nullptr, &votes),
              HasSubstr("operations of a warp differ"));
}

TEST(BlockEmulator, RefusesBlocksThatAreNoWholeWarps) {
  EXPECT_THAT(simt::Launch(&BarrierOfSomeKernel, {.blocks = 1, .threads = 33}, nullptr),
              HasSubstr("a block of 33 threads"));
}

void WarpKernel(int* sums, unsigned* votes, int* any) {
  int sum = static_cast<int>(threadIdx.x);
  for (int mask = 16; mask > 0; mask /= 2) sum += simt::ShuffleXor(sum, mask);
  sums[threadIdx.x] = sum;
  votes[simt::Warp()] = simt::Ballot(simt::Lane() % 3 == 0);
  any[threadIdx.x] = simt::AnyInBlock(threadIdx.x == 40) + 2 * simt::AnyInBlock(false);
}

TEST(BlockEmulator, LanesExchangeAndVote) {
  std::vector<int> sums(64), any(64);
  std::vector<unsigned> votes(2);
  EXPECT_EQ(simt::Launch(&WarpKernel, {.blocks = 1, .threads = 64}, nullptr, sums.data(),
                         votes.data(), any.data()),
            nullptr);
  std::vector<int> expected(32, 496);
  expected.resize(64, 496 + 1024);
  EXPECT_EQ(sums, expected);
  EXPECT_THAT(votes, Each(0x49249249u));
  EXPECT_EQ(simt::CountBits(votes[0]), 11);
  EXPECT_THAT(any, Each(1));
}

template <bool kFinish>
void CopyKernel(const float* x, float* early, float* late) {
  auto* shared = static_cast<float*>(simt::SharedMemory()) + 4 * threadIdx.x;
  simt::StartCopy(shared, x, threadIdx.x != 0);
  early[threadIdx.x] = shared[1];
  if (kFinish) simt::FinishCopies();
  late[threadIdx.x] = shared[1];
}

TEST(BlockEmulator, CopiesArriveWhenTheyAreFinishedAndNotBefore) {
  alignas(16) const float x[4] = {1, 2, 3, 4};
  std::vector<float> early(32), late(32);
  const kernels::LaunchShape shape = {.blocks = 1, .threads = 32, .shared_bytes = 512};
  EXPECT_EQ(simt::Launch(&CopyKernel<true>, shape, nullptr, x, early.data(), late.data()), nullptr);
  EXPECT_THAT(early, Each(::testing::IsNan()));
  std::vector<float> expected(32, 2);
  expected[0] = 0;  // not valid
  EXPECT_EQ(late, expected);
  EXPECT_THAT(simt::Launch(&CopyKernel<false>, shape, nullptr, x, early.data(), late.data()),
              HasSubstr("ended with copies that it had not finished"));
  EXPECT_THAT(simt::Launch(&CopyKernel<true>, shape, nullptr, x + 1, early.data(), late.data()),
              HasSubstr("is not aligned to 16 bytes"));
}

// Fragments as the PTX manual lays them out, written down here a second time: from whole matrices,
// by lane.
void TileKernel(const float* a, const float* b, float* c) {
  const auto bits = [](float x) {
    uint32_t word;
    std::memcpy(&word, &x, sizeof(word));
    return word >> 16;
  };
  const int group = simt::Lane() >> 2;
  const int in_group = simt::Lane() % 4;
  uint32_t of_a[4], of_b[2];
  for (int word = 0; word < 4; ++word) {
    const int row = word == 0 || word == 2 ? group : group + 8;
    const int column = in_group * 2 + (word >= 2 ? 8 : 0);
    of_a[word] = bits(a[row * 16 + column]) | bits(a[row * 16 + column + 1]) << 16;
  }
  for (int word = 0; word < 2; ++word) {
    const int row = in_group * 2 + word * 8;
    of_b[word] = bits(b[row * 8 + group]) | bits(b[(row + 1) * 8 + group]) << 16;
  }
  float of_c[4] = {100, 100, 100, 100};
  simt::MultiplyTile(of_c, of_a, of_b);
  for (int i = 0; i < 4; ++i) {
    c[(i < 2 ? group : group + 8) * 8 + in_group * 2 + (i & 1)] = of_c[i];
  }
}

TEST(BlockEmulator, TilesAreMultiplied) {
  std::vector<float> a(16 * 16), b(16 * 8), c(16 * 8), expected(16 * 8, 100);
  for (int i = 0; i < 256; ++i) a[i] = static_cast<float>(i * 7 % 23 - 11);
  for (int i = 0; i < 128; ++i) b[i] = static_cast<float>(i * 5 % 19 - 9);
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      for (int k = 0; k < 16; ++k) expected[i * 8 + j] += a[i * 16 + k] * b[k * 8 + j];
    }
  }
  EXPECT_EQ(simt::Launch(&TileKernel, {.blocks = 1, .threads = 32}, nullptr, a.data(), b.data(),
                         c.data()),
            nullptr);
  EXPECT_EQ(c, expected);
}

TEST(Fibre, GoesOnWhereItLeft) {
  std::vector<int> seen;
  Fibre fibre;
  fibre.Start([&] {
    seen.push_back(1);
    fibre.Leave();
    seen.push_back(2);
  });
  EXPECT_FALSE(fibre.Resume());
  seen.push_back(0);
  EXPECT_TRUE(fibre.Resume());
  EXPECT_THAT(seen, ElementsAre(1, 0, 2));
}

TEST(Fibre, StartsAnewAfterOneThatWasForgotten) {
  Fibre fibre;
  int runs = 0;
  for (int i = 0; i < 3; ++i) {
    fibre.Start([&] {
      ++runs;
      fibre.Leave();
      ++runs;
    });
    EXPECT_FALSE(fibre.Resume());
  }
  EXPECT_EQ(runs, 3);
}

TEST(Fibre, StartsAnewAfterOneThatEnded) {
  Fibre fibre;
  int runs = 0;
  for (int i = 0; i < 3; ++i) {
    fibre.Start([&] {
      ++runs;
      fibre.Leave();
    });
    EXPECT_FALSE(fibre.Resume());
    EXPECT_TRUE(fibre.Resume());
  }
  EXPECT_EQ(runs, 3);
}

TEST(Fibre, MayGoOnOnAnotherThread) {
  std::vector<int> seen;
  Fibre fibre;
  fibre.Start([&] {
    seen.push_back(1);
    fibre.Leave();
    seen.push_back(2);
  });
  EXPECT_FALSE(fibre.Resume());
  std::thread([&] { EXPECT_TRUE(fibre.Resume()); }).join();
  EXPECT_THAT(seen, ElementsAre(1, 2));
}

// What a frame holds is there again, and what it calls after it has the stack that is left.
TEST(Fibre, KeepsItsFramesHoweverDeepItLeaves) {
  Fibre fibre;
  const std::function<int(int)> sum = [&](int depth) {
    const std::array<int, 8> own = {depth, 0, 0, 0, 0, 0, 0, depth};
    fibre.Leave();
    const int below = depth == 0 ? 0 : sum(depth - 1);
    fibre.Leave();
    return own[0] + own[7] + below;
  };
  int result = 0;
  fibre.Start([&] { result = sum(20); });
  int times = 1;
  while (!fibre.Resume()) ++times;
  EXPECT_EQ(times, 2 * 21 + 1);
  EXPECT_EQ(result, 20 * 21);
}

}  // namespace
}  // namespace muster::testing
