// A fixture with three real nodes, each in a network namespace of its own, and a network that tests
// can cut. A musterd lives in node 0's.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/support/job_under_test.h"
#include "tests/support/node_network.h"
#include "tests/support/process_table.h"

namespace muster::testing {

class NodesInNamespaces : public JobTest {
 protected:
  static constexpr int kPort = 29400;
  static constexpr absl::Duration kLongEnough = absl::Seconds(60);

  void SetUp() override {
    JobTest::SetUp();
    if (!NodeNetwork::IsPossible()) {
      GTEST_SKIP() << "network namespaces need root and iproute2";
    }
    network_.emplace(3);
    // Says of which round it is, and works until the test is over.
    script_ = ShellScript("train.sh", R"(
touch $OUT/$TORCHELASTIC_RESTART_COUNT.$WORLD_SIZE.$RANK
while [ ! -e $OUT/done ]; do sleep 0.1; done)");
  }
  void TearDown() override {
    agents_.clear();
    EndServer(SIGTERM);
    network_.reset();
    JobTest::TearDown();
  }

  // What listens at the endpoint on node 0, and says `ready` once it does.
  void StartServer(const Arguments& argv, const std::string& ready,
                   const Environment& changes = {}) {
    server_.emplace(StartProgram(network_->On(0, argv), changes));
    ASSERT_TRUE(server_->WaitForOutput(ready)) << ToString(server_->Wait(absl::ZeroDuration()));
  }
  void StartMusterd(const Environment& changes = {}) {
    StartServer({MusterdBinary(), "--listen=" + EndpointOn(0)}, "listening", changes);
  }
  void EndServer(int signal) {
    if (!server_) return;
    server_->Signal(signal);
    EXPECT_TRUE(server_->Wait().ended);
    server_.reset();
  }

  std::string EndpointOn(int node) const {
    return absl::StrCat(network_->AddressOf(node), ":", kPort);
  }
  // Starts an agent of an elastic job that two nodes suffice for, and that meets on node `host`.
  // Workers find the node's number as $NODE.
  Subprocess StartAgent(int node, int host = 0) const {
    return StartProgram(
        network_->On(node,
                     Arguments{MusterBinary(), "run", "--nnodes=2:3", "--rdzv_backend=c10d",
                               "--rdzv_id=loss", "--rdzv_conf=last_call_timeout=60",
                               "--rdzv_endpoint=" + EndpointOn(host),
                               absl::StrCat("--local_addr=", network_->AddressOf(node)), script_}),
        {{"NODE", absl::StrCat(node)}});
  }
  // Three nodes that meet on node `host` and run.
  void StartJob(int host = 0) {
    for (int node = 1; node <= 3; ++node) agents_.push_back(StartAgent(node, host));
    for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(WaitForOut(absl::StrCat("0.3.", rank)));
  }

  // Whether all `world_size` ranks of attempt `attempt` have started.
  ::testing::AssertionResult AllRun(int attempt, int world_size) const {
    for (int rank = 0; rank < world_size; ++rank) {
      const std::string mark = absl::StrCat(attempt, ".", world_size, ".", rank);
      if (WaitUntil([&] { return FileExists(Out(mark)); }, kLongEnough)) continue;
      return ::testing::AssertionFailure()
             << mark << " did not start, but " << absl::StrJoin(FilesBelow(out()), " ");
    }
    return ::testing::AssertionSuccess();
  }
  void ExpectThatNothingHappened() const {
    absl::SleepFor(absl::Seconds(8));  // a lease later
    EXPECT_FALSE(FileExists(Out("1.2.0")) || FileExists(Out("1.3.0")));
  }
  void ExpectThatAllSucceed(const std::vector<int>& nodes = {1, 2, 3}) {
    WriteFile(Out("done"), "");
    for (const int node : nodes) EXPECT_THAT(agents_[node - 1].Wait(kLongEnough), ExitsWith(0));
  }

  std::optional<NodeNetwork> network_;
  std::vector<Subprocess> agents_;
  std::string script_;

 private:
  std::optional<Subprocess> server_;
};

}  // namespace muster::testing
