// What an agent tells a Prometheus: what its node's time has been spent on, and the figures of its
// ranks and GPUs. GPU figures have the names of NVIDIA's DCGM exporter, so that dashboards made for
// that show them too.
//
// Threads: pure.
// Source: NVIDIA, dcgm-exporter, default-counters.csv (names and units).
#pragma once

#include <array>
#include <string>

#include "agent/sight/job_diary.h"
#include "rendezvous/status/diary.h"
#include "rendezvous/status/figures.h"

namespace muster::agent {

struct AgentFigures {
  std::string version;
  std::string run_id;
  std::string node;
  status::Spent spent = status::Spent::kForming;  // now
  std::array<double, status::kAllSpent.size()> spent_seconds = {};
  JobDiary::Counts counts;
  int restarts_used = 0;
  int restarts_max = 0;
  double steps_per_second = -1;  // of the furthest rank here
  status::FiguresOfNode of_node;
};

std::string AgentMetrics(const AgentFigures& figures);

}  // namespace muster::agent
