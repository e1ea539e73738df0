// A core on a loop of its own, and a shell that remembers what it is told.
#include "agent/core_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "asio/io_context.hpp"

namespace muster::agent {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

class RecordingShell : public CoreRunner::Shell {
 public:
  void OnEffect(const Effect& effect) override {
    if (std::holds_alternative<Finish>(effect)) said_.push_back("finish");
    if (!std::holds_alternative<ReservePorts>(effect)) return;
    said_.push_back("reserve");
    if (on_reserve) on_reserve();
    said_.push_back("reserved");
  }
  void OnStepped() override { said_.push_back("stepped"); }
  void OnRest() override { said_.push_back("rest"); }
  void OnDeadline() override { said_.push_back("deadline"); }

  std::vector<std::string> said_;
  std::function<void()> on_reserve;
};

AgentCoreOptions Options(absl::Duration join_timeout = absl::Minutes(10)) {
  AgentCoreOptions options;
  options.node = {.name = "node1", .address = "10.0.0.1", .local_world_size = 1};
  options.settings = {.join_timeout = join_timeout};
  options.read_timeout = absl::Seconds(60);
  return options;
}

TEST(CoreRunner, FinishesTheEffectsOfAnEventBeforeOneThatComesUpMeanwhile) {
  asio::io_context loop;
  RecordingShell shell;
  CoreRunner runner(loop, Options(), shell);
  shell.on_reserve = [&] {
    runner.Feed(PortsReserved{.store_port = 1, .worker_ports = {2}});
    EXPECT_EQ(runner.core().phase(), NodePhase::kReserving);
  };
  runner.Feed(Started{});
  EXPECT_EQ(runner.core().phase(), NodePhase::kJoining);
  EXPECT_THAT(shell.said_, ElementsAre("reserve", "reserved", "stepped", "stepped", "rest"));
}

TEST(CoreRunner, WakesTheCoreAtItsDeadlineAndTheShellBefore) {
  asio::io_context loop;
  RecordingShell shell;
  CoreRunner runner(loop, Options(absl::Milliseconds(20)), shell);
  runner.Feed(Started{});
  EXPECT_THAT(shell.said_, Not(Contains("deadline")));
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (runner.core().phase() != NodePhase::kDone && std::chrono::steady_clock::now() < until) {
    loop.restart();
    loop.run_one_until(until);
  }
  ASSERT_EQ(runner.core().phase(), NodePhase::kDone) << "the server has not been reached in time";
  const std::vector<std::string> last(shell.said_.end() - 4, shell.said_.end());
  EXPECT_THAT(last, ElementsAre("deadline", "finish", "stepped", "rest"));
  EXPECT_EQ(loop.run_for(std::chrono::milliseconds(0)), 0u) << "no deadline is left";
}

}  // namespace
}  // namespace muster::agent
