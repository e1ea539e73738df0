#include "rendezvous/core/orphan_rounds.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/base/exit_codes.h"
#include "rendezvous/core/job_outcome.h"
#include "rendezvous/core/wording.h"

namespace muster::rendezvous {
namespace {

constexpr int kMaxNamed = 3;
constexpr absl::Duration kRunningIfHeardWithin = absl::Seconds(30);

// The job's budget is spent, and its agents remember that, or the worker forbids a restart: the
// failure is the end of it.
bool EndsTheJob(const AgentReport& report) {
  if (report.failures.empty()) return false;
  return report.past.restarts_used >= report.settings.max_restarts ||
         std::any_of(report.failures.begin(), report.failures.end(),
                     [](const WorkerFailure& failure) { return ForbidsRestart(failure); });
}

// The outcome of a job that such a report ends.
JobOutcome OutcomeOf(const AgentReport& report, MonoTime now) {
  JobState state;
  state.settings = report.settings;
  state.restarts_used = report.settings.max_restarts;
  for (const WorkerFailure& failure : report.failures) {
    state.failures.push_back({now - failure.age, failure});
  }
  std::sort(state.failures.begin(), state.failures.end(),
            [](const auto& a, const auto& b) { return a.at < b.at; });
  return OutcomeOfFailures(state);
}

// Why the round cannot go on after this report; empty: it can.
std::string WhyOver(const AgentReport& report) {
  const bool has_workers =
      report.phase == AgentPhase::kRunning || report.phase == AgentPhase::kSucceeded;
  const bool has_failed = !report.failures.empty();
  if (!has_workers && report.phase != AgentPhase::kStopped) {
    return absl::StrCat(report.node.name, has_failed ? " failed" : " has left it");
  }
  if (has_failed) return absl::StrCat("a worker failed on ", report.node.name);
  if (report.stop_floor && report.phase == AgentPhase::kRunning) {
    return absl::StrCat("the workers on ", report.node.name,
                        " wait for a stop step, of which there is no record either");
  }
  return "";
}

}  // namespace

void OrphanRounds::Start(const AgentReport& report, MonoTime now) {
  instance_ = report.instance;
  round_ = report.round;
  num_nodes_ = std::min(report.num_nodes, report.settings.max_nodes);  // leases depend on it
  orphan_timeout_ = report.settings.orphan_timeout;
  first_seen_ = now;
  members_.clear();
  outcome_.reset();
  succeeded_.clear();
  succeeded_by_size_.clear();
  over_.clear();
}

std::string OrphanRounds::InWordsOf(const std::string& name) const {
  return absl::StrCat("this server has no record of round ", ToString(round_), " of job '", name,
                      "', which it formed before it was restarted");
}

OrphanRounds::Answer OrphanRounds::OnReport(const std::string& name, Incarnation from,
                                            const AgentReport& report, MonoTime now) {
  // Instances of later lives are larger, and rounds of one instance grow.
  const std::pair said(report.instance, report.round);
  const std::pair known(instance_, round_);
  // An instance without a round, as a spare reports that waited at a life in between, replaces
  // none.
  const bool is_first = said > known && report.round != kNoRound;
  if (is_first) Start(report, now);
  last_heard_ = now;
  if (said < known || report.round == kNoRound) {
    if (report.phase == AgentPhase::kJoining) NoteWaiting(from);  // a spare of that life
    return {Refuse{absl::AbortedError(absl::StrCat("round ", ToString(report.round), " of job '",
                                                   name, "' is over. Join again"))}};
  }
  Answer answer = Decide(name, from, report, now);
  answer.is_first = is_first;
  if (answer.is_outcome) outcome_ = std::get<EndJob>(answer.body).outcome;
  return answer;
}

OrphanRounds::Answer OrphanRounds::Decide(const std::string& name, Incarnation from,
                                          const AgentReport& report, MonoTime now) {
  if (EndsTheJob(report)) {
    over_ = "a worker failed";
    return {.body = EndJob{OutcomeOf(report, now)}, .is_outcome = true};
  }
  NoteMember(from, report, now);
  if (HaveAllSucceeded()) {
    return {.body = EndJob{{.exit_code = 0, .reason = "every worker ended with exit code 0"}},
            .is_outcome = true};
  }
  if (over_.empty()) over_ = WhyOver(report);
  if (report.phase == AgentPhase::kLeaving) {
    members_.erase(from);
    return {.body = Wait{absl::StrCat(report.node.name, " has left the job")}};
  }
  const absl::Duration left = first_seen_ + orphan_timeout_ - now;
  if (over_.empty() && left <= absl::ZeroDuration()) {
    if (!IsAnyRunning(now)) return EndUnheard(name);
    over_ = absl::StrCat("it was given ", InWords(orphan_timeout_));
  }
  if (over_.empty()) {
    return {.body = Refuse{absl::UnavailableError(
                absl::StrCat(InWordsOf(name), "; its workers run on, for ", InWords(left),
                             " at most; then the job is formed again"))}};
  }
  if (report.phase == AgentPhase::kJoining || report.phase == AgentPhase::kStopped) {
    members_.erase(from);
  }
  return {.body = Refuse{absl::AbortedError(
              absl::StrCat(InWordsOf(name), ", and it cannot go on: ", over_, ". Join again"))}};
}

void OrphanRounds::NoteMember(Incarnation from, const AgentReport& report, MonoTime now) {
  Member& member = members_[from];
  member.name = report.node.name;
  member.heard = now;
  if (report.phase != AgentPhase::kSucceeded) return;
  member.succeeded = true;
  // Other sizes than invariant R3 allows are lies.
  const int size =
      std::max(report.settings.min_nodes, std::min(report.num_nodes, report.settings.max_nodes));
  if (succeeded_.insert(from).second) ++succeeded_by_size_[size];
}

OrphanRounds::Answer OrphanRounds::EndUnheard(const std::string& name) const {
  return {
      .body = EndJob{{.exit_code = kExitServerLost,
                      .reason = absl::StrCat(
                          InWordsOf(name),
                          ", and not all of its members have come to say how it ended; this node's "
                          "workers have ended with exit code 0")}},
      .is_outcome = true};
}

bool OrphanRounds::HaveAllSucceeded() const {
  return std::any_of(succeeded_by_size_.begin(), succeeded_by_size_.end(),
                     [](const auto& entry) { return entry.second >= entry.first; });
}

bool OrphanRounds::IsAnyRunning(MonoTime now) const {
  return std::any_of(members_.begin(), members_.end(), [&](const auto& entry) {
    return !entry.second.succeeded && now - entry.second.heard < kRunningIfHeardWithin;
  });
}

std::optional<DirectiveBody> OrphanRounds::OnNewcomer(Incarnation from, Instance instance,
                                                      const LeaseSettings& lease, MonoTime now) {
  members_.erase(from);  // one that was told to join again has stopped its workers
  const bool was_put_off = instance != Instance() && instance == put_off_.instance;
  if (outcome_ && (was_put_off || newcomers_.contains(from))) return EndJob{*outcome_};
  std::optional<std::string> why = WhyNewcomersWait(lease, now);
  if (!why) return std::nullopt;
  NoteWaiting(from);
  return Wait{*std::move(why)};
}

bool OrphanRounds::OnStopping(Incarnation from, MonoTime now) {
  const auto member = members_.find(from);
  if (member == members_.end()) return false;
  member->second.heard = now;
  return true;
}

void OrphanRounds::NoteEnding(Incarnation from, const AgentReport& report, MonoTime now) {
  if (report.instance != instance_ || report.round != round_) return;
  members_.erase(from);
  if (report.phase == AgentPhase::kRunning) {
    members_[from] = {.name = report.node.name, .heard = now};
  }
}

std::optional<std::string> OrphanRounds::WhyNewcomersWait(const LeaseSettings& settings,
                                                          MonoTime now) const {
  const LeaseSettings granted = LeaseOf(settings, num_nodes_);
  const absl::Duration lease = granted.duration + granted.margin;
  std::vector<std::string> names;
  int count = 0;
  for (const auto& [unused, member] : members_) {
    if (now - member.heard > lease || (member.succeeded && !over_.empty())) continue;
    if (++count <= kMaxNamed) names.push_back(member.name);
  }
  if (count == 0 || HaveAllSucceeded()) return std::nullopt;
  if (!over_.empty()) {
    return absl::StrCat("waiting for ", NamesInWords(names, count),
                        " to stop the workers of round ", ToString(round_),
                        ", of which this server has no record");
  }
  const absl::Duration left = first_seen_ + orphan_timeout_ - now;
  return absl::StrCat("round ", ToString(round_), " of the job still runs on ",
                      NamesInWords(names, count),
                      ", but this server has lost its record of it; the "
                      "job is formed again when the round ends, or in ",
                      InWords(std::max(left, lease)));
}

}  // namespace muster::rendezvous
