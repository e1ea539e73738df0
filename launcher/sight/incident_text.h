// An incident file (agent/watch/incident.h writes it, deploy/docs/incidents.md describes it) in
// prose.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster::launcher {

inline constexpr int kIncidentSchema = 1;

// What a report says of one.
struct IncidentSummary {
  std::string kind;  // "hang" or "abort"
  std::string file;  // where it lies; filled in by who has read it
  std::string at;    // by the wall clock of its node
  std::string node;
  int64_t round = -1;
  std::string text;
  std::string cause;   // of a hang, in words; empty: not known
  std::string action;  // of a hang: what followed
};

// Errors: kInvalidArgument: no incident file, or one of another schema.
absl::StatusOr<IncidentSummary> SummaryOfIncident(absl::string_view json);

// Paragraphs for people: what it was, who is at fault, who waited, what each did, where they were,
// and what followed.
//
// Errors: as SummaryOfIncident.
absl::StatusOr<std::string> ExplainIncident(absl::string_view json);

}  // namespace muster::launcher
