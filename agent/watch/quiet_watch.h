// The hang watch of ranks that tell nothing: looks at what they use, and says who does nothing.
//
// One event loop, loop thread only.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "agent/watch/local_ranks.h"
#include "agent/watch/quiet_ranks.h"
#include "agent/watch/rank_looks.h"

namespace muster::agent {

class QuietWatch {
 public:
  // `say` is told who is quiet, or that it is over: perhaps later, once `looks` has looked at them.
  QuietWatch(const LocalRanks& ranks, RankLooks& looks,
             std::function<void(bool is_over, const std::string& text)> say);

  void StartRound() { quiet_ranks_.StartRound(); }
  // Once a second. `is_looked_into`: the judge of the job may give notice of ranks that PyTorch
  // tells of.
  void Tick(const std::vector<hangs::Pulse>& pulses, bool is_looked_into, MonoTime now);

 private:
  bool IsQuietPossible(const hangs::Pulse& pulse, bool is_looked_into) const;

  const LocalRanks& ranks_;
  RankLooks& looks_;
  const std::function<void(bool is_over, const std::string& text)> say_;
  QuietRanks quiet_ranks_;
};

}  // namespace muster::agent
