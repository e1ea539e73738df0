// What `muster status` says of a job: one value, shown as a screen (launcher/sight/status_text.h)
// and as JSON. The names of the members are the keys of the JSON. -1 means: not known.
//
// A reader of another version takes what it knows: keys are only added while `schema` stays.
//
// Pure values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rendezvous/status/status_parts.h"

namespace muster::status {

inline constexpr int kStatusSchema = 1;

// "healthy", "waiting" (for nodes, or ranks for a rank), "hung", "failed", "ended".
inline constexpr char kHealthy[] = "healthy";
inline constexpr char kWaiting[] = "waiting";
inline constexpr char kHung[] = "hung";
inline constexpr char kFailed[] = "failed";
inline constexpr char kEnded[] = "ended";

struct StatusPage {
  int schema = kStatusSchema;
  std::string job;  // run id
  std::string told_by;
  HealthOfJob health;
  RoundOfJob round;
  NodesOfJob nodes;
  RestartsOfJob restarts;
  ProgressOfJob progress;
  IncidentOfJob last_incident;
  std::vector<NodeOfJob> members;  // by first rank, then those that wait
  int members_left_out = 0;
};

// The most nodes that a page lists: those of whom there is most to say.
inline constexpr size_t kNodesOnPageMax = 4096;

// One line of `muster status` without a job.
struct JobLine {
  std::string job;
  HealthOfJob health;
  int num_nodes = 0;
  int world_size = 0;
  int64_t step = -1;
};
struct JobList {
  int schema = kStatusSchema;
  std::vector<JobLine> jobs;
};

// How the rendezvous of a job is reached, by the word of its agent: what its nodes were told.
struct WayToJob {
  int schema = kStatusSchema;
  std::string job;       // run id
  std::string endpoint;  // "node1:29400"; empty: the job is of one node, and nobody can reach it
  bool tls = true;
  bool authentication = true;
};

JobLine LineOf(const StatusPage& page);

std::string ToJson(const StatusPage& page);
std::string ToJson(const JobList& list);
std::string ToJson(const WayToJob& way);

// Errors: kInvalidArgument: no JSON, a value of another type, or a schema that this version does
//         not know.
absl::StatusOr<StatusPage> ParseStatusPage(absl::string_view json);
absl::StatusOr<JobList> ParseJobList(absl::string_view json);
absl::StatusOr<WayToJob> ParseWayToJob(absl::string_view json);

}  // namespace muster::status
