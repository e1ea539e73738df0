// One hang, one report: a paragraph for people and JSON for programs.
//
// Pure values.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/base/ids.h"
#include "rendezvous/verdict/diagnosis.h"
#include "rendezvous/verdict/incident_parts.h"

namespace muster::agent {

using verdict::MergeStacks;
using verdict::RankReport;
using verdict::StackGroup;

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
