// A node's whole run, alone: a real guardian and real workers, no other node.
#include "launcher/node/node_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/files.h"
#include "tests/support/loopback_port.h"
#include "tests/support/status_matchers.h"

namespace muster::launcher {
namespace {

using ::testing::IsEmpty;
using testing::IsOk;
using testing::LoopbackPort;
using testing::PortUse;

class NodeRunTest : public ::testing::Test {
 protected:
  NodeRunTest() { pthread_sigmask(SIG_SETMASK, nullptr, &before_); }
  ~NodeRunTest() override { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  void Parse(std::vector<std::string> options, const std::string& script) {
    invocation_.args = {"--no_python", "--log_dir=" + directory_.path()};
    for (std::string& option : options) invocation_.args.push_back(std::move(option));
    for (const char* word : {"sh", "-c"}) invocation_.args.emplace_back(word);
    invocation_.args.push_back(script);
    invocation_.environment = {{"HOME", directory_.path()},
                               {"PATH", "/usr/local/bin:/usr/bin:/bin"}};
    auto parsed = ParseFlags(invocation_.args, invocation_.environment, "fresh");
    ASSERT_THAT(parsed, IsOk());
    ASSERT_TRUE(std::holds_alternative<RunFlags>(*parsed));
    flags_ = std::get<RunFlags>(*std::move(parsed));
  }

  JobOutcome Run() {
    absl::StatusOr<agent::GuardianHandle> guardian = agent::ForkGuardian();
    absl::StatusOr<NodeSetup> setup = PrepareNode(flags_.spec, flags_.placement, invocation_);
    if (!guardian.ok() || !setup.ok()) {
      ADD_FAILURE() << guardian.status() << setup.status();
      return {};
    }
    NodeRun run(*std::move(setup), invocation_, flags_);
    absl::StatusOr<JobOutcome> outcome = run.Run(*std::move(guardian));
    EXPECT_THAT(outcome, IsOk());
    EXPECT_THAT(run.network_faults(), IsEmpty());
    return outcome.ok() ? *std::move(outcome) : JobOutcome{};
  }

  sigset_t before_{};
  testing::TemporaryDirectory directory_;
  Invocation invocation_;
  RunFlags flags_;
};

TEST_F(NodeRunTest, EndsAsItsWorkersDo) {
  Parse({"--nproc_per_node=2"}, "exit $((RANK * 7))");
  const JobOutcome outcome = Run();
  EXPECT_EQ(outcome.exit_code, 7) << outcome.reason;
  ASSERT_TRUE(outcome.root_cause.has_value());
  EXPECT_EQ(outcome.root_cause->rank, Rank(1));
}

TEST_F(NodeRunTest, StopsItsWorkersForASignal) {
  Parse({}, absl::StrCat("kill -TERM ", getpid(), "; exec sleep 1000"));
  EXPECT_EQ(Run().exit_code, 128 + SIGTERM);
}

TEST_F(NodeRunTest, GoesOnWithoutMetricsWhereTheirPortIsTaken) {
  const LoopbackPort port(PortUse::kListening);
  Parse({absl::StrCat("--metrics=127.0.0.1:", port.number())}, "exit 0");
  const JobOutcome outcome = Run();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.reason;
}

}  // namespace
}  // namespace muster::launcher
