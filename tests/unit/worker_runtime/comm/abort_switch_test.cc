// What a runtime's switch ends: communicators, and ranks that are still on their way to each other.
#include "worker_runtime/comm/abort_switch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/comm/gloo/control_channel.h"
#include "worker_runtime/comm/memory_store.h"
#include "worker_runtime/comm/solo_communicator.h"

namespace muster::comm {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(AbortSwitch, EndsThoseThatHaveEnteredAndThoseThatComeLater) {
  AbortSwitch abort_switch;
  std::vector<std::string> ended;
  abort_switch.Enter([&](absl::string_view reason) { ended.emplace_back(reason); });
  const uint64_t left =
      abort_switch.Enter([&](absl::string_view) { ended.emplace_back("has left"); });
  abort_switch.Leave(left);
  EXPECT_THAT(abort_switch.thrown(), IsOk());
  abort_switch.Throw("over");
  abort_switch.Enter([&](absl::string_view) { ended.emplace_back("late"); });
  EXPECT_THAT(ended, ElementsAre("over", "late"));
  EXPECT_THAT(abort_switch.thrown(), StatusIs(absl::StatusCode::kAborted, HasSubstr("over")));
}

TEST(AbortSwitch, EndsACommunicatorOfOneRankToo) {
  const auto abort_switch = std::make_shared<AbortSwitch>();
  const auto solo = MakeSoloCommunicator({.abort_switch = abort_switch});
  EXPECT_THAT(solo->Barrier().Wait(), IsOk());
  abort_switch->Throw("the round is over");
  EXPECT_THAT(solo->Barrier().Wait(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("the round is over")));
}

// The peer has met, and never calls: nothing else would end it for two minutes.
TEST(AbortSwitch, EndsARankThatWaitsForAPeersConnection) {
  const auto abort_switch = std::make_shared<AbortSwitch>();
  const auto device = OpenGlooDevice("127.0.0.1", "lo");
  ASSERT_THAT(device, IsOk());
  const auto store = std::make_shared<MemoryStore>();
  absl::Status status;
  std::thread rank([&] {
    status = ConnectControl(*device, store,
                            {.rank = 0,
                             .size = 2,
                             .group = "world",
                             .prefix = "control",
                             .deadline = MonoNow() + absl::Minutes(2),
                             .abort_switch = abort_switch})
                 .status();
  });
  absl::SleepFor(absl::Milliseconds(50));  // or before it has come so far: alike
  const MonoTime thrown = MonoNow();
  abort_switch->Throw("the round is over");
  rank.join();
  EXPECT_LT(MonoNow() - thrown, absl::Minutes(1));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted, HasSubstr("the round is over")));
}

}  // namespace
}  // namespace muster::comm
