// One evidence of what the agents of several nodes have seen, each of its own ranks.
//
// Pure values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "rendezvous/verdict/evidence.h"

namespace muster::verdict {

class EvidenceMerger {
 public:
  explicit EvidenceMerger(Round round) { merged_.round = round; }

  // Groups of one name and id are one: each part knows its own members of them.
  void Add(Evidence part);
  const Evidence& merged() const { return merged_; }

 private:
  int IndexOf(Group group);

  Evidence merged_;
  std::map<std::pair<std::string, uint32_t>, int> index_;
};

}  // namespace muster::verdict
