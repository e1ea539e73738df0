// What is not to be had of a rank is missing in what is said of it, and holds up nothing.
#include "agent/watch/rank_looks.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <new>
#include <optional>

#include "absl/time/clock.h"
#include "proto/base/mono_time.h"
#include "tests/support/fake_nvml.h"
#include "tests/support/files.h"

namespace muster::agent {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

constexpr absl::Duration kLong = absl::Minutes(2);

class RankLooksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    library_ = ::dlopen(testing::Built("libfake_nvml.so").c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << ::dlerror();
    state_ = reinterpret_cast<FakeNvmlFunction>(::dlsym(library_, "fake_nvml"))();
    new (state_) FakeNvml();
    state_->gpus[0].pid = static_cast<unsigned>(::getpid());
  }
  void TearDown() override {
    const MonoTime deadline = MonoNow() + kLong;
    while (state_->num_open > 0 && MonoNow() < deadline) absl::SleepFor(absl::Milliseconds(10));
    ::dlclose(library_);
  }
  hangs::RankReport Look(LookDepth depth, RankLookTimes times) {
    RankLooks looks(
        loop_, times,
        {.library = testing::Built("libfake_nvml.so"), .between = absl::Milliseconds(1)});
    std::optional<RankLooks::Ranks> seen;
    looks.Take(depth, {{.rank = 3, .pid = ::getpid(), .doing = "asleep"}},
               [&](RankLooks::Ranks ranks) { seen = std::move(ranks); });
    const MonoTime end = MonoNow() + kLong;
    while (!seen && MonoNow() < end) {
      loop_.restart();
      loop_.run_for(std::chrono::milliseconds(5));
    }
    return seen ? seen->at(0) : hangs::RankReport();
  }

  asio::io_context loop_;
  void* library_ = nullptr;
  FakeNvml* state_ = nullptr;
};

TEST_F(RankLooksTest, AddWhatTheGpusDoWhereTheyAreAsked) {
  const RankLookTimes times = {.gpus = kLong, .python = kLong};
  EXPECT_EQ(Look(LookDepth::kPython, times).doing, "asleep");
  EXPECT_THAT(Look(LookDepth::kGpus, times).doing, Not("asleep"));
}

TEST_F(RankLooksTest, DoNotWaitForADriverThatDoesNotAnswer) {
  state_->delay_ms = 300;
  const RankLookTimes times = {.gpus = absl::Milliseconds(50), .python = kLong};
  const hangs::RankReport rank = Look(LookDepth::kGpus, times);
  EXPECT_EQ(rank.rank, 3);
  EXPECT_EQ(rank.doing, "asleep");
}

TEST_F(RankLooksTest, SayWhyARankHasNoStackThatWasNotReadInTime) {
  const RankLookTimes times = {.gpus = kLong, .python = kLong, .stacks = absl::ZeroDuration()};
  const hangs::RankReport rank = Look(LookDepth::kStacks, times);
  EXPECT_THAT(rank.frames, IsEmpty());
  EXPECT_THAT(rank.no_frames, Not(IsEmpty()));
}

}  // namespace
}  // namespace muster::agent
