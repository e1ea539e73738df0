// A fixture for jobs of PyTorch's programs (programs/torch_*.py) beside the hang watch, on one node
// and on several. Needs the environment that `deploy/dev deps --peers` makes; skipped where it is
// not there.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/several_nodes.h"
#include "tests/support/job_under_test.h"
#include "tests/support/loopback_port.h"
#include "tests/support/peer_python.h"

namespace muster::testing {

// The nodes of a job, and the ranks of each.
struct Shape {
  int num_nodes = 1;
  int num_local = 2;
  int num_ranks() const { return num_nodes * num_local; }
};

// A program, and what is said of it: on every console, and on one at least.
struct Said {
  std::string how;
  std::string said;
  std::string also = "";
};

class TorchJobs : public SeveralNodes {
 protected:
  static constexpr absl::Duration kPatience = absl::Minutes(4);
  // Ranks that run at once; more would import PyTorch for each other's minutes.
  static constexpr int kRanksAtOnce = 16;

  explicit TorchJobs(std::string program) : program_(std::move(program)) {}
  void SetUp() override {
    SeveralNodes::SetUp();
    if (PeerPython().empty()) GTEST_SKIP() << kNoPeerPython;
  }

  // One agent of each node.
  std::vector<Subprocess> StartAgents(const std::string& how, Shape shape, const Arguments& options,
                                      const Environment& changes = {}) {
    Environment environment = {
        {"PYTHON_EXEC", PeerPython()}, {"PYTHONDONTWRITEBYTECODE", "1"}, {"OUT", Out("")}};
    for (const auto& [name, value] : changes) environment[name] = value;
    const bool is_one = shape.num_nodes == 1;
    const int port = is_one ? 0 : ports_.emplace_back().number();
    std::vector<Subprocess> agents;
    for (int node = 0; node < shape.num_nodes; ++node) {
      const Arguments one = {"--rdzv_id=" + how, "--log_dir=" + Out("logs")};
      const Arguments several = {absl::StrCat("--nnodes=", shape.num_nodes),
                                 absl::StrCat("--node_rank=", node),
                                 "--master_addr=127.0.0.1",
                                 absl::StrCat("--master_port=", port),
                                 absl::StrCat("--local_addr=", AddressOf(node + 1)),
                                 absl::StrCat("--log_dir=", Out("logs"), node)};
      const std::string path =
          absl::StrCat(kSourceDirectory, "/tests/integration/programs/", program_);
      agents.push_back(Start(Arguments{"run", absl::StrCat("--nproc_per_node=", shape.num_local)} +
                                 (is_one ? one : several) + options + Arguments{path, how},
                             environment));
      if (is_one || node > 0) continue;
      EXPECT_TRUE(agents[0].WaitForOutput("hosting the rendezvous", kPatience)) << how;
    }
    return agents;
  }
  Subprocess StartJob(const std::string& how, int num_ranks, const Arguments& options,
                      const Environment& changes = {}) {
    return std::move(StartAgents(how, {.num_local = num_ranks}, options, changes)[0]);
  }

  // Side by side, since most of their time is waiting. Each is ended once it is said.
  void ExpectSaid(const std::vector<Said>& programs, Shape shape, const Arguments& options) {
    const size_t at_once = std::max(1, kRanksAtOnce / shape.num_ranks());
    for (size_t begin = 0; begin < programs.size(); begin += at_once) {
      std::vector<std::vector<Subprocess>> jobs;
      const size_t end = std::min(begin + at_once, programs.size());
      for (size_t i = begin; i < end; ++i) {
        jobs.push_back(StartAgents(programs[i].how, shape, options));
      }
      for (size_t i = begin; i < end; ++i) ExpectSaidBy(jobs[i - begin], programs[i]);
    }
  }

  std::string program_;

 private:
  static void ExpectSaidBy(std::vector<Subprocess>& agents, const Said& program) {
    for (Subprocess& agent : agents) {
      EXPECT_TRUE(agent.WaitForOutput(program.said, kPatience)) << program.how;
    }
    // What else is known of it stands behind it.
    EXPECT_TRUE(std::any_of(agents.rbegin(), agents.rend(),
                            [&](Subprocess& agent) {
                              return program.also.empty() ||
                                     agent.WaitForOutput(program.also, absl::Seconds(10));
                            }))
        << program.how << ": " << program.also;
    for (Subprocess& agent : agents) agent.Signal(SIGTERM);
    for (Subprocess& agent : agents) {
      const SubprocessResult result = agent.Wait(kPatience);
      EXPECT_THAT(result.err, ::testing::HasSubstr(program.said)) << program.how;
      if (agents.size() > 1) continue;
      EXPECT_THAT(result, ExitsWith(128 + SIGTERM)) << program.how;
    }
  }

  std::list<LoopbackPort> ports_;
};

}  // namespace muster::testing
