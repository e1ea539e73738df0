#include "rendezvous/core/job_table.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/base/nearest_name.h"
#include "rendezvous/core/wording.h"

namespace muster::rendezvous {
namespace {

// Leaves 43 bits for the term: milliseconds until the year 2248.
constexpr int kInstanceBits = 20;
// Beyond this many unrecorded rounds those that have been silent for long are swept out.
constexpr size_t kMaxOrphansUnswept = 1000;
constexpr int kMaxJobsNamed = 5;

// Everybody has been told the end, and nobody says that its workers still run: it may not have
// heard.
bool HasBeenTold(const JobState& state) {
  if (state.phase != JobPhase::kEnded) return false;
  return std::all_of(state.nodes.begin(), state.nodes.end(), [](const auto& entry) {
    const AgentPhase phase = entry.second.report.phase;
    const bool runs = phase == AgentPhase::kRunning || phase == AgentPhase::kFailed;
    return entry.second.told_end && !runs;
  });
}

absl::Status NotKnown(const JobKey& key) {
  return absl::AbortedError(
      absl::StrCat("job '", key.run_id, "' is not known to this server. Join again"));
}

StoreReply RefuseStoreRequest(const StoreRequest& request, std::string why) {
  return {.request_id = request.request_id, .status = absl::AbortedError(why)};
}

void Append(const JobKey& key, std::vector<SendStoreReply> replies,
            std::vector<JobTable::JobEffect>& out) {
  for (SendStoreReply& reply : replies) out.push_back({key, std::move(reply), false});
}

}  // namespace

ServerTerm TermOfStart(int64_t unix_millis) { return ServerTerm(unix_millis); }

Instance FirstInstanceOf(ServerTerm term) { return Instance((term.value() << kInstanceBits) + 1); }

JobTable::JobTable(JobTableOptions options)
    : options_(std::move(options)), next_instance_(FirstInstanceOf(options_.term)) {
  if (options_.first_term == ServerTerm()) options_.first_term = options_.term;
}

void JobTable::Restore(std::vector<KeptJob> kept, MonoTime now) {
  for (KeptJob& one : kept) {
    if (one.record.phase == JobPhase::kEnded) {
      RememberEnd({.key = one.key,
                   .instance = one.instance,
                   .outcome = *one.record.outcome,
                   .known_until = now + one.record.settings->close_timeout},
                  now);
      continue;
    }
    const auto job = jobs_.try_emplace(one.key).first;
    job->second.instance = one.instance;
    job->second.core =
        std::make_unique<RendezvousCore>(OptionsFor(one.instance), std::move(one.record), now);
    std::vector<JobEffect> none;
    StartStoreRound(job->second, one.key, now, none);
    job->second.is_store_lost = true;
    Reschedule(job);
  }
}

std::vector<JobTable::JobEffect> JobTable::OnReport(const JobKey& key, Incarnation from,
                                                    const AgentReport& report, MonoTime now) {
  std::vector<JobEffect> out;
  // A node that comes new must not meet a job that ended with the lease of its last node.
  const auto old = jobs_.find(key);
  if (old != jobs_.end() && old->second.deadline <= now &&
      !old->second.core->state().nodes.contains(from)) {
    StepCore(old, rendezvous::Tick{}, now, out);
  }
  std::optional<DirectiveBody> answer = AnswerWithoutJob(key, from, report, now, out);
  const auto job = jobs_.find(key);
  if (!answer) {
    StepCore(job, AgentReported{from, report}, now, out);
    // Begun for one that may not take part: nobody else would ever end it.
    const auto left = jobs_.find(key);
    if (left != jobs_.end() && !left->second.core->state().settings) PutOff(left);
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
                                                        const AgentReport& report, MonoTime now,
                                                        std::vector<JobEffect>& out) {
  if (const absl::Status serves = CheckServes(key); !serves.ok()) return Refuse{serves};
  const auto job = jobs_.find(key);
  const Instance current = job == jobs_.end() ? Instance() : job->second.instance;
  if (job != jobs_.end()) {
    // Late: sent before the agent joined this instance. The core answers with the present.
    const auto& nodes = job->second.core->state().nodes;
    const auto known = nodes.find(from);
    if (known != nodes.end() && report.sequence <= known->second.report.sequence)
      return std::nullopt;
  }
  const bool is_newcomer = IsNewcomer(key, report);
  // It runs a round that the record of its job lacks (round_restore.h).
  const bool is_lost = job != jobs_.end() && report.instance == current &&
                       report.round > job->second.core->state().round &&
                       report.round < job->second.core->state().first_unused;
  if (is_lost) {
    DropRecord(job, out);
    return AnswerOrphan(key, from, report, now, out);
  }
  if (!is_newcomer && report.instance != Instance() && report.instance != current) {
    return AnswerOtherInstance(key, from, report, now, out);
  }
  if (is_newcomer) {
    if (const JobOutcome* end = FindEndFor(key, report.node.name, now)) return EndJob{*end};
  }
  if (job != jobs_.end()) {
    const JobState& state = job->second.core->state();
    const bool is_new = is_newcomer && !state.nodes.contains(from) && !state.former.contains(from);
    if (!is_new || !HasBeenTold(state)) return std::nullopt;
    Erase(job, now);
  }
  const auto orphan = orphans_.find(key);
  if (orphan != orphans_.end() && !is_newcomer && orphan->second.OnStopping(from, now)) {
    return Wait{"waiting for this node to stop its workers"};
  }
  if (orphan != orphans_.end() && is_newcomer) {
    auto answer = orphan->second.OnNewcomer(from, report.instance, options_.lease, now);
    if (answer) return answer;
  }
  const absl::Status begun = Begin(key, report, now);
  return begun.ok() ? std::nullopt : std::optional<DirectiveBody>(Refuse{begun});
}

const JobOutcome* JobTable::FindEndFor(const JobKey& key, const std::string& node_name,
                                       MonoTime now) const {
  const std::vector<std::string>& names = options_.node_names;
  if (std::find(names.begin(), names.end(), node_name) == names.end()) return nullptr;
  const auto job = jobs_.find(key);
  if (job != jobs_.end()) {
    const JobState& state = job->second.core->state();
    return state.phase == JobPhase::kEnded ? &*state.outcome : nullptr;
  }
  const std::deque<EndedJob>& all = EndedOf(key);
  const auto ended = std::find_if(all.rbegin(), all.rend(), [&](const EndedJob& one) {
    return one.key == key && now < one.known_until;
  });
  return ended == all.rend() ? nullptr : &ended->outcome;
}

DirectiveBody JobTable::AnswerOtherInstance(const JobKey& key, Incarnation from,
                                            const AgentReport& report, MonoTime now,
                                            std::vector<JobEffect>& out) {
  for (const EndedJob& ended : EndedOf(key)) {
    const bool is_it = ended.instance == report.instance && ended.key == key;
    if (!is_it || now >= ended.known_until) continue;
    const auto orphan = orphans_.find(key);
    if (orphan != orphans_.end()) orphan->second.NoteEnding(from, report, now);
    return EndJob{ended.outcome};
  }
  const auto job = jobs_.find(key);
  const auto orphan = orphans_.find(key);
  const bool is_put_off = orphan != orphans_.end() && report.instance == orphan->second.put_off();
  if (job == jobs_.end() && is_put_off) {
    return Refuse{absl::AbortedError(absl::StrCat(
        "job '", key.run_id, "' was put off while workers of an earlier round run, and ",
        report.node.name, " reports that it has begun. Join again"))};
  }
  // Numbers of this life are not those of an earlier one's.
  const bool is_not_begun =
      report.instance >= next_instance_ && report.instance < FirstInstanceOf(options_.term.Next());
  if (is_not_begun) return Refuse{NotKnown(key)};
  // The instance is of an earlier life: one that had no round yet was not kept.
  const bool had_no_round =
      report.instance < FirstInstanceOf(options_.term) && report.round == kNoRound;
  if (job == jobs_.end() && IsOurs(report.instance) && !had_no_round) {
    return Refuse{absl::FailedPreconditionError(
        absl::StrCat("job '", key.run_id,
                     "' has ended; its outcome is no longer kept, because this node was "
                     "silent too long"))};
  }
  const bool has_begun = job != jobs_.end() && job->second.core->state().round != kNoRound;
  if (has_begun || IsOurs(report.instance)) {
    return Refuse{
        absl::AbortedError(absl::StrCat("job '", key.run_id, "' has been formed again since ",
                                        report.node.name, " was part of it. Join again"))};
  }
  return AnswerOrphan(key, from, report, now, out);
}

DirectiveBody JobTable::AnswerOrphan(const JobKey& key, Incarnation from, const AgentReport& report,
                                     MonoTime now, std::vector<JobEffect>& out) {
  if (orphans_.size() > kMaxOrphansUnswept && !orphans_.contains(key)) {
    absl::erase_if(orphans_, [now](const auto& entry) { return entry.second.IsForgotten(now); });
  }
  OrphanRounds& orphan = orphans_[key];
  const std::optional<JobOutcome> before = orphan.outcome();
  OrphanRounds::Answer answer = orphan.OnReport(key.run_id, from, report, now);
  // A later round has taken the place of one that had ended.
  if (answer.is_first && before) {
    RememberEndWithoutARecord(key, orphan.TakePutOff().instance, *before, report, now);
  }
  if (answer.is_first) {
    const auto* refusal = std::get_if<Refuse>(&answer.body);
    const std::string what = refusal != nullptr ? std::string(refusal->status.message())
                                                : absl::StrCat(report.node.name, " came back");
    out.push_back({key, Announce{"job_unrecorded", what, report.round}});
  }
  if (answer.is_outcome) {
    RememberEndWithoutARecord(key, report.instance, std::get<EndJob>(answer.body).outcome, report,
                              now);
  }
  // Newcomers that were quicker than the workers' agents have begun an instance without a round. If
  // the job has ended, so has theirs.
  const auto job = jobs_.find(key);
  const bool is_forming =
      job != jobs_.end() && job->second.core->state().phase == JobPhase::kForming;
  if (is_forming && (answer.is_outcome || orphan.WhyNewcomersWait(options_.lease, now))) {
    PutOff(job);
  }
  return std::move(answer.body);
}

bool JobTable::IsNewcomer(const JobKey& key, const AgentReport& report) const {
  if (report.phase != AgentPhase::kJoining) return false;
  if (report.instance == Instance()) return true;
  const auto orphan = orphans_.find(key);
  return orphan != orphans_.end() && report.instance == orphan->second.put_off() &&
         report.round == kNoRound;
}

bool JobTable::IsOurs(Instance instance) const {
  return instance >= FirstInstanceOf(options_.first_term) && instance < next_instance_;
}

absl::Status JobTable::CheckServes(const JobKey& key) const {
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
  return absl::OkStatus();
}

absl::Status JobTable::Begin(const JobKey& key, const AgentReport& report, MonoTime now) {
  if (report.phase != AgentPhase::kJoining) return NotKnown(key);
  if (jobs_.size() >= static_cast<size_t>(options_.max_jobs)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this server has its ", options_.max_jobs,
                     " jobs; wait for one to end, or start another musterd"));
  }
  OrphanRounds::Begun begun;
  if (const auto orphan = orphans_.find(key); orphan != orphans_.end()) {
    begun = orphan->second.TakePutOff();
    const std::optional<JobOutcome>& outcome = orphan->second.outcome();
    if (outcome) {
      RememberEndWithoutARecord(key, begun.instance, *outcome, report, now);
      begun = {};
    }
  }
  if (begun.instance == Instance()) {
    begun.instance = next_instance_;
    next_instance_ = next_instance_.Next();
  }
  Job job;
  job.instance = begun.instance;
  JobRecord record;
  record.drained = std::move(begun.drained);
  job.core = std::make_unique<RendezvousCore>(OptionsFor(job.instance), std::move(record), now);
  deadlines_.insert({job.deadline, key});
  jobs_.emplace(key, std::move(job));
  return absl::OkStatus();
}

