// What must hold, whatever went wrong. The letters are those of sim_cluster.h.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "proto/base/exit_codes.h"
#include "rendezvous/core/membership_policy.h"
#include "rendezvous/core/stop_step.h"
#include "tests/simulation/sim_cluster.h"

namespace muster::simulation {
namespace {

constexpr size_t kEffectsKept = 60;
// Each thing that happens may end a round, and bring a node back for which another ends.
constexpr int kRoundsPerDisturbance = 2;

// Rounds that the policy grants a node that flaps for `time`, in a job that can do without it: its
// first going is free, and its next ones come after hold-backs that double; a round ends for its
// coming back after hold-offs that double.
int RoundsOfOneHeldBack(absl::Duration time) {
  int rounds = 3;
  absl::Duration hold = rendezvous::kFirstHoldBack;
  for (absl::Duration at; at <= time; at += hold, hold *= 2) ++rounds;
  absl::Duration hold_off = rendezvous::kFirstGrowthHoldOff;
  for (absl::Duration at = hold_off; at <= time; hold_off *= 2, at += hold_off) ++rounds;
  return rounds;
}

// In one that cannot, each going costs what its lease had left to run.
int RoundsOfOneNeeded(absl::Duration time) {
  const LeaseSettings lease;
  return 1 + static_cast<int>(time / (lease.duration - lease.renew_interval));
}

}  // namespace

int SimCluster::RoundsBound(int job) const {
  const JobFate& fate = fates_[job];
  const SimJobPlan& plan = plan_.jobs[job];
  const int others = 1 + kRoundsPerDisturbance * fate.disturbances + plan.num_late + plan.num_nodes;
  if (plan_.flapping == 0) return others;
  const absl::Duration time = fate.last_round_at.since_zero();
  const char* const flapping[] = {"flapping", "duplication", "impostors", "death_notices"};
  const bool is_needed = plan.settings.is_static || plan.num_nodes <= plan.settings.min_nodes;
  const bool is_held_back = !is_needed && HasOnly(plan_, flapping);
  // Nobody awaits the end of a lease where a guardian tells of a death.
  return others +
         (is_held_back ? RoundsOfOneHeldBack(time) : RoundsOfOneNeeded(time) + fate.deaths_noticed);
}

void SimCluster::CheckCommit(const rendezvous::SendStoreReply& reply) {
  if (!nodes_.contains(reply.to)) return;
  const Node& node = nodes_.at(reply.to);
  const auto asked = node.commits.find(reply.reply.request_id);
  if (asked == node.commits.end()) return;
  if (!reply.reply.status.ok()) {
    ++coverage_.commits_refused;
    return;
  }
  ++coverage_.commits;
  const Assignment& of = asked->second;
  if (std::pair(of.instance, of.round) != fates_[node.job].newest_round) {
    Fail(absl::StrCat("C10: ", node.name, " publishes a checkpoint of round ", ToString(of.round),
                      ", and the newest is ", ToString(fates_[node.job].newest_round.second)));
  }
  // Nobody else can publish of a job that has ended, and has not been formed again.
  if (fates_[node.job].causes.ended.contains(of.instance)) return;
  const LeaseSettings lease;
  if (!node.heard_at || ServerNow() - *node.heard_at >= lease.duration + lease.margin) {
    Fail(absl::StrCat("C10: ", node.name, " publishes a checkpoint though its lease has ended"));
  }
}

void SimCluster::CheckAssignment(Node& node, const Assignment& assignment) {
  const RoundKey key(node.job, assignment.instance, assignment.round);
  const auto [holder, is_new] =
      history_[key].emplace(assignment.node_rank.value(), node.incarnation);
  if (holder->second != node.incarnation) {
    Fail(absl::StrCat("C1: node rank ", assignment.node_rank.value(), " of round ",
                      ToString(assignment.round), " given twice"));
  }
  if (!is_new) Fail("C1: " + node.name + " starts one round twice");
  const auto drained = drained_.find(node.incarnation);
  if (drained != drained_.end() && drained->second.first == assignment.instance &&
      assignment.round > drained->second.second) {
    Fail(absl::StrCat("C12: ", node.name, " is in a round after it was drained"));
  }
  const auto size = world_sizes_.emplace(key, assignment.world_size).first;
  int expected = 0;
  int num_of_other_size = 0;
  for (const Peer& peer : assignment.peers) {
    expected += peer.local_world_size;
    num_of_other_size += peer.local_world_size != JobOf(node).local_world_size;
  }
  // A hostile member may have as many workers as it likes.
  const bool is_expected =
      assignment.world_size == expected &&
      num_of_other_size <= (fates_[node.job].causes.hostile_names.empty() ? 0 : 1);
  if (size->second != assignment.world_size || !is_expected) {
    Fail(absl::StrCat("C1: world sizes ", size->second, ", ", assignment.world_size, " and ",
                      expected, " of its nodes"));
  }
  if (static_cast<int>(assignment.peers.size()) != assignment.num_nodes) Fail("C1: peers missing");
  if (assignment.restart_count <= node.newest_attempt) {
    Fail(absl::StrCat("C4: attempt ", assignment.restart_count, " after ", node.newest_attempt));
  }
  node.newest_attempt = assignment.restart_count;
  // One that comes late is of a round that has gone on without the node.
  const rendezvous::JobState* state =
      table_ == nullptr ? nullptr : table_->FindState(KeyOf(node.job));
  const bool is_lost = state == nullptr || !state->in_round.contains(node.incarnation);
  node.has_lapsed = is_lost;
}

// A server without a record of its round believes a member that speaks of a later one.
bool SimCluster::IsSaidToBeOver(const Node& node) const {
  if (!node.assignment || KnowsAllRounds() || IsOfThisLife(node.assignment->instance)) return false;
  return fates_[node.job].causes.hostile_round > IdOf(*node.assignment);
}

void SimCluster::CheckNewRound(int job, Instance instance, Round round) {
  const rendezvous::JobState* state = table_->FindState(KeyOf(job));
  if (state == nullptr) return;
  for (const Incarnation member : state->members) {
    if (!nodes_.contains(member)) continue;
    if (state->nodes.at(member).report.check) {
      Fail(absl::StrCat("P2: ", nodes_.at(member).name,
                        " has not passed its check, and is in round ", ToString(round)));
    }
    if (!state->nodes.at(member).connected) {
      Fail(
          absl::StrCat("C3: ", nodes_.at(member).name, " is gone, and in round ", ToString(round)));
    }
  }
  if (2 * state->held_back.size() > state->nodes.size()) {
    Fail(absl::StrCat("L2: ", state->held_back.size(), " of ", state->nodes.size(),
                      " nodes are held back"));
  }
  const LeaseSettings lease;
  for (auto& [id, node] : nodes_) {
    if (node.job != job || state->assignments.contains(id)) continue;
    // The job has gone on without it, for later lives of the server, too.
    const bool had_lapsed = std::exchange(node.has_lapsed, true);
    if (!node.is_alive || node.is_leaving || !node.heard_at) continue;
    bool runs = false;
    for (const Worker& worker : node.workers) {
      runs |= worker.alive && !worker.is_unkillable && !worker.awaits_round && !worker.is_liar;
    }
    const bool is_other = node.assignment && (node.assignment->instance != instance ||
                                              node.assignment->round != round);
    const absl::Duration silence = ServerNow() - *node.heard_at;
    // By its own signals it stops what it runs, and the server has agreed to that.
    const bool is_stopping = node.core->phase() == agent::NodePhase::kStopping;
    if (had_lapsed || IsSaidToBeOver(node)) continue;
    if (runs && is_other && !is_stopping && silence < lease.duration) {
      Fail(absl::StrCat("C2: round ", ToString(round), " starts while ", node.name, " runs round ",
                        ToString(node.assignment->round), ", and was heard ",
                        absl::FormatDuration(silence), " ago"));
    }
  }
}

void SimCluster::CheckLosses(int job) {
  const rendezvous::JobState* state = table_->FindState(KeyOf(job));
  if (state == nullptr) return;
  for (const auto& [id, name] : state->lost) {
    const bool is_hostile = id == HostileOf(job);
    if ((!nodes_.contains(id) && !is_hostile) || state->assignments.empty()) continue;
    // The newest round of all lives may be one that a server which died had no time to record.
    const RoundId round(state->assignments.begin()->second.instance, state->round);
    if (!fates_[job].causes.losses.insert({round, id}).second || is_hostile) continue;
    Node& node = nodes_.at(id);
    node.has_lapsed = true;
    if (!node.is_alive || node.finished || node.is_leaving) continue;
    const LeaseSettings lease;
    const absl::Duration silence = ServerNow() - node.heard_at.value_or(server_since_);
    if (silence >= lease.duration || drained_.contains(id) || state->drained.contains(id)) continue;
    if (state->phase == rendezvous::JobPhase::kEnded) continue;  // it has been told, and may go
    // The server may take a hostile member for a new start of the node.
    const AgentReport* const foreign = fates_[job].causes.foreign;
    const bool is_taken_for_it = foreign != nullptr && foreign->node.name == name &&
                                 foreign->node.address == absl::StrCat("address-of-", name);
    if (node.is_away && is_taken_for_it) continue;
    Fail(absl::StrCat("C14: ", name, " is lost, and was heard ", absl::FormatDuration(silence),
                      " ago"));
  }
}

// The job has lost its last node, and the table has forgotten it in the same step.
void SimCluster::NoteLossAtTheEnd(int job, const rendezvous::Announce& announce) {
  const LeaseSettings lease;
  for (auto& [id, node] : nodes_) {
    if (node.job != job) continue;
    if (!absl::StartsWith(announce.reason, absl::StrCat("lost ", node.name, " "))) continue;
    const absl::Duration silence = ServerNow() - node.heard_at.value_or(server_since_);
    if (!node.is_alive || silence >= lease.duration) {
      fates_[job].causes.losses.insert({fates_[job].newest_round, id});
      node.has_lapsed = true;
    }
  }
}

// Messages that are lost or late often enough cost a node its place, though nothing happened to it.
bool SimCluster::IsLossOfOneThatLives(int job, const rendezvous::Announce& announce) const {
  if (announce.event != "node_lost") return false;
  for (const auto& [unused, node] : nodes_) {
    const bool flaps = plan_.flapping > 0 && node.name[1] == '2';
    if (node.job != job || flaps || !node.is_alive) continue;
    if (absl::StartsWith(announce.reason, absl::StrCat("lost ", node.name, " "))) return true;
  }
  return false;
}

void SimCluster::Observe(const rendezvous::JobTable::JobEffect& effect) {
  const int job = JobOfKey(effect.job);
  if (const auto* announce = std::get_if<rendezvous::Announce>(&effect.effect)) {
    const rendezvous::JobState* traced = table_->FindState(effect.job);
    Trace("server", absl::StrCat(effect.job.run_id, " ", rendezvous::ToString(*announce), " (",
                                 traced == nullptr ? "forgotten" : ToString(traced->phase), ")"));
    const bool is_stop = announce->event == "round_stopped";
    const bool is_restart = is_stop && absl::StartsWith(announce->reason, "restart ");
    coverage_.restarts += is_restart;
    coverage_.membership_changes += is_stop && !is_restart;
    coverage_.losses += announce->event == "node_lost";
    if (announce->event == "node_lost" && table_->FindState(effect.job) == nullptr) {
      NoteLossAtTheEnd(job, *announce);
    }
    if (announce->event == "job_ended") {
      // A node that left while it was ending has been told of the end before.
      JobCauses& causes = fates_[job].causes;
      causes.ended.insert_or_assign(causes.newest, schedule_.now());
    }
    coverage_.unrecorded_rounds += announce->event == "job_unrecorded";
    if (KnowsAllRounds() && fates_[job].causes.foreign == nullptr &&
        announce->event == "job_unrecorded") {
      Fail("C11: a server with durable state has no record of a round: " + announce->reason);
    }
    coverage_.silences += announce->event == "silence_ended";
    fates_[job].disturbances += is_restart || IsLossOfOneThatLives(job, *announce);
    const rendezvous::JobState* state = table_->FindState(effect.job);
    coverage_.growths_at_commits += is_stop && absl::EndsWith(announce->reason, " joined") &&
                                    state != nullptr && state->committed_at == ServerNow();
    if (announce->event != "round_completed") return;
    ++coverage_.rounds;
    ++fates_[job].rounds;
    fates_[job].last_round_at = schedule_.now();
    if (state != nullptr && !state->members.empty()) {
      const Instance instance = state->assignments.begin()->second.instance;
      fates_[job].newest_round = {instance, announce->round};
      fates_[job].causes.num_nodes[{instance, announce->round}] =
          static_cast<int>(state->members.size());
      CheckNewRound(job, instance, announce->round);
    }
    return;
  }
  if (const auto* send = std::get_if<rendezvous::SendDirective>(&effect.effect)) {
    fates_[job].causes.newest = std::max(fates_[job].causes.newest, send->directive.instance);
    const rendezvous::JobState* state = table_->FindState(effect.job);
    const bool ends = std::holds_alternative<EndJob>(send->directive.body);
    if (ends && send->to == HostileOf(job)) {
      fates_[job].causes.ends_told_to_hostile.push_back(schedule_.now());
    }
    if (ends && state != nullptr && state->drained.contains(send->to)) {
      drained_ends_[send->to].insert(rendezvous::EndOfDrained(*state, send->to).outcome.reason);
    }
  }
  if (const auto* answer = std::get_if<rendezvous::SendAnswer>(&effect.effect)) {
    Trace("server", rendezvous::ToString(*answer));
  }
  if (const auto* reply = std::get_if<rendezvous::SendStoreReply>(&effect.effect)) {
    if (!reply->reply.status.ok()) Trace("server", rendezvous::ToString(*reply));
    CheckCommit(*reply);
    return;
  }
}

void SimCluster::ObserveDirective(int job, const rendezvous::SendDirective& send) {
  const Directive& directive = send.directive;
  if (!nodes_.contains(send.to)) return;
  Trace("server", absl::StrCat("to ", nodes_.at(send.to).name, " revision=", directive.revision,
                               " ", ToString(directive.body)));
  if (const auto* wait = std::get_if<Wait>(&directive.body)) {
    coverage_.held_back += absl::StrContains(wait->text, "is held back so that");
  }
  if (const auto* run = std::get_if<RunRound>(&directive.body)) {
    RoundId& newest = fates_[job].newest_told;
    newest = std::max(newest, IdOf(run->assignment));
    int& used = fates_[job].restarts_used[directive.instance];
    if (run->assignment.restarts_used < used) {
      Fail(absl::StrCat("C11: ", run->assignment.restarts_used, " restarts used after ", used));
    }
    used = run->assignment.restarts_used;
  }
  if (const auto* at = std::get_if<StopAt>(&directive.body)) ObserveStopAt(job, directive, *at);
  const auto* end = std::get_if<EndJob>(&directive.body);
  const rendezvous::JobState* state = table_->FindState(KeyOf(job));
  if (end != nullptr && state != nullptr && state->drained.contains(send.to)) {
    const auto here = state->nodes.find(send.to);
    const auto gone = state->former.find(send.to);
    const Round told = here != state->nodes.end()    ? here->second.told
                       : gone != state->former.end() ? gone->second.told
                                                     : kNoRound;
    coverage_.nodes_drained += drained_.emplace(send.to, RoundId(directive.instance, told)).second;
    const bool is_of_node = *end == rendezvous::EndOfDrained(*state, send.to);
    if (is_of_node || state->phase != rendezvous::JobPhase::kEnded) return;
  }
  // Decided before the job ended, and late because of the disk.
  const auto drained = drained_ends_.find(send.to);
  const bool is_late = end != nullptr && drained != drained_ends_.end() &&
                       drained->second.contains(end->outcome.reason);
  if (end != nullptr && !is_late) ObserveEnd(job, directive, end->outcome);
  if (const auto* refuse = std::get_if<Refuse>(&directive.body)) {
    ObserveRefusal(nodes_.at(send.to), directive, refuse->status);
  }
}

void SimCluster::ObserveStopAt(int job, const Directive& directive, const StopAt& at) {
  if (at.step == kStopStepOpen) return;
  const RoundKey key(job, directive.instance, at.round);
  const auto [named, is_new] = stop_steps_.emplace(key, at.step);
  if (is_new && !is_healed_ && random_.Chance(plan_.deaths_in_stops)) {
    schedule_.After(random_.Between(absl::ZeroDuration(), absl::Seconds(3)), [this] {
      if (table_ != nullptr && !is_healed_) KillServer();
    });
  }
  if (named->second == at.step) return;
  Fail(absl::StrCat("C12: the stop step of round ", ToString(at.round), " is ", named->second,
                    ", and then ", at.step));
}

bool SimCluster::HarmsOnlyTheServer() const {
  const char* const families[] = {"duplication",      "impostors",      "blackouts",
                                  "server_stalls",    "server_crashes", "disk_stalls",
                                  "misfits",          "clock_jumps",    "drifts",
                                  "stubborn_workers", "late_deaths"};
  return !plan_.is_embedded && HasOnly(plan_, families);
}

std::string SimCluster::CheckEnd() const {
  std::vector<std::string> unfinished;
  for (const auto& [unused, node] : nodes_) {
    if (node.is_alive && !node.finished) {
      unfinished.push_back(absl::StrCat(node.name, " (", ToString(node.core->phase()), ")"));
    }
  }
  if (!unfinished.empty()) {
    return absl::StrCat("still not finished: ", absl::StrJoin(unfinished, ", "));
  }
  if (table_ != nullptr && table_->size() != 0) return "the server still knows a job";
  for (size_t job = 0; job < fates_.size(); ++job) {
    const JobFate& fate = fates_[job];
    if (const int bound = RoundsBound(static_cast<int>(job)); fate.rounds > bound) {
      return absl::StrCat("C9: ", fate.rounds, " rounds of job ", job, ", at most ", bound,
                          " expected after ", fate.disturbances, " disturbances in ",
                          absl::FormatDuration(fate.last_round_at.since_zero()));
    }
    const bool succeeded = [&] {
      for (const auto& [unused, told] : fate.outcomes) {
        if (told.outcome.exit_code == 0) return true;
      }
      return false;
    }();
    if (HasOnly(plan_, {}) && !succeeded) return absl::StrCat("a calm job did not succeed: ", job);
  }
  return "";
}

void SimCluster::Trace(const std::string& who, const std::string& what) {
  std::string line = absl::StrFormat(
      "%11.6f  %-7s %s", absl::ToDoubleSeconds(schedule_.now().since_zero()), who, what);
  if (trace_) std::fprintf(stderr, "%s\n", line.c_str());
  last_effects_.push_back(std::move(line));
  if (last_effects_.size() > kEffectsKept) last_effects_.pop_front();
}

void SimCluster::Fail(const std::string& what) {
  if (!failure_.empty()) return;
  failure_ =
      absl::StrCat(what, "\nplan: ", ToString(plan_), "\n", absl::StrJoin(last_effects_, "\n"));
}

}  // namespace muster::simulation
