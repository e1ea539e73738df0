// How long a step of a planned job takes on given devices and links.
//
// The model: products run at a share of the device's peak; what is computed again is added, and a
// pipeline waits at its ends. Gradients travel while later layers go backward, gathered parameters
// while others compute; what does not fit behind that is waited for. The update reads and writes
// all of its states once.
//
// Threads: pure.
#pragma once

#include "worker_runtime/advice/rank_rates.h"
#include "worker_runtime/plan/plan_page.h"

namespace muster::advice {

struct StepTime {
  double compute = 0;  // seconds, with what is computed again
  double bubble = 0;   // that stages wait for each other
  double exposed = 0;  // communication that nothing hides
  double update = 0;
  double total() const { return compute + bubble + exposed + update; }
  // The time of the same work without other ranks, as a share of total().
  double efficiency() const { return (compute + update) / total(); }
};

// `memory`: what a rank of the job takes and sends (plan::MemoryOfRank).
StepTime PredictStepTime(const plan::PlanPageInput& job, const plan::RankMemory& memory,
                         const RankRates& rates);

}  // namespace muster::advice
