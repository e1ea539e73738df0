#include "rendezvous/status/status_page.h"

#include "rendezvous/status/json_parts.h"

namespace muster::status {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(HealthOfJob, state, text, for_seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(RoundOfJob, round, phase, num_nodes, world_size,
                                                for_seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NodesOfJob, min, max, running, joined, held_back,
                                                draining, lost, unfit)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(RestartsOfJob, used, max, for_other_nodes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(ProgressOfJob, step, steps_per_second, slowest_rank,
                                                slowest_node, lag_steps, committed_step)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(IncidentOfJob, text, ago_seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(NodeOfJob, name, node_rank, first_rank, num_ranks,
                                                state, lease_seconds, step, silent_rank,
                                                silent_seconds, check)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(StatusPage, schema, job, told_by, health, round,
                                                nodes, restarts, progress, last_incident, members,
                                                members_left_out)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(JobLine, job, health, num_nodes, world_size, step)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(JobList, schema, jobs)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(WayToJob, schema, job, endpoint, tls,
                                                authentication)

JobLine LineOf(const StatusPage& page) {
  return {.job = page.job,
          .health = page.health,
          .num_nodes = page.round.num_nodes,
          .world_size = page.round.world_size,
          .step = page.progress.step};
}

std::string ToJson(const StatusPage& page) { return ToJsonText(page); }
std::string ToJson(const JobList& list) { return ToJsonText(list); }
std::string ToJson(const WayToJob& way) { return ToJsonText(way); }

absl::StatusOr<StatusPage> ParseStatusPage(absl::string_view json) {
  return FromJsonText<StatusPage>(json, "the status", kStatusSchema);
}

absl::StatusOr<JobList> ParseJobList(absl::string_view json) {
  return FromJsonText<JobList>(json, "the list of jobs", kStatusSchema);
}

absl::StatusOr<WayToJob> ParseWayToJob(absl::string_view json) {
  return FromJsonText<WayToJob>(json, "the way to the job", kStatusSchema);
}

}  // namespace muster::status
