#include "rendezvous/core/job_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace muster::rendezvous {
namespace {

bool HasBeenTold(const JobState& state) {
  if (state.phase != JobPhase::kEnded) return false;
  return std::all_of(state.nodes.begin(), state.nodes.end(),
                     [](const auto& entry) { return entry.second.told_end; });
}

StoreReply RefuseStoreRequest(const StoreRequest& request, std::string why) {
  return {.request_id = request.request_id, .status = absl::AbortedError(why)};
}

void Append(const JobKey& key, std::vector<SendStoreReply> replies,
            std::vector<JobTable::JobEffect>& out) {
  for (SendStoreReply& reply : replies) out.push_back({key, std::move(reply)});
}

}  // namespace

JobTable::JobTable(JobTableOptions options)
    : options_(std::move(options)), next_instance_(options_.first_instance) {}

std::vector<JobTable::JobEffect> JobTable::OnReport(const JobKey& key, Incarnation from,
                                                    const AgentReport& report, MonoTime now) {
  std::vector<JobEffect> out;
  // Who comes new must not meet a job that ended with the lease of its last node.
  const auto old = jobs_.find(key);
  if (old != jobs_.end() && old->second.deadline <= now &&
      !old->second.core->state().nodes.contains(from)) {
    StepCore(old, rendezvous::Tick{}, now, out);
  }
  std::optional<DirectiveBody> answer = AnswerWithoutJob(key, from, report, now);
  const auto job = jobs_.find(key);
  if (!answer) {
    StepCore(job, AgentReported{from, report}, now, out);
    return out;
  }
  const bool is_end = std::holds_alternative<EndJob>(*answer);
  const Instance current = job == jobs_.end() ? Instance() : job->second.instance;
  Directive directive{.term = options_.term,
                      .instance = is_end ? report.instance : current,
                      .report_sequence = report.sequence,
                      .body = *std::move(answer)};
  out.push_back(Stamp(key, {from, std::move(directive)}));
  return out;
}

std::optional<DirectiveBody> JobTable::AnswerWithoutJob(const JobKey& key, Incarnation from,
                                                        const AgentReport& report, MonoTime now) {
  const auto job = jobs_.find(key);
  const Instance current = job == jobs_.end() ? Instance() : job->second.instance;
  if (report.instance.value() != 0 && report.instance != current) {
    for (const EndedJob& ended : ended_) {
      const bool is_it = ended.instance == report.instance && ended.key == key;
      if (is_it && now < ended.known_until) return EndJob{ended.outcome};
    }
  }
  if (job == jobs_.end()) {
    const absl::Status begun = Begin(key, report);
    return begun.ok() ? std::nullopt : std::optional<DirectiveBody>(Refuse{begun});
  }
  if (report.instance.value() != 0 && report.instance != current) {
    return Refuse{absl::AbortedError(
        absl::StrCat("instance ", ToString(report.instance), " of job '", key.run_id,
                     "' is over; the current one is ", ToString(current), ". Join again"))};
  }
  const JobState& state = job->second.core->state();
  const bool is_new = report.phase == AgentPhase::kJoining && report.instance.value() == 0 &&
                      !state.nodes.contains(from) && !state.former.contains(from);
  if (!is_new || !HasBeenTold(state)) return std::nullopt;
  Erase(job, now);
  const absl::Status begun = Begin(key, report);
  return begun.ok() ? std::nullopt : std::optional<DirectiveBody>(Refuse{begun});
}

absl::Status JobTable::Begin(const JobKey& key, const AgentReport& report) {
  const std::string& only = options_.only_run_id;
  if (!only.empty() && key.run_id != only) {
    return absl::InvalidArgumentError(absl::StrCat("this server serves job '", only, "', not '",
                                                   key.run_id,
                                                   "'; another job uses the same endpoint"));
  }
  if (only.empty() && (key.run_id == "none" || key.run_id.empty())) {
    return absl::InvalidArgumentError(
        "musterd serves many jobs and tells them apart by run id; give the job one: "
        "--rdzv_id=NAME");
  }
  if (report.instance >= options_.first_instance && report.instance < next_instance_) {
    return absl::FailedPreconditionError(absl::StrCat("job '", key.run_id, "' (instance ",
                                                      ToString(report.instance), ") has ended"));
  }
  if (report.phase != AgentPhase::kJoining || report.instance.value() != 0) {
    return absl::AbortedError(
        absl::StrCat("job '", key.run_id, "' is not known to this server. Join again"));
  }
  if (jobs_.size() >= static_cast<size_t>(options_.max_jobs)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this server has its ", options_.max_jobs,
                     " jobs; wait for one to end, or start another musterd"));
  }
  Job job;
  job.instance = next_instance_;
  next_instance_ = next_instance_.Next();
  job.core = std::make_unique<RendezvousCore>(
      CoreOptions{.term = options_.term, .instance = job.instance, .lease = options_.lease});
  deadlines_.insert({job.deadline, key});
  jobs_.emplace(key, std::move(job));
  return absl::OkStatus();
}

