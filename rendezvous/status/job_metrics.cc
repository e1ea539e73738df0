#include "rendezvous/status/job_metrics.h"

#include <algorithm>
#include <iterator>

#include "rendezvous/status/metrics_text.h"

namespace muster::status {
namespace {

constexpr const char* kStates[] = {kHealthy, kWaiting, kHung, kFailed, kEnded};
constexpr const char* kPhases[] = {"forming", "running", "ending", "ended"};

// One figure of each job.
struct Figure {
  const char* name;
  const char* help;
  double (*of)(const StatusPage& page);
  bool is_counter = false;
};

constexpr Figure kFigures[] = {
    {"muster_job_round", "Number of the job's newest round.",
     [](const StatusPage& page) { return static_cast<double>(page.round.round); }},
    {"muster_job_world_size", "Ranks of the round that runs.",
     [](const StatusPage& page) { return static_cast<double>(page.round.world_size); }},
    {"muster_job_nodes_min", "Nodes that the job needs.",
     [](const StatusPage& page) { return static_cast<double>(page.nodes.min); }},
    {"muster_job_nodes_max", "Nodes that the job takes.",
     [](const StatusPage& page) { return static_cast<double>(page.nodes.max); }},
    {"muster_job_restarts_total", "Restarts after failures.",
     [](const StatusPage& page) { return static_cast<double>(page.restarts.used); }, true},
    {"muster_job_restarts_max", "Restarts that the job may have.",
     [](const StatusPage& page) { return static_cast<double>(page.restarts.max); }},
    {"muster_job_membership_changes_total", "Rounds that nodes have ended by coming or going.",
     [](const StatusPage& page) { return static_cast<double>(page.restarts.for_other_nodes); },
     true},
    {"muster_job_step", "Step of the rank that is furthest.",
     [](const StatusPage& page) { return static_cast<double>(page.progress.step); }},
    {"muster_job_steps_per_second", "Rate of the rank that is furthest.",
     [](const StatusPage& page) { return page.progress.steps_per_second; }},
    {"muster_job_lag_steps", "Steps of the slowest rank behind the furthest.",
     [](const StatusPage& page) { return static_cast<double>(page.progress.lag_steps); }},
    {"muster_job_slowest_rank", "Rank that is furthest behind.",
     [](const StatusPage& page) { return static_cast<double>(page.progress.slowest_rank); }},
    {"muster_job_committed_step", "Step of the newest checkpoint that was committed.",
     [](const StatusPage& page) { return static_cast<double>(page.progress.committed_step); }},
    {"muster_job_health_seconds", "Time for which the job's health has been what it is.",
     [](const StatusPage& page) { return page.health.for_seconds; }},
};

void AddStates(const std::vector<StatusPage>& jobs, MetricsText& out) {
  out.BeginGauge("muster_job_health", "1 for the health that the job has, 0 for the others.");
  for (const StatusPage& page : jobs) {
    for (const char* state : kStates) {
      out.Add({{"run_id", page.job}, {"state", state}}, page.health.state == state ? 1 : 0);
    }
  }
  out.BeginGauge("muster_job_phase", "1 for the phase that the job is in, 0 for the others.");
  for (const StatusPage& page : jobs) {
    for (const char* phase : kPhases) {
      out.Add({{"run_id", page.job}, {"phase", phase}}, page.round.phase == phase ? 1 : 0);
    }
  }
}

void AddNodeCounts(const std::vector<StatusPage>& jobs, MetricsText& out) {
  out.BeginGauge("muster_job_nodes", "Nodes of the job by what they are.");
  for (const StatusPage& page : jobs) {
    const auto add = [&](const char* state, int count) {
      out.Add({{"run_id", page.job}, {"state", state}}, count);
    };
    add("running", page.nodes.running);
    add("joined", page.nodes.joined);
    add("held_back", page.nodes.held_back);
    add("draining", page.nodes.draining);
    add("lost", page.nodes.lost);
  }
}

template <typename Of>
void AddOfNodes(const std::vector<StatusPage>& jobs, MetricsText& out, Of of) {
  for (const StatusPage& page : jobs) {
    const size_t shown = std::min(page.members.size(), kNodesInMetricsMax);
    for (size_t i = 0; i < shown; ++i) {
      const NodeOfJob& node = page.members[i];
      // What waits for a round has no rank, and its name need not be its own.
      if (node.first_rank < 0) continue;
      out.AddIfKnown({{"run_id", page.job},
                      {"node", node.name},
                      {"node_rank", std::to_string(node.node_rank)}},
                     of(node));
    }
  }
}

}  // namespace

std::string JobMetrics(const std::vector<StatusPage>& jobs, const std::string& version) {
  MetricsText out;
  out.BeginGauge("muster_build_info", "1, with the version of this program.");
  out.Add({{"version", version}}, 1);
  out.BeginGauge("muster_jobs", "Jobs that this server knows.");
  out.Add({}, static_cast<double>(jobs.size()));
  AddStates(jobs, out);
  for (const Figure& figure : kFigures) {
    if (figure.is_counter) {
      out.BeginCounter(figure.name, figure.help);
    } else {
      out.BeginGauge(figure.name, figure.help);
    }
    for (const StatusPage& page : jobs) {
      out.AddIfKnown({{"run_id", page.job}}, figure.of(page));
    }
  }
  AddNodeCounts(jobs, out);
  out.BeginGauge("muster_node_lease_seconds", "What is left of the node's lease.");
  AddOfNodes(jobs, out, [](const NodeOfJob& node) { return node.lease_seconds; });
  out.BeginGauge("muster_node_step", "Step of the node's slowest rank.");
  AddOfNodes(jobs, out, [](const NodeOfJob& node) { return static_cast<double>(node.step); });
  out.BeginGauge("muster_node_silent_seconds",
                 "Silence of the node's rank that is silent longest.");
  AddOfNodes(jobs, out, [](const NodeOfJob& node) { return node.silent_seconds; });
  return out.Take();
}

}  // namespace muster::status
