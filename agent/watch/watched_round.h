// What is watched in one round on this node.
//
// Pure values.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "agent/process/board_memory.h"
#include "proto/base/ids.h"
#include "rendezvous/hangs/evidence/gatherings.h"

namespace muster::agent {

using StoreAnswer = std::function<void(std::vector<hangs::Gathering>)>;
using StoreQuestion = std::function<void(StoreAnswer)>;

struct WatchedRound {
  Round round;
  int restart_count = 0;
  int num_nodes = 1;
  int first_rank = 0;
  int world_size = 1;
  std::vector<std::optional<BoardMemory>> boards;  // by local rank; nothing: could not be made
  std::vector<std::string> torch_servers;          // by local rank; see torch_hook.h
  // Asks PyTorch's store; the answer comes on any thread, or never. Empty on nodes that do not
  // serve it.
  StoreQuestion ask_store;
  // Pairs of nodes that did not reach each other before the workers started; more may become known.
  // Empty: there are none.
  std::function<std::vector<std::string>()> network_faults;
};

}  // namespace muster::agent
