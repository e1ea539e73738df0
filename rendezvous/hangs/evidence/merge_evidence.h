// One evidence of what the agents of several nodes have seen, each of its own ranks.
//
// Pure values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/hangs/evidence/evidence.h"
#include "rendezvous/hangs/evidence/gatherings.h"

namespace muster::hangs {

class EvidenceMerger {
 public:
  explicit EvidenceMerger(Round round) { merged_.round = round; }

  // Groups of one name and id are one: each part knows its own members of them.
  void Add(Evidence part);
  // Called after all parts were added.
  void Add(const std::vector<Gathering>& gatherings) { AddGatherings(gatherings, merged_); }
  const Evidence& merged() const { return merged_; }

 private:
  int IndexOf(Group group);

  Evidence merged_;
  std::map<std::pair<std::string, uint32_t>, int> index_;
};

}  // namespace muster::hangs
