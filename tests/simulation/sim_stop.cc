// The stop step in the simulation: programs that go from step to step and ask after each whether to
// stop, as the runtime does it, and people who ask for a stop.
#include "absl/strings/str_cat.h"
#include "rendezvous/core/membership_policy.h"
#include "tests/simulation/sim_cluster.h"

namespace muster::simulation {

SimCluster::Worker* SimCluster::FindWorker(Incarnation id, RoundId round, int local_rank) {
  Node& node = nodes_.at(id);
  if (!node.is_alive || IdOf(*node.assignment) != round) return nullptr;
  Worker& worker = node.workers.at(local_rank);
  return worker.alive ? &worker : nullptr;
}

// The worker has done its step, and asks.
void SimCluster::BeginStep(Incarnation id, RoundId round, int local_rank) {
  Worker* const worker = FindWorker(id, round, local_rank);
  if (worker == nullptr || worker->is_told) return;  // its collectives have failed
  Node& node = nodes_.at(id);
  const StopState& told = worker->told;
  const auto leave = [&] {
    worker->alive = false;
    NoteExit(node, std::nullopt);
    StepAgent(id, agent::WorkerExited{round.second, LocalRank(local_rank), std::nullopt});
  };
  if (told.is_stopping && told.step && worker->step >= *told.step) {
    ++coverage_.stops_at_one_step;
    if (worker->step != *told.step && !worker->is_liar) {
      Fail(absl::StrCat("C12: a worker of ", node.name, " leaves after step ", worker->step,
                        ", and the stop step is ", *told.step));
    }
    leave();
    return;
  }
  if (worker->step + 1 >= JobOf(node).steps) {
    Promise(id, round, local_rank, worker->step);
    leave();
    return;
  }
  worker->is_holding = told.is_stopping && !told.step;
  if (worker->is_holding) return;
  ++worker->step;
  const auto named = stop_steps_.find(RoundKey(node.job, round.first, round.second));
  if (!worker->is_released && !worker->is_liar && named != stop_steps_.end() &&
      worker->step > named->second) {
    Fail(absl::StrCat("C12: a worker of ", node.name, " begins step ", worker->step,
                      ", beyond the stop step ", named->second));
  }
  const absl::Duration mean = JobOf(node).work / JobOf(node).steps;
  schedule_.After(mean * (0.5 + random_.Unit()),
                  [this, id, round, local_rank] { BeginStep(id, round, local_rank); });
}

void SimCluster::TellStop(Node& node, const StopState& stop) {
  if (JobOf(node).steps == 0) return;  // it has not said that it obeys
  for (const Worker& worker : node.workers) {
    if (!worker.alive) continue;
    // A socket: what was sent first comes first, though what is due at one instant has no order.
    schedule_.After(absl::ZeroDuration(),
                    [this, id = node.incarnation, round = IdOf(*node.assignment),
                     i = worker.local_rank.value(), stop, number = ++numbers_] {
                      Worker* const told = FindWorker(id, round, i);
                      if (told == nullptr || told->newest_told > number) return;
                      told->newest_told = number;
                      HearStop(id, round, i, stop);
                    });
  }
}

void SimCluster::HearStop(Incarnation id, RoundId round, int local_rank, const StopState& stop) {
  Worker* const worker = FindWorker(id, round, local_rank);
  if (worker == nullptr) return;
  worker->told = stop;
  worker->is_released |= !stop.is_stopping;
  const bool is_open = stop.is_stopping && !stop.step;
  if (is_open) {
    Promise(id, round, local_rank, worker->step);
  } else if (worker->is_holding) {
    BeginStep(id, round, local_rank);
  }
}

void SimCluster::InjectRequests() {
  for (int job = 0; job < static_cast<int>(plan_.jobs.size()); ++job) {
    if (random_.Chance(plan_.stops)) AskForStop(job, "");
    InjectForeignReports(job);
    if (random_.Chance(plan_.odd_requests)) AskOddly(job);
    if (!random_.Chance(plan_.drains)) continue;
    std::vector<const Node*> alive;
    for (const auto& [unused, node] : nodes_) {
      if (node.job == job && node.is_alive) alive.push_back(&node);
    }
    if (alive.empty()) continue;
    const Node& node = *alive[random_.Between(0, static_cast<int>(alive.size()) - 1)];
    if (random_.Chance(0.3)) {
      FindAtFault(job, node);
    } else {
      AskForStop(job, NodeToDrain(job, alive));
      if (!random_.Chance(0.3)) continue;
      schedule_.After(random_.Between(absl::Milliseconds(1), absl::Seconds(2)), [this, job] {
        if (!is_healed_) AskForStop(job, "");
      });
    }
  }
}

std::string SimCluster::NodeToDrain(int job, const std::vector<const Node*>& alive) {
  const rendezvous::JobState* state = table_ == nullptr ? nullptr : table_->FindState(KeyOf(job));
  for (const Node* node : alive) {
    if (state == nullptr) break;
    for (const auto& [id, known] : state->nodes) {
      const bool is_another = id != node->incarnation && known.report.node.name == node->name;
      if (is_another && state->nodes.contains(node->incarnation)) return node->name;
    }
  }
  return alive[random_.Between(0, static_cast<int>(alive.size()) - 1)]->name;
}

// The hang watch has judged.
void SimCluster::FindAtFault(int job, const Node& node) {
  if (table_ == nullptr || is_stalling_) return;
  ++fates_[job].causes.asked_to_stop;
  ++fates_[job].disturbances;
  const Incarnation id = node.incarnation;
  const std::string name = node.name;
  Trace("watch", absl::StrCat("replaces ", name));
  const rendezvous::JobState* state = table_->FindState(KeyOf(job));
  const bool may_leave = state != nullptr && rendezvous::NodesToSpare(*state) > 0 &&
                         state->in_round.contains(id) && id != table_->host();
  const bool was_drained = state != nullptr && state->drained.contains(id);
  AtServer([&] {
    return table_->OnNodesAtFault(KeyOf(job), {.nodes = {id}, .why = "hang"}, ServerNow());
  });
  state = table_->FindState(KeyOf(job));
  const bool is_drained = state != nullptr && state->drained.contains(id);
  coverage_.nodes_replaced += may_leave;
  if (state != nullptr && is_drained != (was_drained || may_leave)) {
    Fail(absl::StrCat("C12: ", name, is_drained ? " has left" : " has not left",
                      " the job, when the hang watch found it at fault"));
  }
}

void SimCluster::AskForStop(int job, const std::string& node) {
  if (table_ == nullptr || is_stalling_) return;
  ++fates_[job].causes.asked_to_stop;
  ++fates_[job].disturbances;
  const StopRequest request{.node = node, .at_once = random_.Chance(0.1)};
  Trace("person",
        absl::StrCat(node.empty() ? "stop" : "drain ", node, request.at_once ? " now" : ""));
  const Incarnation person(random_.Bits() | 1);
  AtServer([&] { return table_->OnStopRequest(KeyOf(job), person, request, ServerNow()); });
}

}  // namespace muster::simulation
