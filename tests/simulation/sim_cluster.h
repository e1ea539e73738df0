// A whole cluster in one thread on a virtual clock: the real JobTable as server, real AgentCores on
// nodes with fake workers, and a network that loses, delays, repeats and reorders. All of it
// follows from the seed.
//
// A run has two phases. In the first, faults happen. Then they end, and within a bounded time every
// agent must finish and the server must have forgotten the job. After every event the invariants of
// the object it touched are checked, and across agents: a round means one membership (resilience
// I1, I2), and an ended job one outcome.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/core/agent_core.h"
#include "rendezvous/core/job_table.h"
#include "tests/simulation/sim_plan.h"
#include "tests/simulation/sim_random.h"
#include "tests/simulation/sim_schedule.h"

namespace muster::simulation {

// What happened in a run: a test demands that all of it happens in some seed.
struct SimCoverage {
  int rounds = 0;
  int restarts = 0;
  int membership_changes = 0;
  int losses = 0;
  int successes = 0;
  int job_failures = 0;
  int timeouts = 0;
  int instances = 0;
  void Add(const SimCoverage& other);
};

class SimCluster {
 public:
  SimCluster(uint64_t seed, bool trace);

  // Runs the seed to its end. Empty, or the first thing that broke, with the plan and the last 50
  // effects.
  std::string Run();
  const SimCoverage& coverage() const { return coverage_; }
  const SimPlan& plan() const { return plan_; }

 private:
  struct Worker {
    LocalRank local_rank;
    bool alive = true;
    bool is_stubborn = false;
    bool is_unkillable = false;
  };
  struct Node {
    Incarnation incarnation;
    std::string name;
    std::optional<int> node_rank;
    std::unique_ptr<agent::AgentCore> core;
    std::vector<Worker> workers;
    std::optional<Assignment> assignment;
    bool is_alive = true;      // the agent process
    bool is_connected = true;  // its stream, as it sees it
    bool was_signalled = false;
    int stream = 0;  // number of the stream: the server drops what an older one says of its end
    uint64_t timer = 0;
    bool is_paused = false;  // a stopped process: what happens to it meanwhile is held, in order
    std::vector<agent::Event> held_events;
    std::optional<JobOutcome> told;      // the newest EndJob that has reached it
    std::optional<JobOutcome> finished;  // as it ended
  };

  void StartNode(const std::string& name, std::optional<int> node_rank);
  void StepAgent(Incarnation id, agent::Event event);
  void Perform(Node& node, const agent::Effect& effect);
  void StartWorkers(Node& node, const Assignment& assignment);
  void SignalWorkers(Node& node, int signal);
  void ScheduleExit(Node& node, LocalRank local_rank, absl::Duration delay,
                    std::optional<WorkerFailure> failure);
  void FinishNode(Node& node, const JobOutcome& outcome);
  void ArmAgent(Node& node);

  void StepServer(std::vector<rendezvous::JobTable::JobEffect> effects);
  void ArmServer();
  void Observe(const rendezvous::JobTable::JobEffect& effect);

  void Deliver(std::function<void()> act);
  void SendReport(Node& node, AgentReport report);
  void BreakStream(Node& node);
  void Reconnect(Incarnation id);
  void Crash(Node& node);
  void Pause(Node& node, absl::Duration length);
  void Resume(Incarnation id);
  void InjectFaults();
  void Heal();

  void CheckAssignment(const Node& node, const Assignment& assignment);
  std::string CheckEnd() const;
  void Trace(const std::string& who, const std::string& what);
  void Fail(const std::string& what);

  SimRandom random_;
  SimPlan plan_;
  SimSchedule schedule_;
  const bool trace_;
  const uint64_t seed_;
  rendezvous::JobTable table_;
  const rendezvous::JobKey job_{"", "sim"};

  std::map<Incarnation, Node> nodes_;  // never erased
  uint64_t server_timer_ = 0;
  bool is_healed_ = false;
  // (instance, round) -> node rank -> who has been told to run it.
  std::map<std::pair<Instance, Round>, std::map<int, Incarnation>> history_;
  std::map<std::pair<Instance, Round>, int> world_sizes_;
  std::map<Instance, JobOutcome> outcomes_;
  SimCoverage coverage_;
  std::deque<std::string> last_effects_;
  std::string failure_;
};

}  // namespace muster::simulation
