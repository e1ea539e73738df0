// What a seed draws before it begins: the jobs, and which faults happen how often. Each seed has
// some families of faults and not others ("swarm"), so that rare combinations come up; one in eight
// is calm, and one in six has a single family, so that what it breaks is plain.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "proto/base/membership.h"
#include "tests/simulation/sim_random.h"

namespace muster::simulation {

struct SimJobPlan {
  RendezvousSettings settings;
  int num_nodes = 0;  // started at the beginning
  int num_late = 0;   // more of them later
  int local_world_size = 1;
  absl::Duration start_spread;
  absl::Duration work;              // how long the workers of a round have to work
  absl::Duration checkpoint_every;  // zero: the program commits none
  int steps = 0;          // of the program, which asks after each whether to stop; 0: it never asks
  bool survives = false;  // its workers go on in the next round in the same process
  // Its work has no end: after the faults it must get its round, and then a person stops it.
  bool is_endless = false;
};

struct SimPlan {
  std::vector<SimJobPlan> jobs;
  bool is_embedded = false;  // the server lives in the process of the first job's first node
  bool is_durable = false;   // musterd with a state directory
  absl::Duration delay_mean;
  absl::Duration safety_phase;  // then the faults end, and everything must come to its end

  // Chances of one message.
  double loss = 0;
  double duplication = 0;
  double reorder = 0;  // by up to three seconds
  // Rates per node and second.
  double stream_breaks = 0;
  double crashes = 0;
  double pauses = 0;      // SIGSTOP, up to 30 s
  double slow_loops = 0;  // up to 3 s, often
  double signals = 0;
  double cuts = 0;       // of one node from the server, both ways
  double cuts_up = 0;    // what it says does not arrive
  double cuts_down = 0;  // what it is told does not
  double impostors = 0;  // somebody else answers at the server's port
  double guardian_losses = 0;
  double warnings = 0;          // a scheduler's: a user signal, or that the time will be up
  double forbidden_rounds = 0;  // by what the nodes find out about each other
  double flapping = 0;          // of one node of each job
  double storms = 0;            // every node dies often, and is back soon
  double death_notices = 0;     // of one death of a process: its guardian lives, and says so
  // Rates per second.
  double blackouts = 0;  // nobody reaches the server
  double server_crashes = 0;
  double server_stalls = 0;
  double disk_stalls = 0;      // nothing is written for up to 20 s, as when the disk is full
  double disk_damages = 0;     // of one start: the state is found damaged, and is moved away
  double late_deaths = 0;      // of one crash: what was being written is there, and nobody knows
  double lost_writes = 0;      // of one crash: the newest transaction is not whole, and left out
  double clock_jumps = 0;      // of one start: the wall clock has jumped by up to an hour
  double host_departures = 0;  // the process that embeds the server is told to end
  // The chance of one stop step that is named: the server dies in the seconds after it.
  double deaths_in_stops = 0;
  // Rates per job and second.
  double stops = 0;         // a person stops it
  double drains = 0;        // a person drains one of its nodes
  double odd_requests = 0;  // a worker asks the store for what it may not have, or long ago
  // The chance of one rung: what the workers left behind does not end by it.
  double leftovers = 0;
  // The chance of one reservation.
  double port_failures = 0;
  // Chances per worker and round.
  double worker_failures = 0;
  double inquiries = 0;         // of one failure: all ranks are asked what they called last
  double stubborn_workers = 0;  // ignore every signal but SIGKILL
  double unkillable_workers = 0;
  double liars = 0;  // say of themselves what comes to their minds
  // The drift of each node's clock, in parts of it.
  double drifts = 0;
  // The chance of one check of a node; all have one then.
  double failed_checks = 0;
  // Rates per job and second of reports that no agent of ours makes. Members that lie harm the last
  // of several jobs only; newcomers that may not come in harm nobody.
  double hostile_members = 0;
  double misfits = 0;
  // The chance of each pair of nodes of a job that they do not reach each other, until the faults
  // end; every job requires its network then.
  double broken_pairs = 0;
};

// The families by name, for shrinking and for the command line.
struct SimFamily {
  const char* name;
  double SimPlan::*rate;
};
absl::Span<const SimFamily> SimFamilies();

SimPlan DrawPlan(SimRandom& random);
std::string ToString(const SimPlan& plan);

// No family but these is on.
bool HasOnly(const SimPlan& plan, absl::Span<const char* const> names);

}  // namespace muster::simulation
