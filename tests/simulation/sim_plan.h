// What a seed draws before it begins: the job, and which faults happen how often. Each seed has
// some families of faults and not others ("swarm"), so that rare combinations come up, and one in
// five is calm.
#pragma once

#include <string>

#include "proto/base/membership.h"
#include "tests/simulation/sim_random.h"

namespace muster::simulation {

struct SimPlan {
  RendezvousSettings settings;
  int num_nodes = 0;  // started at the beginning
  int num_late = 0;   // more of them later
  int local_world_size = 1;
  absl::Duration start_spread;
  absl::Duration work;  // how long the workers of a round have to work
  absl::Duration delay_mean;

  double loss = 0;         // of one message
  double duplication = 0;  // of one message
  double reorder = 0;      // of one message, by up to three seconds
  // Per node and second.
  double stream_breaks = 0;
  double crashes = 0;
  double pauses = 0;
  double signals = 0;
  // Per worker and round.
  double worker_failures = 0;
  double stubborn_workers = 0;  // ignore every signal but SIGKILL
  double unkillable_workers = 0;

  absl::Duration safety_phase;  // then the faults end, and everything must come to its end

  bool is_calm() const {
    return loss + duplication + reorder + stream_breaks + crashes + pauses + signals +
               worker_failures + unkillable_workers ==
           0;
  }
};

SimPlan DrawPlan(SimRandom& random);
std::string ToString(const SimPlan& plan);

}  // namespace muster::simulation
