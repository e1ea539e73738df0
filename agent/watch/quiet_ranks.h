// Ranks that tell nothing of what they do, and do nothing: seen from outside alone, by the
// processor time and the bytes that they and what they have started have used.
//
// A program that tells nothing may be quiet by intention (a server without requests, a shell that
// waits), so this gives a notice and never a verdict. Bytes of sockets are not counted by the
// kernel for one process; who receives or sends uses processor time.
//
// Pure. Thread-compatible: one caller at a time (hang_watch.h calls it on the loop).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/time/time.h"
#include "agent/watch/process_look.h"
#include "proto/base/mono_time.h"

namespace muster::agent {

class QuietRanks {
 public:
  // What uses more in a window does something.
  static constexpr double kBusyShare = 0.005;  // of a core
  static constexpr int64_t kBusyBytes = 16 << 10;

  static constexpr absl::Duration kWindow = absl::Seconds(10);
  // The least quiet that is worth a word; more once such a quiet has ended.
  static constexpr absl::Duration kNoticeMin = absl::Minutes(2);
  struct Times {
    absl::Duration window = kWindow;
    absl::Duration notice_min = kNoticeMin;
  };
  QuietRanks() : QuietRanks(Times()) {}
  explicit QuietRanks(const Times& times) : times_(times), limit_(times.notice_min) {}

  struct RankUse {
    int rank = 0;
    ProcessUse use;
  };
  // What is said once: that ranks are quiet, and then that one of them does something again.
  struct Change {
    bool is_over = false;
    std::vector<int> quiet;  // ranks, sorted; of those that were, if it is over
    std::vector<int> busy;   // the others that were looked at
    absl::Duration quiet_for;
  };

  // Other processes; how long they may be quiet stays.
  void StartRound();
  // Whether a window is over, so that Listen is to be called.
  bool IsDue(MonoTime now) const { return !last_ || now - *last_ >= times_.window; }
  // `uses` has the ranks that report nothing of themselves, by rank. A rank left out starts over.
  std::optional<Change> Listen(const std::vector<RankUse>& uses, MonoTime now);

 private:
  struct State {
    ProcessUse use;
    absl::Duration quiet_for;
  };

  bool IsTimeToSay() const;
  absl::Duration LongestQuiet() const;

  const Times times_;
  std::optional<MonoTime> last_;
  absl::btree_map<int, State> ranks_;
  absl::Duration limit_;
  std::vector<int> noticed_;  // sorted; empty: none
  absl::Duration noticed_for_;
};

}  // namespace muster::agent
