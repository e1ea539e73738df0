// The network between the nodes of a job that requires it: pairs that do not reach each other until
// the faults end. A round is either checked, and its workers start, or some of its pairs fail.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/simulation/sim_cluster.h"

namespace muster::simulation {

bool SimCluster::IsBroken(int job, const std::string& a, const std::string& b) const {
  if (is_healed_ || plan_.broken_pairs == 0) return false;
  // The same in every round: from the seed and the numbers in the names.
  uint64_t mark = seed_ + 1000003 * static_cast<uint64_t>(job + 1);
  for (const std::string& name : {std::min(a, b), std::max(a, b)}) {
    for (const char letter : name) mark = 131 * mark + static_cast<uint64_t>(letter);
  }
  SimRandom random(mark);
  return random.Chance(plan_.broken_pairs);
}

const std::vector<FailedPair>& SimCluster::CheckPairs(const Node& node,
                                                      const Assignment& assignment) {
  const auto [place, is_new] =
      checks_.try_emplace({node.job, assignment.instance, assignment.round});
  if (!is_new) return place->second;
  const int count = static_cast<int>(assignment.peers.size());
  for (int from = 0; from < count; ++from) {
    for (int to = from + 1; to < count; ++to) {
      if (!IsBroken(node.job, assignment.peers[from].name, assignment.peers[to].name)) continue;
      place->second.push_back({.from = from, .to = to});
    }
  }
  JobFate& fate = fates_[node.job];
  if (place->second.empty()) {
    coverage_.rounds_checked += plan_.broken_pairs > 0;
    return place->second;
  }
  ++coverage_.rounds_parted;
  ++fate.disturbances;
  std::set<int> apart;
  for (const FailedPair& pair : place->second) apart.insert({pair.from, pair.to});
  const int others = count - static_cast<int>(apart.size());
  if (others < JobOf(node).settings.min_nodes || JobOf(node).settings.is_static) {
    fate.causes.may_end_apart = true;
  }
  return place->second;
}

// Its workers do not start; node 0 tells the rendezvous.
void SimCluster::HoldWorkers(Node& node, const Assignment& assignment) {
  CheckAssignment(node, assignment);
  node.assignment = assignment;
  node.workers.clear();
  for (int i = 0; i < assignment.local_world_size; ++i) {
    node.workers.push_back({.local_rank = LocalRank(i)});
  }
  if (assignment.node_rank.value() != 0) return;
  schedule_.After(
      random_.Between(absl::ZeroDuration(), absl::Seconds(6)),
      [this, id = node.incarnation, assignment] {
        const Node& first = nodes_.at(id);
        if (IdOf(*first.assignment) != IdOf(assignment)) return;
        StepAgent(id, agent::PairsFailed{assignment.round, CheckPairs(first, assignment)});
      });
}

std::string SimCluster::WhyWrongSplit(int job) const {
  return fates_[job].causes.may_end_apart
             ? ""
             : "in each round enough nodes reached all others, or every pair was checked";
}

bool SimCluster::IsApart(const Node& node) const {
  const rendezvous::JobState* state =
      table_ == nullptr ? nullptr : table_->FindState(KeyOf(node.job));
  if (state == nullptr) return false;
  const auto known = state->nodes.find(node.incarnation);
  return known != state->nodes.end() && known->second.wants_place &&
         !known->second.apart_from.empty();
}

}  // namespace muster::simulation
