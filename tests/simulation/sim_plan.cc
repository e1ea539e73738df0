#include "tests/simulation/sim_plan.h"

#include "absl/strings/str_cat.h"

namespace muster::simulation {
namespace {

double Maybe(SimRandom& random, double most) {
  return random.Chance(0.5) ? random.Unit() * most : 0;
}

void DrawFaults(SimRandom& random, SimPlan& plan) {
  plan.loss = Maybe(random, 0.2);
  plan.duplication = Maybe(random, 0.3);
  plan.reorder = Maybe(random, 0.2);
  plan.stream_breaks = Maybe(random, 1.0 / 30);
  plan.crashes = Maybe(random, 1.0 / 120);
  plan.pauses = Maybe(random, 1.0 / 60);
  plan.signals = Maybe(random, 1.0 / 300);
  plan.worker_failures = Maybe(random, 0.2);
  plan.stubborn_workers = Maybe(random, 0.3);
  plan.unkillable_workers = random.Chance(0.1) ? 0.02 : 0;
}

}  // namespace

SimPlan DrawPlan(SimRandom& random) {
  SimPlan plan;
  const int min_nodes = random.Between(1, 4);
  const bool is_static = random.Chance(0.25);
  plan.settings = {.min_nodes = min_nodes,
                   .max_nodes = is_static ? min_nodes : min_nodes + random.Between(0, 2),
                   .max_restarts = random.Between(0, 3),
                   .is_static = is_static,
                   .join_timeout = absl::Seconds(60),
                   .last_call_timeout = absl::Seconds(random.Between(1, 8)),
                   .close_timeout = absl::Seconds(30),
                   .shutdown_timeout = absl::Seconds(random.Between(2, 10))};
  plan.num_nodes = random.Between(plan.settings.min_nodes, plan.settings.max_nodes);
  plan.num_late = is_static ? 0 : random.Between(0, 2);
  plan.local_world_size = random.Between(1, 3);
  plan.start_spread = absl::Seconds(random.Between(0, 20));
  plan.work = absl::Seconds(random.Between(5, 60));
  plan.delay_mean = absl::Milliseconds(random.Chance(0.2) ? 400 : random.Between(1, 50));
  plan.safety_phase = absl::Seconds(random.Between(30, 150));
  if (!random.Chance(0.2)) DrawFaults(random, plan);
  return plan;
}

std::string ToString(const SimPlan& plan) {
  return absl::StrCat(
      "nodes=", plan.num_nodes, "+", plan.num_late, " min=", plan.settings.min_nodes,
      " max=", plan.settings.max_nodes, " restarts=", plan.settings.max_restarts,
      " static=", plan.settings.is_static, " loss=", plan.loss, " duplication=", plan.duplication,
      " reorder=", plan.reorder, " stream_breaks=", plan.stream_breaks, " crashes=", plan.crashes,
      " pauses=", plan.pauses, " signals=", plan.signals, " worker_failures=", plan.worker_failures,
      " stubborn=", plan.stubborn_workers, " unkillable=", plan.unkillable_workers);
}

}  // namespace muster::simulation