std::vector<JobTable::JobEffect> JobTable::OnStoreRequest(const JobKey& key, Incarnation from,
                                                          const StoreRequest& request,
                                                          MonoTime now) {
  std::vector<JobEffect> out;
  const auto job = jobs_.find(key);
  if (job == jobs_.end()) {
    out.push_back({key, SendStoreReply{from, RefuseStoreRequest(request, "the job is not known")}});
    return out;
  }
  if (!IsLiveMember(job->second.core->state(), from)) {
    const std::string why = absl::StrCat("this node is not a member of round ",
                                         ToString(job->second.core->state().round));
    out.push_back({key, SendStoreReply{from, RefuseStoreRequest(request, why)}});
    return out;
  }
  Append(key, job->second.store.Step(from, request, now), out);
  Reschedule(job);
  return out;
}

std::vector<JobTable::JobEffect> JobTable::OnDisconnect(const JobKey& key, Incarnation from,
                                                        MonoTime now) {
  std::vector<JobEffect> out;
  const auto job = jobs_.find(key);
  if (job != jobs_.end()) StepCore(job, AgentDisconnected{from}, now, out);
  return out;
}

std::vector<JobTable::JobEffect> JobTable::OnHostLeaving(const Departure& departure,
                                                         const std::string& host_name,
                                                         MonoTime now) {
  std::vector<JobEffect> out;
  std::vector<JobKey> keys;
  for (const auto& [key, unused] : jobs_) keys.push_back(key);
  for (const JobKey& key : keys) {
    StepCore(jobs_.find(key), HostLeaving{departure, host_name}, now, out);
  }
  return out;
}

std::vector<JobTable::JobEffect> JobTable::Tick(MonoTime now) {
  std::vector<JobEffect> out;
  std::vector<JobKey> due;
  for (const auto& [deadline, key] : deadlines_) {
    if (deadline > now) break;
    due.push_back(key);
  }
  for (const JobKey& key : due) {
    const auto job = jobs_.find(key);
    Append(key, job->second.store.Tick(now), out);
    StepCore(job, rendezvous::Tick{}, now, out);
  }
  return out;
}

MonoTime JobTable::NextDeadline() const {
  return deadlines_.empty() ? MonoTime::InfiniteFuture() : deadlines_.begin()->first;
}

const JobState* JobTable::FindState(const JobKey& key) const {
  const auto job = jobs_.find(key);
  return job == jobs_.end() ? nullptr : &job->second.core->state();
}

std::string JobTable::CheckInvariants() const {
  for (const auto& [key, job] : jobs_) {
    std::string broken = job.core->CheckInvariants();
    if (broken.empty()) broken = job.store.CheckInvariants();
    if (broken.empty() && !deadlines_.contains({job.deadline, key})) broken = "no deadline kept";
    if (!broken.empty()) return absl::StrCat("job '", key.run_id, "': ", broken);
  }
  return "";
}

void JobTable::StepCore(Jobs::iterator job, const Event& event, MonoTime now,
                        std::vector<JobEffect>& out) {
  const JobKey key = job->first;
  bool is_retired = false;
  for (Effect& effect : job->second.core->Step(event, now)) {
    if (auto* directive = std::get_if<SendDirective>(&effect)) {
      out.push_back(Stamp(key, std::move(*directive)));
    } else if (auto* announce = std::get_if<Announce>(&effect)) {
      out.push_back({key, std::move(*announce)});
    } else {
      is_retired = true;
    }
  }
  if (is_retired) {
    Erase(job, now);
    return;
  }
  StartStoreRound(job->second, key, now, out);
  Reschedule(job);
}

void JobTable::StartStoreRound(Job& job, const JobKey& key, MonoTime now,
                               std::vector<JobEffect>& out) {
  const JobState& state = job.core->state();
  if (state.round == job.store_round) return;
  job.store_round = state.round;
  Append(key, job.store.StartRound(state.round, now), out);
  for (const Incarnation member : job.store_members) {
    if (!state.assignments.contains(member)) job.store.Forget(member);
  }
  job.store_members = state.members;
}

void JobTable::Reschedule(Jobs::iterator job) {
  deadlines_.erase({job->second.deadline, job->first});
  job->second.deadline = Min(job->second.core->NextDeadline(), job->second.store.NextDeadline());
  deadlines_.insert({job->second.deadline, job->first});
}

void JobTable::Erase(Jobs::iterator job, MonoTime now) {
  while (!ended_.empty() && (ended_.front().known_until <= now || ended_.size() >= kMaxEndedJobs)) {
    ended_.pop_front();
  }
  const JobState& state = job->second.core->state();
  ended_.push_back({.key = job->first,
                    .instance = job->second.instance,
                    .outcome = *state.outcome,
                    .known_until = now + state.settings->close_timeout});
  deadlines_.erase({job->second.deadline, job->first});
  jobs_.erase(job);
}

JobTable::JobEffect JobTable::Stamp(const JobKey& key, SendDirective effect) {
  effect.directive.revision = next_revision_++;
  return {key, std::move(effect)};
}

}  // namespace muster::rendezvous
