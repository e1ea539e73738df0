#include "rendezvous/server/job_watches.h"

#include <utility>
#include <variant>

#include "rendezvous/core/membership_policy.h"

namespace muster::rendezvous {
namespace {

// How often it is looked whether a job is still there, of which nothing is heard.
constexpr absl::Duration kLookAtJob = absl::Minutes(1);

std::vector<hangs::WatchedNode> MembersOf(const JobState& state) {
  std::vector<hangs::WatchedNode> nodes;
  for (const Incarnation member : state.members) {
    const Assignment& assignment = state.assignments.at(member);
    const auto description = state.descriptions.find(member);
    nodes.push_back(
        {.agent = member,
         .name = description == state.descriptions.end() ? "a node" : description->second.name,
         .first_rank = assignment.first_rank.value(),
         .num_ranks = assignment.local_world_size});
  }
  return nodes;
}

}  // namespace

bool JobWatches::Follow(Watch& watch, const JobTable& table, const JobKey& job, MonoTime now) {
  const JobState* const state = table.FindState(job);
  if (state == nullptr || state->phase == JobPhase::kEnded) return false;
  if (state->phase != JobPhase::kRunning) {
    watch.watch.StopRound();
    watch.round = kNoRound;
    return true;
  }
  watch.watch.SetSpares({.num_nodes = NodesToSpare(*state), .host = table.host()});
  if (watch.round == state->round && watch.running_since == state->running_since) return true;
  watch.round = state->round;
  watch.running_since = state->running_since;
  watch.watch.SetGrace(state->settings->shutdown_timeout);
  watch.watch.StartRound(state->round, MembersOf(*state), now);
  watch.progress.StartRound();
  return true;
}

JobWatches::Orders JobWatches::OnWord(const JobTable& table, const JobKey& job, Incarnation from,
                                      hangs::NodeWord word, MonoTime now) {
  const auto watch = watches_.try_emplace(job).first;
  if (!Follow(watch->second, table, job, now)) {
    Erase(watch);
    return {};
  }
  bool judges_itself = false;
  if (const auto* summary = std::get_if<hangs::NodeSummary>(&word)) {
    judges_itself = summary->standing.is_told;
    const bool is_of_round = summary->round == watch->second.round;
    if (is_of_round && table.FindState(job)->assignments.contains(from)) {
      watch->second.progress.OnSummary(from, *summary, now);
    }
  }
  Orders orders;
  if (!judges_itself) {
    orders = watch->second.watch.OnWord(from, std::move(word), now);
    watch->second.progress.OnOrders(orders, now);
  }
  Reschedule(watch, now);
  return orders;
}

const status::JobProgress* JobWatches::FindProgress(const JobTable& table, const JobKey& job,
                                                    MonoTime now) {
  const auto watch = watches_.find(job);
  if (watch == watches_.end() || !Follow(watch->second, table, job, now)) return nullptr;
  return &watch->second.progress;
}

std::vector<std::pair<JobKey, JobWatches::Orders>> JobWatches::Tick(const JobTable& table,
                                                                    MonoTime now) {
  std::vector<JobKey> due;
  for (const auto& [deadline, job] : deadlines_) {
    if (deadline > now) break;
    due.push_back(job);
  }
  std::vector<std::pair<JobKey, Orders>> out;
  for (const JobKey& job : due) {
    const auto watch = watches_.find(job);
    if (!Follow(watch->second, table, job, now)) {
      Erase(watch);
      continue;
    }
    out.emplace_back(job, watch->second.watch.Tick(now));
    watch->second.progress.OnOrders(out.back().second, now);
    Reschedule(watch, now);
  }
  return out;
}

void JobWatches::Reschedule(Watches::iterator watch, MonoTime now) {
  deadlines_.erase({watch->second.deadline, watch->first});
  watch->second.deadline = Min(watch->second.watch.NextDeadline(), now + kLookAtJob);
  deadlines_.insert({watch->second.deadline, watch->first});
}

void JobWatches::Erase(Watches::iterator watch) {
  deadlines_.erase({watch->second.deadline, watch->first});
  watches_.erase(watch);
}

}  // namespace muster::rendezvous