std::vector<JobTable::JobEffect> JobTable::OnStoreRequest(const JobKey& key, Incarnation from,
                                                          const StoreRequest& request,
                                                          MonoTime now) {
  std::vector<JobEffect> out;
  const auto job = jobs_.find(key);
  const auto* commit = std::get_if<CommitCheckpoint>(&request.operation);
  if (job == jobs_.end()) {
    StoreReply reply = RefuseStoreRequest(request, "the job is not known");
    if (commit != nullptr && MayPublishAfterEnd(key, from, request)) {
      reply.status = absl::OkStatus();
    }
    if (orphans_.contains(key)) {
      reply.status = absl::UnavailableError("the server has lost the store of this round");
    }
    out.push_back({key, SendStoreReply{from, std::move(reply)}});
    return out;
  }
  // Rounds of two instances have the same numbers.
  if (request.instance != job->second.instance) {
    out.push_back(
        {key, SendStoreReply{from, RefuseStoreRequest(request, "the job has been formed again")}});
    return out;
  }
  if (commit != nullptr) {
    StepCore(job, CommitRequested{from, request.request_id, request.round, *commit}, now, out);
    return out;
  }
  if (!IsLiveMember(job->second.core->state(), from)) {
    const std::string why = absl::StrCat("this node is not a member of round ",
                                         ToString(job->second.core->state().round));
    out.push_back({key, SendStoreReply{from, RefuseStoreRequest(request, why)}});
    return out;
  }
  const bool is_exchange = std::holds_alternative<UniqueIdExchange>(request.operation);
  if (job->second.is_store_lost && request.round == job->second.store_round && !is_exchange) {
    StoreReply reply{.request_id = request.request_id,
                     .status = absl::UnavailableError(
                         "the server was started again and has lost the store of this round")};
    out.push_back({key, SendStoreReply{from, std::move(reply)}, false});
    return out;
  }
  Append(key, job->second.store.Step(from, request, now), out);
  Reschedule(job);
  return out;
}

