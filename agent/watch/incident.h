// One hang, one report: a paragraph for people and JSON for programs.
//
// Pure values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/base/ids.h"
#include "proto/base/progress_board.h"
#include "rendezvous/verdict/diagnosis.h"

namespace muster::agent {

// What is known of one rank at the time of the verdict.
struct RankReport {
  int rank = 0;
  int pid = 0;
  std::string phase;
  std::optional<int64_t> step;
  absl::Duration silent_for;
  std::string doing;
  std::vector<std::string>
      frames;  // of its main thread, innermost first; empty: `no_frames` says why
  std::string no_frames;
};

// Ranks with one and the same stack.
struct StackGroup {
  std::vector<int> ranks;
  std::vector<std::string> frames;
};
// Equal stacks are one, the most common first.
std::vector<StackGroup> MergeStacks(const std::vector<RankReport>& ranks);

struct Incident {
  std::string run_id;
  std::string node;
  Round round;
  int restart_count = 0;
  absl::Time decided_at;
  verdict::Diagnosis diagnosis;
  std::string reason;  // why it is a hang now
  std::string action;  // "reported only (--watch=report)"
  std::vector<RankReport> ranks;
  // From the verdict on: what happened, and when.
  struct Milestone {
    std::string what;  // "decided", "stopped", "started", "first_step"
    absl::Duration after;
  };
  std::vector<Milestone> timeline;
};

// "hang: rank 1 has not called …; nothing has moved for 600 s (--hang_timeout)", then who does what.
std::string InWords(const Incident& incident);
std::string ToJson(const Incident& incident);

}  // namespace muster::agent
