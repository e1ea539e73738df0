#include "agent/watch/gpu_look.h"

#include <dlfcn.h>
#include <unistd.h>

#include <new>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_nvml.h"
#include "tests/support/files.h"

namespace muster::agent {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// A library takes the place of NVML.
class GpuLookTest : public ::testing::Test {
 protected:
  void SetUp() override {
    library_ = ::dlopen(testing::Built("libfake_nvml.so").c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << ::dlerror();
    state_ = reinterpret_cast<FakeNvmlFunction>(::dlsym(library_, "fake_nvml"))();
    new (state_) FakeNvml();
    gpu().pid = static_cast<unsigned>(::getpid());
  }
  template <typename Condition>
  static void WaitUntil(Condition condition) {
    const MonoTime deadline = MonoNow() + absl::Minutes(2);
    while (!condition() && MonoNow() < deadline) absl::SleepFor(absl::Milliseconds(10));
  }
  void TearDown() override {
    WaitUntil([&] { return state_->num_open == 0; });
    EXPECT_EQ(state_->num_open, 0) << "what was opened is closed, also late";
    ::dlclose(library_);
  }
  FakeGpu& gpu(int index = 0) { return state_->gpus[index]; }

  // What is said of a rank that is this process.
  std::string Said(const std::string& doing = "asleep") {
    std::vector<hangs::RankReport> ranks = {{.rank = 0, .pid = ::getpid(), .doing = doing}};
    AddGpusOfRanks(ranks, options_);
    return ranks[0].doing;
  }

  GpuLookOptions options_ = {.library = testing::Built("libfake_nvml.so"),
                             .between = absl::Milliseconds(10)};

  void* library_ = nullptr;
  FakeNvml* state_ = nullptr;
};

TEST_F(GpuLookTest, TellsAKernelThatWaitsFromOneThatComputes) {
  gpu().kernel_percent = 100;
  EXPECT_THAT(Said(), HasSubstr("asleep; GPU 0000:3b:00.0 runs a kernel that moves no memory"));
  gpu().memory_percent = 40;
  EXPECT_THAT(Said(), HasSubstr("GPU 0000:3b:00.0 computes (memory busy 40 %)"));
  gpu().kernel_percent = 0;
  EXPECT_THAT(Said(), HasSubstr("GPU 0000:3b:00.0 runs nothing"));
}

TEST_F(GpuLookTest, TellsWhatMovesOverTheLinks) {
  EXPECT_THAT(Said(), HasSubstr("NVLink 0 KiB/s, PCIe 0 KiB/s"));
  gpu().nvlink_kib = 7000;
  gpu().nvlink_kib_more = 1 << 20;
  gpu().pcie_kib = 12;
  EXPECT_THAT(Said(), AllOf(HasSubstr("PCIe 12 KiB/s"), Not(HasSubstr("NVLink 0 "))));
}

TEST_F(GpuLookTest, TellsWhatTheDriverSaysOfIt) {
  EXPECT_THAT(Said(), Not(HasSubstr("driver")));
  gpu().recovery_action = 1;
  EXPECT_THAT(Said(), HasSubstr("its driver says that it needs a reset"));
  gpu().recovery_action = 2;
  EXPECT_THAT(Said(), HasSubstr("needs a reboot of its node"));
}

TEST_F(GpuLookTest, EachRankHasItsOwnGpus) {
  state_->num_gpus = 3;
  gpu(0).pid = 1;
  gpu(1).is_hidden = true;
  gpu(2).bus_id = "00000000:5E:00.0";
  gpu(2).pid = static_cast<unsigned>(::getpid());
  EXPECT_THAT(Said(), AllOf(HasSubstr("GPU 0000:5e:00.0"), Not(HasSubstr("3b"))));
}

TEST_F(GpuLookTest, ARankThatHasEndedHasNone) {
  std::vector<hangs::RankReport> ranks = {{.rank = 0, .pid = 0, .doing = "ended"}};
  gpu().pid = 0;
  AddGpusOfRanks(ranks, options_);
  EXPECT_EQ(ranks[0].doing, "ended");
}

TEST_F(GpuLookTest, WhatIsNotToldIsLeftOut) {
  state_->tells_fields = false;
  state_->tells_utilization = false;
  EXPECT_EQ(Said(), "asleep; GPU 0000:3b:00.0");
}

TEST_F(GpuLookTest, WithoutADriverNothingIsSaid) {
  state_->has_driver = false;
  EXPECT_EQ(Said(), "asleep");
}

TEST_F(GpuLookTest, WithoutTheLibraryNothingIsSaid) {
  options_.library = "libno-such-library.so.1";
  EXPECT_EQ(Said(), "asleep");
}

TEST_F(GpuLookTest, SeesAllGpusThatThisProcessMayUse) {
  state_->num_gpus = 4;
  gpu(1).is_hidden = true;
  const Nvml nvml(testing::Built("libfake_nvml.so"));
  EXPECT_THAT(LookAtGpus(nvml, MonoNow()), SizeIs(3));
}

}  // namespace
}  // namespace muster::agent