std::vector<JobTable::JobEffect> JobTable::OnStopRequest(const JobKey& key, Incarnation from,
                                                         const StopRequest& request, MonoTime now) {
  std::vector<JobEffect> out;
  const auto job = jobs_.find(key);
  if (job == jobs_.end()) {
    const absl::Status serves = CheckServes(key);
    out.push_back({key, SendAnswer{from, {.status = serves.ok() ? NoSuchJob(key) : serves}}});
  } else {
    StepCore(job, StopRequested{from, request}, now, out);
  }
  return out;
}

std::vector<JobTable::JobEffect> JobTable::OnAgentEnded(const JobKey& key, AgentEnded event,
                                                        MonoTime now) {
  std::vector<JobEffect> out;
  const auto job = jobs_.find(key);
  if (job == jobs_.end()) {
    out.push_back({key, SendAnswer{event.from, {.status = NoSuchJob(key)}}});
  } else {
    StepCore(job, event, now, out);
  }
  return out;
}

std::vector<JobTable::JobEffect> JobTable::OnNodesAtFault(const JobKey& key, NodesAtFault event,
                                                          MonoTime now) {
  std::vector<JobEffect> out;
  const auto job = jobs_.find(key);
  if (job != jobs_.end()) StepCore(job, std::move(event), now, out);
  return out;
}

