// One hang, or the aborts of one round, one report: a paragraph for people and JSON for programs.
//
// Pure values.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/base/ids.h"
#include "rendezvous/hangs/evidence/diagnosis.h"
#include "rendezvous/hangs/evidence/incident_parts.h"
#include "rendezvous/hangs/evidence/last_calls.h"

namespace muster::agent {

// The form of the JSON: keys are only added while it stays. deploy/docs/incidents.md describes it,
// launcher/sight/incident_text.h reads it.
inline constexpr int kIncidentSchema = 1;

using hangs::MergeStacks;
using hangs::RankReport;
using hangs::StackGroup;

struct Incident {
  std::string run_id;
  std::string node;
  Round round;
  int restart_count = 0;
  absl::Time decided_at;
  hangs::Diagnosis diagnosis;
  std::string reason;  // why it is a hang now
  std::string action;  // "reported only (--watch=report)"
  // Pairs of nodes that did not reach each other before the workers started, one sentence each:
  // perhaps the reason of all that follows, so they come first.
  std::vector<std::string> network_faults;
  std::vector<RankReport> ranks;
  // What happened, and how long after the silence was detected.
  struct Milestone {
    std::string what;  // one of those below
    absl::Duration after;
  };
  std::vector<Milestone> timeline;
};

// The milestones in their order. All of them are seen where the hang is followed by another attempt
// whose program says that it steps.
inline constexpr absl::string_view kDetected = "detected";  // the first was silent for five seconds
inline constexpr absl::string_view kDecided = "decided";    // a verdict
inline constexpr absl::string_view kReported = "reported";  // with evidence
inline constexpr absl::string_view kStopped = "stopped";    // all workers of this node
inline constexpr absl::string_view kReformed = "reformed";  // the next round
inline constexpr absl::string_view kStarted = "started";    // all workers of this node
inline constexpr absl::string_view kFirstStep = "first_step";  // of the next attempt

// "network: node1 (…, eth0) does not reach …" for each fault, in lines of their own.
std::string NetworkInWords(const std::vector<std::string>& faults);

bool HasReached(const Incident& incident, absl::string_view milestone);

// "hang: rank 1 has not called …; nothing has moved for 600 s (--hang_timeout)", then who does
// what.
std::string InWords(const Incident& incident);
// "timeline in ms: detected 0, decided 7012, reported 7105".
std::string TimelineInWords(const Incident& incident);
std::string ToJson(const Incident& incident);

// What the ranks called last where some have aborted.
struct AbortIncident {
  std::string run_id;
  std::string node;
  Round round;
  int restart_count = 0;
  absl::Time said_at;
  hangs::AbortReport report;
};
std::string ToJson(const AbortIncident& incident);

}  // namespace muster::agent
