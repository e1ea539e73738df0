// A turn for values of AgentCore that are built alone: the settings of a node, the time, and what a
// step has asked the shell to do.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "agent/core/turn.h"
#include "gtest/gtest.h"

namespace muster::agent {

class TurnTest : public ::testing::Test {
 protected:
  TurnTest() {
    options_.node = {.name = "node1", .address = "10.0.0.1", .local_world_size = 2};
    options_.settings.join_timeout = absl::Seconds(600);
    options_.settings.shutdown_timeout = absl::Seconds(30);
    options_.settings.orphan_timeout = absl::Minutes(10);
    options_.read_timeout = absl::Seconds(60);
    options_.server = "the rendezvous at node1:29400";
  }

  MonoTime now() const { return turn_.now; }
  void Pass(absl::Duration time) { turn_.now = turn_.now + time; }

  // What has been asked of the shell since this was called last, as lines.
  std::vector<std::string> Effects() {
    std::vector<std::string> lines;
    for (const Effect& effect : std::exchange(turn_.effects, {})) lines.push_back(ToString(effect));
    return lines;
  }

  AgentCoreOptions options_;
  Turn turn_{.options = options_, .now = MonoTime::At(absl::Seconds(100))};
};

// Two workers of round 0 on one node, as a group that runs.
inline constexpr int kFirstPid = 700;
inline WorkerSpawned Spawned(int local_rank, int64_t round = 0) {
  return {
      .round = Round(round), .local_rank = LocalRank(local_rank), .pid = kFirstPid + local_rank};
}
inline Assignment TwoWorkers(int64_t round = 0) {
  return {.round = Round(round),
          .instance = Instance(7),
          .num_nodes = 2,
          .local_world_size = 2,
          .world_size = 4,
          .restart_count = static_cast<int>(round)};
}

}  // namespace muster::agent
