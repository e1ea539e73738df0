// How quick the network is between the nodes of a job whose workers are doctors: who measures with
// whom and when, and which node or pair of nodes is slower than the others.
//
// Threads: pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/doctor/node_health.h"

namespace muster::launcher {

// Beyond this every node measures with this many others alone.
inline constexpr int kMeasuringTurnsMax = 31;

// Whom `self` measures with in each turn, -1: with nobody. In a turn each is in one pair; up to
// kMeasuringTurnsMax turns all pairs come to meet once.
std::vector<int> PlanTurns(int num_nodes, int self);

struct Rate {
  int from = 0;
  int to = 0;
  double bytes_per_second = 0;  // 0: there was no connection
};
std::string Encode(const std::vector<Rate>& rates);
// What is not as Encode writes it is left out.
std::vector<Rate> DecodeRates(const std::string& text);

// A node that is slower than half of the usual (the median) with all others, in one direction or in
// both, is at fault, as far as there are others that are not. What is slow between other nodes is
// named as pairs. Where nobody has a connection, that is all that is said. `names` by node.
std::vector<Finding> JudgeRates(const std::vector<std::string>& names,
                                const std::vector<Rate>& rates);

}  // namespace muster::launcher
