#include "launcher/node/node_signals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <vector>

#include "tests/support/status_matchers.h"

namespace muster::launcher {
namespace {

using ::testing::ElementsAre;
using testing::IsOk;
using ::testing::Optional;

class NodeSignalsTest : public ::testing::Test {
 protected:
  NodeSignalsTest() { pthread_sigmask(SIG_SETMASK, nullptr, &before_); }
  ~NodeSignalsTest() override { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  sigset_t before_{};
  asio::io_context loop_;
  NodeSignals signals_{loop_};
};

TEST_F(NodeSignalsTest, AreAwaitedBeforeTheLoopRunsAndDeliveredByIt) {
  ASSERT_THAT(signals_.Hold(JobSpec{}, /*under_slurm=*/false), IsOk());
  EXPECT_EQ(signals_.Await(absl::Milliseconds(1)), std::nullopt);
  raise(SIGTERM);
  EXPECT_THAT(signals_.Await(absl::Seconds(30)), Optional(SIGTERM));

  raise(SIGINT);
  raise(SIGWINCH);
  std::vector<int> delivered;
  signals_.Deliver([&](int signal) { delivered.push_back(signal); });
  loop_.run_one();
  EXPECT_THAT(delivered, ElementsAre(SIGINT, SIGWINCH));
  raise(SIGTERM);
  loop_.run_one();
  EXPECT_THAT(delivered, ElementsAre(SIGINT, SIGWINCH, SIGTERM));
}

TEST_F(NodeSignalsTest, LeaveAHangUpToWhoIgnoredIt) {
  std::signal(SIGHUP, SIG_IGN);
  ASSERT_THAT(signals_.Hold(JobSpec{}, /*under_slurm=*/false), IsOk());
  raise(SIGHUP);
  EXPECT_EQ(signals_.Await(absl::Milliseconds(1)), std::nullopt);
  std::signal(SIGHUP, SIG_DFL);
}

TEST_F(NodeSignalsTest, AreTakenWhereSlurmSendsThem) {
  ASSERT_THAT(signals_.Hold(JobSpec{}, /*under_slurm=*/true), IsOk());
  raise(SIGUSR1);
  EXPECT_THAT(signals_.Await(absl::Seconds(30)), Optional(SIGUSR1));
}

}  // namespace
}  // namespace muster::launcher
