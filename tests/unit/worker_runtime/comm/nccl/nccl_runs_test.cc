#include "worker_runtime/comm/nccl/nccl_runs.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/comm/nccl/fake_cuda.h"
#include "tests/unit/worker_runtime/comm/nccl/fake_nccl.h"
#include "worker_runtime/comm/memory_store.h"

namespace muster::comm {
namespace {

class NcclRunsTest : public ::testing::Test {
 protected:
  std::unique_ptr<NcclRun> Run(int64_t number, MonoTime deadline = MonoTime::InfiniteFuture()) {
    return std::make_unique<NcclRun>(Call{.operation = {.sequence = number}, .deadline = deadline},
                                     NcclPlace{.ranks = **ranks_, .stream = *stream_});
  }
  static int64_t NumberOf(const Call* call) {
    return call == nullptr ? -1 : call->operation.sequence;
  }

  FakeCuda cuda_;
  FakeNccl nccl_;
  MemoryStore store_;
  absl::StatusOr<DeviceStream> stream_ = DeviceStream::Make();
  absl::StatusOr<std::unique_ptr<NcclRanks>> ranks_ = NcclRanks::Connect(
      nccl_.library(), store_,
      {.group = "alone", .prefix = "test", .deadline = MonoNow() + absl::Minutes(1), .failure = [] {
         return absl::OkStatus();
       }});
  NcclRuns runs_;
};

TEST_F(NcclRunsTest, WhatIsPostedIsNotOnTheStreamYet) {
  runs_.Add(Run(1));
  runs_.BeginPosting(Run(2), LaunchOrder::Place(7));
  EXPECT_TRUE(runs_.is_posting());
  EXPECT_EQ(NumberOf(&runs_.newest().call()), 2);
  ASSERT_NE(runs_.OldestOnStream(), nullptr);
  EXPECT_EQ(NumberOf(&runs_.TakeOldest()->call()), 1);
  EXPECT_EQ(runs_.OldestOnStream(), nullptr);
  EXPECT_EQ(runs_.EndPosting(), LaunchOrder::Place(7));
  EXPECT_EQ(runs_.EndPosting(), std::nullopt);
  ASSERT_NE(runs_.OldestOnStream(), nullptr);
  EXPECT_EQ(NumberOf(&runs_.TakeNewest()->call()), 2);
  EXPECT_TRUE(runs_.empty());
}

TEST_F(NcclRunsTest, FindsWhoseDeadlineHasPassed) {
  const MonoTime now = MonoNow();
  runs_.Add(Run(1));
  EXPECT_EQ(runs_.FindLate(now), nullptr);
  runs_.Add(Run(2, now));
  EXPECT_EQ(NumberOf(runs_.FindLate(now)), 2);
}

TEST_F(NcclRunsTest, SuspectsTheOldestOnce) {
  EXPECT_EQ(runs_.FindSuspicious(MonoNow(), absl::ZeroDuration()), nullptr);
  runs_.Add(Run(1));
  runs_.Add(Run(2));
  EXPECT_EQ(runs_.FindSuspicious(MonoNow(), absl::Hours(1)), nullptr);
  const MonoTime later = MonoNow() + absl::Seconds(2);
  EXPECT_EQ(NumberOf(runs_.FindSuspicious(later, absl::Seconds(1))), 1);
  EXPECT_EQ(runs_.FindSuspicious(later, absl::Seconds(1)), nullptr);
  runs_.TakeOldest();
  EXPECT_EQ(NumberOf(runs_.FindSuspicious(later, absl::Seconds(1))), 2);
}

}  // namespace
}  // namespace muster::comm
