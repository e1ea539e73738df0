// The oracle of ends: how a job or an agent ended must follow from what was drawn, and from how
// well its agents could reach the server. The letters are those of sim_cluster.h.
#include <algorithm>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/base/exit_codes.h"
#include "rendezvous/core/job_outcome.h"
#include "tests/simulation/sim_cluster.h"

namespace muster::simulation {
namespace {

constexpr absl::Duration kSampleEvery = absl::Milliseconds(500);
// Who has been able to reach the server for so long has reached it, also where messages are lost.
constexpr absl::Duration kWellFor = absl::Seconds(30);
// The time in which workers are stopped, from the decision of an agent to its end.
constexpr absl::Duration kLadder = absl::Seconds(45);
// Nodes that could join for so long have joined.
constexpr absl::Duration kJoinsWithin = absl::Seconds(20);
// What leaves the server may wait for its disk, and the network.
constexpr absl::Duration kOnItsWay = absl::Seconds(45);

}  // namespace

// --- Who could reach the server

bool SimCluster::IsWell(const Node& node) const {
  if (!node.is_alive || node.is_paused || table_ == nullptr || is_stalling_) return false;
  if (node.hosts) return true;
  return node.is_connected && !IsCut(node, Direction::kUp) && !IsCut(node, Direction::kDown);
}

bool SimCluster::CouldJoin(const Node& node) const {
  const bool joins = node.core->phase() == agent::NodePhase::kJoining;
  return node.causes.well_since && joins && !node.is_leaving &&
         !drained_.contains(node.incarnation);
}

void SimCluster::Sample() {
  const MonoTime now = schedule_.now();
  for (auto& [unused, node] : nodes_) {
    NodeCauses& causes = node.causes;
    if (!IsWell(node)) {
      causes.well_since.reset();
      continue;
    }
    if (!causes.well_since) causes.well_since = now;
    if (now - *causes.well_since >= kWellFor) causes.last_well = now;
  }
  for (int job = 0; job < static_cast<int>(fates_.size()); ++job) {
    const RendezvousSettings& settings = plan_.jobs[job].settings;
    std::set<std::string> names;
    for (const auto& [unused, node] : nodes_) {
      if (node.job == job && CouldJoin(node)) names.insert(node.name);
    }
    std::optional<MonoTime>& since = fates_[job].causes.enough_since;
    if (static_cast<int>(names.size()) < settings.min_nodes) {
      since.reset();
    } else if (!since) {
      since = now;
    }
  }
  schedule_.After(kSampleEvery, [this] { Sample(); });
}

bool SimCluster::WasWellAfter(const Node& node, MonoTime since) {
  return node.causes.last_well && *node.causes.last_well > since;
}

bool SimCluster::WasAnyWellAfter(int job, MonoTime since) const {
  return std::any_of(nodes_.begin(), nodes_.end(), [&](const auto& entry) {
    const Node& node = entry.second;
    return node.job == job && !node.finished && node.is_alive && WasWellAfter(node, since);
  });
}

// --- What the server says of the end of a job

bool SimCluster::HasSucceeded(int job, RoundId round) const {
  const JobCauses& causes = fates_[job].causes;
  const auto nodes = causes.succeeded.find(round);
  return nodes != causes.succeeded.end() &&
         static_cast<int>(nodes->second.size()) == causes.num_nodes.at(round);
}

std::vector<SimCluster::RoundId> SimCluster::RoundsOf(int job, Instance instance) const {
  std::vector<RoundId> rounds;
  for (const auto& [round, unused] : fates_[job].causes.num_nodes) {
    if (round.first == instance) rounds.push_back(round);
  }
  return rounds;
}

bool SimCluster::WasDrawn(int job, const WorkerFailure& blamed) const {
  const JobCauses& causes = fates_[job].causes;
  // What the server says of a node that has failed, and does not say how.
  const bool may_be_hostile = causes.hostile_phases.contains(AgentPhase::kFailed) &&
                              causes.hostile_names.contains(blamed.node_name);
  if (may_be_hostile && blamed.exit_code == kExitFailure) return true;
  const std::vector<WorkerFailure>& failures = causes.failures;
  return std::any_of(failures.begin(), failures.end(), [&](const WorkerFailure& drawn) {
    return drawn.rank == blamed.rank && drawn.node_name == blamed.node_name &&
           drawn.exit_code == blamed.exit_code && drawn.signal == blamed.signal;
  });
}

int SimCluster::RestartsDue(int job) const {
  const JobCauses& causes = fates_[job].causes;
  return static_cast<int>(causes.failed_rounds.size() + causes.losses.size()) +
         causes.hostile_restarts;
}

std::string SimCluster::WhyBudgetIsLeft(int job) const {
  const int budget = plan_.jobs[job].settings.max_restarts;
  if (RestartsDue(job) > budget) return "";
  return absl::StrCat("its budget of ", budget, " restarts cannot be spent after ",
                      RestartsDue(job), " rounds that failed");
}

std::string SimCluster::WhyWrongFailure(int job, const JobOutcome& outcome) const {
  const JobCauses& causes = fates_[job].causes;
  const WorkerFailure& blamed = *outcome.root_cause;
  if (!WasDrawn(job, blamed)) return absl::StrCat("nobody failed so: ", ToString(blamed));
  const bool is_asked = causes.asked_to_stop > 0 || !causes.exit_codes.empty();
  if (ForbidsRestart(blamed) || is_asked) return "";
  const bool is_no_progress = absl::StartsWith(outcome.reason, "no progress: ") &&
                              RestartsDue(job) > rendezvous::kMaxRestartsWithoutCommit;
  return is_no_progress ? "" : WhyBudgetIsLeft(job);
}

// A static job ends for a node that is lost, and named, once its budget is spent.
std::string SimCluster::WhyWrongLossOfNode(int job, const JobOutcome& outcome) const {
  const auto& hostile = fates_[job].causes.hostile_names;
  const bool is_hostile_named =
      std::any_of(hostile.begin(), hostile.end(),
                  [&](const std::string& name) { return absl::StrContains(outcome.reason, name); });
  if (!plan_.jobs[job].settings.is_static) {
    const bool has_host_left = absl::StrContains(outcome.reason, ", the host of the rendezvous, ");
    if (has_host_left && fates_[job].was_host_lost) return "";
    return is_hostile_named ? "" : "it can do without a node that is lost";
  }
  const auto& losses = fates_[job].causes.losses;
  const bool is_named = std::any_of(losses.begin(), losses.end(), [&](const auto& loss) {
    const auto node = nodes_.find(loss.second);
    return node != nodes_.end() && absl::StrContains(outcome.reason, node->second.name);
  });
  return is_named || is_hostile_named ? WhyBudgetIsLeft(job) : "no node that it names was lost";
}

// The time-out is wrong if the job had enough nodes, or an agent could say how its job got on.
std::string SimCluster::WhyWrongTimeout(int job) const {
  const std::optional<MonoTime>& since = fates_[job].causes.enough_since;
  if (!since || schedule_.now() - *since < kJoinsWithin) return "";
  return absl::StrCat("enough nodes could join for ",
                      absl::FormatDuration(schedule_.now() - *since));
}

// Agents were silent for the orphan time-out; or the server has lost the job's state, and not all
// who were in its newest round could say how it ended. That those of an earlier round have all
// ended with 0 says nothing: the job had gone on without them.
std::string SimCluster::WhyWrongLoss(int job, Instance instance) const {
  const absl::Duration timeout = plan_.jobs[job].settings.orphan_timeout;
  const MonoTime now = schedule_.now();
  if (!WasAnyWellAfter(job, now - timeout + kOnItsWay)) return "";
  if (IsOfThisLife(instance) || KnowsAllRounds()) {
    return "a node could reach the server within the orphan time-out";
  }
  if (now - server_since_ < timeout) return "the server lives for less than the orphan time-out";
  const std::vector<RoundId> rounds = RoundsOf(job, instance);
  const bool is_known =
      !rounds.empty() && HasSucceeded(job, rounds.back()) && CouldAllSay(job, rounds.back());
  return is_known ? "every worker has ended with 0, and each agent could say so" : "";
}

// A static job is restarted for a node that is lost, too, and its budget may be large enough; but
// once it has committed a checkpoint, not for ever without another.
std::string SimCluster::WhyWrongStandstill(int job) const {
  const int spent = RestartsDue(job);
  if (!plan_.jobs[job].settings.is_static) return "only a failure restarts it";
  if (fates_[job].step == 0) return "it has never published a checkpoint";
  return spent > rendezvous::kMaxRestartsWithoutCommit
             ? ""
             : absl::StrCat("it can have been restarted ", spent, " times at most");
}

bool SimCluster::CouldAllSay(int job, RoundId round) const {
  const auto& members = history_.at({job, round.first, round.second});
  return std::all_of(members.begin(), members.end(), [&](const auto& member) {
    const Node& node = nodes_.at(member.second);
    // A node that was told to join again says no more how its workers ended.
    const bool has_left = node.core->phase() == agent::NodePhase::kChecking ||
                          node.core->phase() == agent::NodePhase::kReserving ||
                          node.core->phase() == agent::NodePhase::kJoining;
    return node.is_alive && !has_left && WasWellAfter(node, server_since_);
  });
}

std::string SimCluster::WhyWrong(int job, Instance instance, const JobOutcome& outcome) const {
  const JobCauses& causes = fates_[job].causes;
  if (outcome.root_cause) return WhyWrongFailure(job, outcome);
  switch (outcome.exit_code) {
    case 0: {
      const std::vector<RoundId> rounds = RoundsOf(job, instance);
      const bool succeeded = std::any_of(rounds.begin(), rounds.end(), [&](const RoundId& round) {
        return HasSucceeded(job, round);
      });
      // A server without a record of the round believes a member that says all have succeeded.
      const bool is_claimed = causes.hostile_phases.contains(AgentPhase::kSucceeded);
      if (causes.asked_to_stop > 0 || succeeded || is_claimed) return "";
      return "nobody asked for it, and not every worker of a round has ended with 0";
    }
    case kExitNodesMissing:
      if (absl::StrContains(outcome.reason, " did not stop ")) return "";
      return absl::StrContains(outcome.reason, "--network=require") ? WhyWrongSplit(job)
                                                                    : WhyWrongTimeout(job);
    case kExitServerLost:  // or kExitNoProgress
      return absl::StartsWith(outcome.reason, "no progress: ") ? WhyWrongStandstill(job)
                                                               : WhyWrongLoss(job, instance);
    default:
      if (causes.exit_codes.contains(outcome.exit_code)) return "";
      if (outcome.exit_code == kExitFailure) return WhyWrongLossOfNode(job, outcome);
      return absl::StrCat("nothing was drawn that ends with ", outcome.exit_code);
  }
}

void SimCluster::ObserveEnd(int job, const Directive& directive, const JobOutcome& outcome) {
  JobFate& fate = fates_[job];
  // A newcomer that has waited for the end is told it as one of no instance.
  const bool is_known =
      std::any_of(fate.outcomes.begin(), fate.outcomes.end(),
                  [&](const auto& entry) { return entry.second.outcome == outcome; });
  const auto [told, is_new] = fate.outcomes.try_emplace(directive.instance, ToldOutcome{outcome});
  if (is_new && !is_known) {
    fate.causes.ended.emplace(directive.instance, schedule_.now());
    coverage_.successes += outcome.exit_code == 0;
    coverage_.job_failures += outcome.root_cause.has_value();
    const bool is_parted = absl::StrContains(outcome.reason, "--network=require");
    coverage_.timeouts += outcome.exit_code == kExitNodesMissing && !is_parted;
    coverage_.jobs_parted += outcome.exit_code == kExitNodesMissing && is_parted;
    coverage_.jobs_stopped += absl::StrContains(outcome.reason, "every rank left after step ");
    coverage_.stops_by_signals +=
        absl::StrContains(outcome.reason, "not after one step: not every");
  }
  if (!is_known) {
    if (const std::string why = WhyWrong(job, directive.instance, outcome); !why.empty()) {
      Fail(absl::StrCat("C5: ", KeyOf(job).run_id, " ends with ", outcome.exit_code, " (",
                        outcome.reason, "), but ", why));
    }
  }
  // While a job is ending, failures still come in, and those that leave are told what there is by
  // then. A server without the job's state has its outcome from one agent.
  const rendezvous::JobState* state = table_->FindState(KeyOf(job));
  const bool has_ended = state == nullptr || state->phase == rendezvous::JobPhase::kEnded;
  const bool is_final = has_ended && (KnowsAllRounds() || IsOfThisLife(directive.instance));
  ToldOutcome& last = told->second;
  if (last.is_final && is_final && last.outcome != outcome) {
    Fail(absl::StrCat("C5: two outcomes of one instance: \"", last.outcome.reason, "\" and \"",
                      outcome.reason, "\""));
  }
  if (is_final || !last.is_final) last = {outcome, is_final};
}

void SimCluster::ObserveRefusal(const Node& node, const Directive& directive,
                                const absl::Status& status) {
  if (absl::IsAborted(status) || absl::IsUnavailable(status)) return;
  if (!node.is_alive) return;  // what it said before its death came late; nobody hears the answer
  const auto refuse = [&](const std::string& why) {
    Fail(absl::StrCat("C6: ", node.name, " is refused (", status.message(), "), but ", why));
  };
  // A hostile member may have come before it, and claimed its rank.
  const bool is_rank_taken = !fates_[node.job].causes.hostile_names.empty() &&
                             absl::StrContains(status.message(), "already has that rank");
  if (is_rank_taken) return;
  if (!absl::IsFailedPrecondition(status)) return refuse("it is what it was started as");
  if (!node.causes.exit_codes.empty()) return;  // it leaves
  const JobCauses& causes = fates_[node.job].causes;
  const auto reported = node.causes.reported.find(directive.report_sequence);
  const Instance instance = reported == node.causes.reported.end() ? Instance() : reported->second;
  const absl::Duration known_for = plan_.jobs[node.job].settings.close_timeout;
  if (instance == Instance()) {
    // A newcomer of a job that is over, and still known.
    for (const auto& [unused, at] : causes.ended) {
      if (schedule_.now() - at <= known_for + kOnItsWay) return;
    }
    return refuse("no instance of the job has just ended");
  }
  // An instance without a round ends with the round for which it was put off: one that a hostile
  // member has claimed, and of whose end it alone may have been told.
  const auto is_past = [&](MonoTime at) {
    return schedule_.now() - at >= known_for && !WasWellAfter(node, at + kWellFor);
  };
  const auto& ends = causes.ends_told_to_hostile;
  const bool has_had_round = !RoundsOf(node.job, instance).empty();
  if (!has_had_round && std::any_of(ends.begin(), ends.end(), is_past)) return;
  const auto ended = causes.ended.find(instance);
  if (ended == causes.ended.end()) return refuse("the instance that it knows has not ended");
  if (schedule_.now() - ended->second < known_for) return refuse("the job has ended just now");
  if (WasWellAfter(node, ended->second + kWellFor)) return refuse("it could have been told how");
}

// --- How an agent ends

std::string SimCluster::WhyWrongFinish(const Node& node, const JobOutcome& outcome) const {
  for (const Worker& worker : node.workers) {
    if (worker.alive && !worker.is_unkillable) return "workers of it live";
  }
  const NodeCauses& causes = node.causes;
  if (std::count(node.told.begin(), node.told.end(), outcome) > 0) return "";  // C5
  // A node may have been interrupted while it stopped for another end, which stays.
  if (causes.refusals.contains(outcome.reason)) return "";
  if (causes.exit_codes.contains(outcome.exit_code)) return "";  // no port, said as such
  const RendezvousSettings& settings = JobOf(node).settings;
  if (causes.job_failed && absl::StartsWith(outcome.reason, causes.job_failed->reason)) {
    return WhyWrongAsTold(node, outcome);
  }
  if (outcome.root_cause && !WasDrawn(node.job, *outcome.root_cause)) return "nobody failed so";
  if (outcome.exit_code == kExitNodesMissing && !outcome.root_cause) {
    return causes.last_well ? "it could reach its server" : "";
  }
  if (outcome.exit_code != kExitServerLost && !outcome.root_cause) return "nobody told it to";
  const absl::Duration timeout = std::min(settings.orphan_timeout, absl::Seconds(60));
  if (WasWellAfter(node, schedule_.now() - timeout + kLadder)) {
    return "it could reach its server meanwhile";
  }
  return "";
}

// Told that its job ends, by a server that has lost its state, or could not be reached, since.
std::string SimCluster::WhyWrongAsTold(const Node& node, const JobOutcome& outcome) const {
  const StopRound& told = *node.causes.job_failed;
  if (outcome.exit_code != told.exit_code) return "it was told of another exit code";
  const Instance instance = node.assignment ? node.assignment->instance : Instance();
  const bool is_forgotten = !KnowsAllRounds() && !IsOfThisLife(instance);
  const bool is_cut_off = !WasWellAfter(node, schedule_.now() - absl::Seconds(60) + kLadder);
  return is_forgotten || is_cut_off ? "" : "the server could have told it how the job ended";
}

void SimCluster::CheckFinish(const Node& node, const JobOutcome& outcome) {
  const std::string why = WhyWrongFinish(node, outcome);
  if (why.empty()) return;
  Fail(absl::StrCat("C6: ", node.name, " ends with ", outcome.exit_code, " (", outcome.reason,
                    "), but ", why));
}

}  // namespace muster::simulation
