#include "agent/sight/agent_metrics.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "rendezvous/status/metrics_text.h"

namespace muster::agent {
namespace {

using status::GpuFigures;
using status::MetricLabels;
using status::MetricsText;
using status::RankFigures;
using status::Spent;

constexpr double kBytesPerMib = 1 << 20;

void AddTime(const AgentFigures& figures, MetricsText& out) {
  const MetricLabels who = {{"run_id", figures.run_id}, {"node", figures.node}};
  const auto with = [&](const char* name, std::string text) {
    MetricLabels labels = who;
    labels.emplace_back(name, std::move(text));
    return labels;
  };
  out.BeginGauge("muster_agent_state", "1 for what the node's time is spent on, 0 for the rest.");
  for (const Spent spent : status::kAllSpent) {
    out.Add(with("state", std::string(ToString(spent))), spent == figures.spent ? 1 : 0);
  }
  out.BeginCounter("muster_agent_time_seconds_total",
                   "Time since the agent began, by what it was spent on.");
  for (const Spent spent : status::kAllSpent) {
    out.Add(with("state", std::string(ToString(spent))),
            figures.spent_seconds[static_cast<size_t>(spent)]);
  }
  const double all =
      std::accumulate(figures.spent_seconds.begin(), figures.spent_seconds.end(), 0.0);
  out.BeginGauge("muster_agent_goodput_ratio",
                 "Share of its time in which the node's workers ran and no rank hung.");
  if (all > 0) out.Add(who, figures.spent_seconds[static_cast<size_t>(Spent::kRunning)] / all);
  const auto count = [&](const char* name, const char* help, int64_t value) {
    out.BeginCounter(name, help);
    out.Add(who, static_cast<double>(value));
  };
  count("muster_agent_rounds_total", "Rounds that the node has been in.", figures.counts.rounds);
  count("muster_agent_worker_failures_total", "Workers of the node that have failed.",
        figures.counts.failures);
  count("muster_agent_hang_notices_total", "Times that somebody was waited for.",
        figures.counts.notices);
  count("muster_agent_hang_verdicts_total", "Hangs.", figures.counts.verdicts);
  count("muster_agent_restarts_total", "Restarts of the job after failures.",
        figures.restarts_used);
  out.BeginGauge("muster_agent_restarts_max", "Restarts that the job may have.");
  out.Add(who, figures.restarts_max);
  out.BeginGauge("muster_agent_steps_per_second", "Rate of the node's rank that is furthest.");
  out.AddIfKnown(who, figures.steps_per_second);
}

template <typename Of>
void AddOfRanks(const AgentFigures& figures, const char* name, const char* help, MetricsText& out,
                Of of) {
  out.BeginGauge(name, help);
  for (const RankFigures& rank : figures.of_node.ranks) {
    out.AddIfKnown({{"run_id", figures.run_id}, {"rank", absl::StrCat(rank.rank)}}, of(rank));
  }
}

void AddRanks(const AgentFigures& figures, MetricsText& out) {
  int64_t furthest = -1;
  for (const RankFigures& rank : figures.of_node.ranks) furthest = std::max(furthest, rank.step);
  AddOfRanks(figures, "muster_rank_up", "1 while the rank's process lives, else 0.", out,
             [](const RankFigures& rank) { return rank.pid == 0 ? 0.0 : 1.0; });
  AddOfRanks(figures, "muster_rank_step", "Step that the rank is in.", out,
             [](const RankFigures& rank) { return static_cast<double>(rank.step); });
  AddOfRanks(figures, "muster_rank_lag_steps", "Steps behind the node's rank that is furthest.",
             out, [&](const RankFigures& rank) {
               return rank.step < 0 ? -1.0 : static_cast<double>(furthest - rank.step);
             });
  out.BeginGauge("muster_rank_phase", "1 for the phase of its step that the rank is in.");
  for (const RankFigures& rank : figures.of_node.ranks) {
    if (rank.phase.empty()) continue;
    out.Add({{"run_id", figures.run_id}, {"rank", absl::StrCat(rank.rank)}, {"phase", rank.phase}},
            1);
  }
  AddOfRanks(figures, "muster_rank_silent_seconds",
             "For how long the rank has not moved; 0 below three seconds.", out,
             [](const RankFigures& rank) { return std::max(rank.silent_seconds, 0.0); });
  out.BeginCounter("muster_rank_waiting_seconds_total",
                   "Time that the rank has waited in its process, by what it waited for.");
  for (const RankFigures& rank : figures.of_node.ranks) {
    out.AddIfKnown(
        {{"run_id", figures.run_id}, {"rank", absl::StrCat(rank.rank)}, {"cause", "other_ranks"}},
        rank.waited_seconds);
  }
  AddOfRanks(
      figures, "muster_rank_cpu_ratio",
      "CPUs that the rank uses with what it has started, since the last scrape.", out,
      [](const RankFigures& rank) { return rank.cpu_percent < 0 ? -1 : rank.cpu_percent / 100; });
  AddOfRanks(figures, "muster_rank_memory_bytes", "Memory of the rank with what it has started.",
             out, [](const RankFigures& rank) {
               return rank.memory_mib < 0 ? -1
                                          : static_cast<double>(rank.memory_mib) * kBytesPerMib;
             });
}

template <typename Of>
void AddOfGpus(const AgentFigures& figures, const char* name, const char* help, MetricsText& out,
               Of of) {
  out.BeginGauge(name, help);
  for (const GpuFigures& gpu : figures.of_node.gpus) {
    out.AddIfKnown({{"gpu", absl::StrCat(gpu.index)},
                    {"device", absl::StrCat("nvidia", gpu.index)},
                    {"pci_bus_id", gpu.pci_address},
                    {"modelName", gpu.name},
                    {"Hostname", figures.node}},
                   of(gpu));
  }
}

// "Xid 79": its number; 0 where there was none in the round.
double XidOf(const GpuFigures& gpu) {
  absl::string_view text = gpu.fault;
  int number = 0;
  if (!absl::ConsumePrefix(&text, "Xid ") || !absl::SimpleAtoi(text, &number)) return 0;
  return number;
}

void AddGpus(const AgentFigures& figures, MetricsText& out) {
  AddOfGpus(figures, "DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", out,
            [](const GpuFigures& gpu) { return static_cast<double>(gpu.busy_percent); });
  AddOfGpus(figures, "DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", out,
            [](const GpuFigures& gpu) { return static_cast<double>(gpu.memory_used_mib); });
  AddOfGpus(figures, "DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", out,
            [](const GpuFigures& gpu) {
              const bool is_known = gpu.memory_mib >= 0 && gpu.memory_used_mib >= 0;
              return is_known ? static_cast<double>(gpu.memory_mib - gpu.memory_used_mib) : -1.0;
            });
  AddOfGpus(figures, "DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", out,
            [](const GpuFigures& gpu) { return gpu.power_watts; });
  AddOfGpus(figures, "DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", out,
            [](const GpuFigures& gpu) { return static_cast<double>(gpu.celsius); });
  AddOfGpus(figures, "DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", out,
            [](const GpuFigures& gpu) { return static_cast<double>(gpu.sm_mhz); });
  AddOfGpus(figures, "DCGM_FI_DEV_XID_ERRORS", "Value of the last XID error of the round.", out,
            XidOf);
}

}  // namespace

std::string AgentMetrics(const AgentFigures& figures) {
  MetricsText out;
  out.BeginGauge("muster_build_info", "1, with the version of this program.");
  out.Add({{"version", figures.version}}, 1);
  AddTime(figures, out);
  AddRanks(figures, out);
  AddGpus(figures, out);
  return out.Take();
}

}  // namespace muster::agent