absl::Status JobTable::NoSuchJob(const JobKey& key) const {
  if (orphans_.contains(key)) {
    return absl::NotFoundError(
        absl::StrCat("this server has lost its record of job '", key.run_id,
                     "', whose workers may still run; ask again once the job is formed again"));
  }
  std::vector<std::string> names;
  for (const auto& [other, unused] : jobs_) {
    if (other.owner == key.owner) names.push_back(absl::CHexEscape(other.run_id));
  }
  const std::string meant = DidYouMean(key.run_id, names);
  const int count = static_cast<int>(names.size());
  if (count > kMaxJobsNamed) names.resize(kMaxJobsNamed);
  return absl::NotFoundError(
      absl::StrCat("no job '", absl::CHexEscape(key.run_id), "' runs here", meant,
                   count == 0 ? "" : absl::StrCat("; yours: ", NamesInWords(names, count)),
                   ". Give its --rdzv_id"));
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
    const auto job = jobs_.find(key);
    const std::deque<EndedJob>& all = EndedOf(key);
    const bool is_over = std::any_of(all.begin(), all.end(),
                                     [&](const EndedJob& ended) { return ended.key == key; });
    const bool is_member = job->second.core->state().nodes.contains(host());
    // A node that came after the end of the host's own instance may wait for the next server here.
    if (host() != Incarnation() && is_over && !is_member) continue;
    StepCore(job, HostLeaving{departure, host_name}, now, out);
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

const JobOutcome* JobTable::FindOutcome(const JobKey& job) const {
  const std::deque<EndedJob>& all = EndedOf(job);
  for (auto ended = all.rbegin(); ended != all.rend(); ++ended) {
    if (ended->key == job) return &ended->outcome;
  }
  return nullptr;
}

std::vector<JobKey> JobTable::JobsOf(const std::string& owner) const {
  std::vector<JobKey> keys;
  for (auto job = jobs_.lower_bound({.owner = owner, .run_id = ""});
       job != jobs_.end() && job->first.owner == owner; ++job) {
    keys.push_back(job->first);
  }
  return keys;
}

std::string JobTable::CheckInvariants() const {
  for (const auto& [key, job] : jobs_) {
    std::string broken = job.core->CheckInvariants();
    if (broken.empty()) broken = job.store.CheckInvariants();
    if (broken.empty() && !job.core->state().settings) broken = "no node has been let in";
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
    } else if (auto* reply = std::get_if<SendStoreReply>(&effect)) {
      out.push_back({key, std::move(*reply)});
    } else if (auto* answer = std::get_if<SendAnswer>(&effect)) {
      out.push_back({key, std::move(*answer)});
    } else if (auto* announce = std::get_if<Announce>(&effect)) {
      out.push_back({key, std::move(*announce)});
    } else if (const auto* keep = std::get_if<KeepRecord>(&effect)) {
      if (options_.keeps_records) out.push_back({key, KeepOf(job->second, keep->is_new_round)});
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
  job.is_store_lost = false;
  Append(key, job.store.StartRound(state.round, now), out);
  for (const Incarnation member : job.store_members) {
    if (!state.assignments.contains(member)) job.store.Forget(member);
  }
  job.store_members = state.members;
}

CoreOptions JobTable::OptionsFor(Instance instance) const {
  return {.term = options_.term,
          .instance = instance,
          .lease = options_.lease,
          .young_until = options_.young_until,
          .node_names = options_.node_names,
          .host = options_.host};
}

KeepJob JobTable::KeepOf(const Job& job, bool is_new_round) {
  const JobRecord& record = job.core->state();
  KeepJob keep{.instance = job.instance, .progress = record};
  if (is_new_round) keep.round = record;
  return keep;
}

void JobTable::Reschedule(Jobs::iterator job) {
  deadlines_.erase({job->second.deadline, job->first});
  job->second.deadline = Min(job->second.core->NextDeadline(), job->second.store.NextDeadline());
  deadlines_.insert({job->second.deadline, job->first});
}

void JobTable::Erase(Jobs::iterator job, MonoTime now) {
  const JobState& state = job->second.core->state();
  EndedJob ended{.key = job->first,
                 .instance = job->second.instance,
                 .outcome = *state.outcome,
                 .known_until = now + state.settings->close_timeout,
                 .round = state.round};
  for (const auto& [node, former] : state.former) {
    if (former.may_publish_until && former.told == state.round) ended.members.insert(node);
  }
  for (const auto& [node, held] : state.nodes) {
    if (held.told == state.round) ended.members.insert(node);
  }
  RememberEnd(std::move(ended), now);
  Drop(job);
}

void JobTable::Drop(Jobs::iterator job) {
  deadlines_.erase({job->second.deadline, job->first});
  jobs_.erase(job);
}

void JobTable::DropRecord(Jobs::iterator job, std::vector<JobEffect>& out) {
  KeepJob keep = KeepOf(job->second, /*is_new_round=*/false);
  keep.is_dropped = true;
  if (options_.keeps_records) out.push_back({job->first, std::move(keep)});
  Drop(job);
}

void JobTable::PutOff(Jobs::iterator job) {
  const auto orphan = orphans_.find(job->first);
  if (orphan != orphans_.end()) {
    orphan->second.PutOff({job->second.instance, job->second.core->state().drained});
  }
  Drop(job);
}

bool JobTable::MayPublishAfterEnd(const JobKey& key, Incarnation from,
                                  const StoreRequest& request) const {
  // A later instance of the job may have published since.
  const std::deque<EndedJob>& all = EndedOf(key);
  const auto newest = std::find_if(all.rbegin(), all.rend(),
                                   [&](const EndedJob& ended) { return ended.key == key; });
  return newest != all.rend() && newest->instance == request.instance &&
         newest->round == request.round && newest->members.contains(from);
}

void JobTable::RememberEndWithoutARecord(const JobKey& key, Instance instance,
                                         const JobOutcome& outcome, const AgentReport& report,
                                         MonoTime now) {
  if (instance == Instance()) return;
  RememberEnd({.key = key,
               .instance = instance,
               .outcome = outcome,
               .known_until = now + report.settings.close_timeout},
              now);
}

void JobTable::RememberEnd(EndedJob ended, MonoTime now) {
  absl::erase_if(ended_, [&](auto& entry) {
    std::deque<EndedJob>& all = entry.second;
    while (!all.empty() && all.front().known_until <= now) all.pop_front();
    return all.empty();
  });
  std::deque<EndedJob>& own = ended_[ended.key.owner];
  if (own.size() >= kMaxEndedJobs) own.pop_front();
  own.push_back(std::move(ended));
}

const std::deque<JobTable::EndedJob>& JobTable::EndedOf(const JobKey& key) const {
  static const std::deque<EndedJob> kNone;
  const auto of_owner = ended_.find(key.owner);
  return of_owner == ended_.end() ? kNone : of_owner->second;
}

JobTable::JobEffect JobTable::Stamp(const JobKey& key, SendDirective effect) {
  effect.directive.revision = next_revision_++;
  return {key, std::move(effect)};
}

}  // namespace muster::rendezvous
