// Checks that after the faults jobs whose work does not end get their round, and others end.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rendezvous/core/membership_policy.h"
#include "tests/simulation/sim_cluster.h"

namespace muster::simulation {
namespace {

// Nodes that are to start again have, and failures that were drawn before have come.
constexpr absl::Duration kSettles = absl::Seconds(90);
// Workers that do not end, and what they leave behind; back-off; messages.
constexpr absl::Duration kStops = absl::Seconds(60);
// One that nodes come back to has to be done again.
constexpr double kRoundsAtMost = 2;

}  // namespace

bool SimCluster::IsOver(int job) const {
  return std::none_of(nodes_.begin(), nodes_.end(), [&](const auto& entry) {
    const Node& node = entry.second;
    return node.job == job && node.is_alive && !node.finished;
  });
}

void SimCluster::ExpectRound(int job) {
  schedule_.After(kSettles, [this, job] {
    const absl::Duration wait = LongestWait(job);
    schedule_.After(wait, [this, job, wait] {
      if (const std::string why = WhyNoRound(job); !why.empty()) {
        Fail(absl::StrCat("L1: ", KeyOf(job).run_id,
                          " has not come to a round of its healthy nodes ",
                          absl::FormatDuration(kSettles + wait), " after the faults: ", why));
      }
      StopUntilOver(job);
    });
  });
}

absl::Duration SimCluster::LongestWait(int job) const {
  const LeaseSettings lease;
  const RendezvousSettings& settings = plan_.jobs[job].settings;
  absl::Duration wait = 2 * (lease.duration + lease.margin) + settings.last_call_timeout +
                        settings.shutdown_timeout + kStops;
  if (!KnowsAllRounds() && server_life_ > 1) wait += settings.orphan_timeout;
  if (plan_.failed_checks > 0) wait += agent::kMaxCheckPause + kStops;
  const rendezvous::JobState* state = table_ == nullptr ? nullptr : table_->FindState(KeyOf(job));
  if (state == nullptr) return wait;
  // A worker that lies may have had a stop step named that honest ones come to only later (Lie).
  if (plan_.liars > 0 && state->stop_step && plan_.jobs[job].steps > 0) {
    constexpr double kSlowestStep = 1.5;  // of a mean one (BeginStep)
    wait += kMostStepsOfALie * kSlowestStep * plan_.jobs[job].work / plan_.jobs[job].steps;
  }
  absl::Duration longest = rendezvous::kFirstGrowthHoldOff;
  for (int i = 0; i <= state->hasty_changes && longest < rendezvous::kMaxGrowthHoldOff; ++i) {
    longest *= 2;
  }
  longest = std::min(longest, rendezvous::kMaxGrowthHoldOff);
  for (const auto& [unused, history] : state->histories) {
    longest = std::max(longest, history.held_until - ServerNow());
  }
  return wait + longest;
}

std::string SimCluster::WhyNoRound(int job) const {
  const RendezvousSettings& settings = plan_.jobs[job].settings;
  const auto& newest = fates_[job].newest_round;
  int healthy = 0, running = 0;
  int running_others = 0;  // to be ended by what was drawn for them, with a place until then
  for (const auto& [id, node] : nodes_) {
    if (node.job != job || node.finished || node.is_leaving) continue;
    if (IsApart(node) || node.core->phase() == agent::NodePhase::kChecking) continue;
    const bool is_in = node.is_alive && node.assignment && IdOf(*node.assignment) == newest &&
                       node.core->phase() == agent::NodePhase::kRunning;
    const bool runs = is_in && std::any_of(node.workers.begin(), node.workers.end(),
                                           [](const Worker& w) { return w.alive && !w.is_told; });
    // A server that has lost its state has forgotten who was drained, too.
    const bool is_to_leave = drained_.contains(id) || !node.causes.exit_codes.empty();
    if (!is_to_leave && WasWellAfter(node, schedule_.now() - absl::Seconds(5))) {
      ++healthy;
      running += runs;
    } else {
      running_others += runs;
    }
  }
  // A member that says that its workers have succeeded is waited for no more.
  const bool is_claimed = fates_[job].causes.hostile_phases.contains(AgentPhase::kSucceeded);
  if (IsOver(job) || is_claimed || healthy < settings.min_nodes) return "";
  const bool may_grow = settings.scale_up == ScaleUp::kNow;
  const int most = may_grow ? settings.max_nodes : settings.min_nodes;
  const int wanted = std::min(healthy, most - running_others);
  if (running >= wanted) return "";
  return absl::StrCat(running, " of ", healthy, " healthy nodes run it, and ", wanted, " could");
}

void SimCluster::ExpectEnd(int job) {
  schedule_.After(kSettles, [this, job] {
    const SimJobPlan& plan = plan_.jobs[job];
    // A last round whole, for nodes that are enough, or the wait for those that are missing; agents
    // that are told nothing give up by themselves.
    const absl::Duration wait = LongestWait(job) + plan.settings.join_timeout +
                                plan.settings.orphan_timeout + kRoundsAtMost * plan.work + kStops;
    schedule_.After(wait, [this, job, wait] {
      if (IsOver(job)) return;
      Fail(absl::StrCat("L1: ", KeyOf(job).run_id, " has not ended ",
                        absl::FormatDuration(kSettles + wait), " after the faults"));
    });
  });
}

void SimCluster::StopUntilOver(int job) {
  if (IsOver(job)) return;
  AskForStop(job, "");
  schedule_.After(absl::Seconds(5), [this, job] { StopUntilOver(job); });
}

}  // namespace muster::simulation
