// The parts of a job's status (status_page.h). -1 means: not known.
//
// Pure values.
#pragma once

#include <cstdint>
#include <string>

namespace muster::status {

// `text` says what is waited for, what the verdict is, or how the job has ended.
struct HealthOfJob {
  std::string state;
  std::string text;
  double for_seconds = -1;
};

struct RoundOfJob {
  int64_t round = -1;
  std::string phase;  // "forming", "running", "ending", "ended"
  int num_nodes = 0;
  int world_size = 0;
  double for_seconds = -1;  // since the phase began
};

struct NodesOfJob {
  int min = 0;
  int max = 0;
  int running = 0;  // members whose lease holds
  int joined = 0;   // ready for the next round; while a round runs: spares
  int held_back = 0;
  int draining = 0;
  int lost = 0;   // of the last round
  int unfit = 0;  // nodes whose check has failed
};

struct RestartsOfJob {
  int used = 0;
  int max = 0;
  int for_other_nodes = 0;  // rounds that nodes have ended by coming and going
};

// How far the ranks are that mark their steps.
struct ProgressOfJob {
  int64_t step = -1;  // the furthest of all ranks
  double steps_per_second = -1;
  int slowest_rank = -1;
  std::string slowest_node;
  int64_t lag_steps = -1;  // of the slowest behind the furthest
  int64_t committed_step = -1;
};

struct IncidentOfJob {
  std::string text;
  double ago_seconds = -1;
};

struct NodeOfJob {
  std::string name;
  int node_rank = -1;
  int first_rank = -1;
  int num_ranks = 0;
  // "running", "done", "spare", "joined", "draining", "held back", "away", "lost", "stopped", and
  // by its node check "checking" or "unfit".
  std::string state;
  double lease_seconds = -1;  // what is left of it
  int64_t step = -1;          // of its slowest rank
  int silent_rank = -1;       // that has been silent longest, of those that are
  double silent_seconds = -1;
  std::string check;  // how its node check has failed, with its last line; empty: it has not
};

}  // namespace muster::status
