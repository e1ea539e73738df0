// A job of ten thousand nodes: no event may cost a walk over all of them. The time is printed, for
// people; what is asked is that the test ends before its time-out, which a quadratic core misses.
#include <cstdio>
#include <ctime>

#include "gtest/gtest.h"
#include "rendezvous/core/rendezvous_core.h"
#include "tests/unit/rendezvous/core/core_builders.h"

namespace muster::rendezvous {
namespace {

double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

class ManyNodes {
 public:
  ManyNodes(RendezvousSettings settings, int num_nodes)
      : settings_(settings), core_({.term = ServerTerm(1), .instance = Instance(5)}) {
    for (int n = 1; n <= num_nodes; ++n) {
      AgentReport report{.node = Describe("node" + std::to_string(n), 1), .settings = settings};
      if (settings.is_static) report.node.node_rank = n - 1;
      reports_.push_back(std::move(report));
    }
  }
  void SendAll(AgentPhase phase) {
    for (size_t i = 0; i < reports_.size(); ++i) {
      AgentReport& report = reports_[i];
      report.phase = phase;
      ++report.sequence;
      report.round = core_.state().round;
      report.instance = report.round == kNoRound ? Instance() : Instance(5);
      // Ten thousand reports take a second, so that no lease ends on the way.
      now_ = now_ + absl::Microseconds(100);
      core_.Step(AgentReported{Incarnation(i + 1), report}, now_);
      core_.NextDeadline();
    }
  }
  void FailFirst() {
    AgentReport report = reports_[0];
    report.phase = AgentPhase::kFailed;
    report.sequence = ++reports_[0].sequence;
    report.failures = {{.rank = Rank(0), .exit_code = 1}};
    core_.Step(AgentReported{Incarnation(1), report}, now_);
  }
  const JobState& state() const { return core_.state(); }

 private:
  RendezvousSettings settings_;
  RendezvousCore core_;
  std::vector<AgentReport> reports_;
  MonoTime now_ = At(1000);
};

void RestartOf(int num_nodes, bool is_static) {
  RendezvousSettings settings =
      is_static ? StaticSettings(num_nodes, 3) : Settings(num_nodes, num_nodes, 3);
  ManyNodes job(settings, num_nodes);
  const double start = CpuSeconds();
  job.SendAll(AgentPhase::kJoining);
  ASSERT_EQ(job.state().round, Round(0));
  const double joined = CpuSeconds();
  job.SendAll(AgentPhase::kRunning);
  const double renewed = CpuSeconds();
  job.FailFirst();
  job.SendAll(AgentPhase::kRunning);  // stopping
  job.SendAll(AgentPhase::kJoining);
  ASSERT_EQ(job.state().round, Round(1));
  const double restarted = CpuSeconds();
  std::printf("%6d nodes%s: join %.3f s, renewal %.3f s, restart %.3f s of CPU\n", num_nodes,
              is_static ? " (static)" : "", joined - start, renewed - joined, restarted - renewed);
}

TEST(RendezvousScale, ARestartOfTenThousandNodesEndsInTime) {
  for (const int num_nodes : {1000, 4000, 10000}) RestartOf(num_nodes, false);
}

TEST(RendezvousScale, ARestartOfTenThousandStaticNodesEndsInTime) { RestartOf(10000, true); }

}  // namespace
}  // namespace muster::rendezvous
