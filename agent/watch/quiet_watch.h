// The hang watch of ranks that tell nothing: looks at what they use, and says who does nothing; and
// soon, where the reason is known: a file system that does not answer.
//
// One event loop, loop thread only.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/watch/local_ranks.h"
#include "agent/watch/quiet_ranks.h"
#include "agent/watch/rank_looks.h"

namespace muster::agent {

class QuietWatch {
 public:
  static constexpr QuietRanks::Times kOfFiles = {.window = absl::Seconds(2),
                                                 .notice_min = absl::Seconds(6)};

  // `say` is told who is quiet, or that it is over: perhaps later, once `looks` has looked at them.
  QuietWatch(const LocalRanks& ranks, RankLooks& looks,
             std::function<void(bool is_over, const std::string& text)> say);

  void StartRound();
  // Once a second. `is_looked_into`: the judge of the job may give notice of ranks that PyTorch
  // tells of.
  void Tick(const std::vector<hangs::Pulse>& pulses, bool is_looked_into, MonoTime now);
  // Ranks that a notice describes are not called quiet, too, in this round, until the next call.
  void LeaveAlone(std::vector<int> ranks) { left_alone_ = std::move(ranks); }

 private:
  void Say(const std::optional<QuietRanks::Change>& change, bool await_files, MonoTime now);
  bool IsQuietPossible(const hangs::Pulse& pulse, bool is_looked_into) const;

  const LocalRanks& ranks_;
  RankLooks& looks_;
  const std::function<void(bool is_over, const std::string& text)> say_;
  QuietRanks awaiting_files_{kOfFiles};
  QuietRanks quiet_ranks_;  // of the others
  std::vector<int> left_alone_;
};

}  // namespace muster::agent
