// The workers of the simulation: how they end, and what they ask of the store.
#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/exit_codes.h"
#include "tests/simulation/sim_cluster.h"

namespace muster::simulation {

void SimCluster::StartWorkers(Node& node, const Assignment& assignment,
                              const std::vector<LocalRank>& kept) {
  CheckAssignment(node, assignment);
  const auto is_kept = [&](LocalRank rank) {
    return std::find(kept.begin(), kept.end(), rank) != kept.end();
  };
  for (const Worker& worker : node.workers) {
    if (worker.alive && !worker.is_unkillable && !is_kept(worker.local_rank)) {
      Fail(node.name + " starts a round over live workers");
    }
  }
  node.assignment = assignment;
  const std::vector<Worker> before = std::exchange(node.workers, {});
  const absl::Duration work = JobOf(node).work;
  for (int i = 0; i < assignment.local_world_size; ++i) {
    const bool faults = !is_healed_;
    if (is_kept(LocalRank(i))) {
      const Worker* const old = i < static_cast<int>(before.size()) ? &before[i] : nullptr;
      if (old == nullptr || !old->is_told || !(old->awaits_round || old->is_liar)) {
        Fail(absl::StrCat("C13: ", node.name, " keeps worker ", i, ", which has not let go"));
      }
      // One that has died since is replaced: it is the shell that knows.
      const bool lives = old != nullptr && old->alive;
      coverage_.kept += lives;
      node.workers.push_back({.local_rank = LocalRank(i),
                              .pid = lives ? old->pid : 0,
                              .is_stubborn = lives && old->is_stubborn,
                              .is_liar = lives && old->is_liar});
    } else {
      const bool is_unkillable = faults && random_.Chance(plan_.unkillable_workers);
      if (is_unkillable) NoteCause(node, kExitFailure);
      node.workers.push_back({.local_rank = LocalRank(i),
                              .is_stubborn = random_.Chance(plan_.stubborn_workers),
                              .is_unkillable = is_unkillable});
    }
    Worker& worker = node.workers.back();
    if (worker.pid == 0) worker.pid = static_cast<int>(1000 + ++numbers_);
    if (faults && random_.Chance(plan_.liars)) {
      worker.is_liar = true;
      schedule_.After(random_.Between(absl::ZeroDuration(), absl::Seconds(20)),
                      [this, id = node.incarnation, of = IdOf(assignment), i] { Lie(id, of, i); });
    }
    schedule_.After(
        absl::ZeroDuration(), [this, id = node.incarnation, assignment, i, pid = worker.pid] {
          StepAgent(id, agent::WorkerSpawned{assignment.round, LocalRank(i), pid});
          if (JobOf(nodes_.at(id)).survives && FindWorker(id, IdOf(assignment), i) != nullptr) {
            Promise(id, IdOf(assignment), i, std::nullopt);
            StepAgent(id, agent::WorkerGreeted{assignment.round, LocalRank(i)});
          }
        });
    const absl::Duration jitter = random_.Between(absl::ZeroDuration(), absl::Seconds(1));
    if (faults && random_.Chance(plan_.worker_failures)) {
      ScheduleExit(node, LocalRank(i), random_.Unit() * std::min(work, absl::Minutes(1)),
                   WorkerFailure{.exit_code = random_.Chance(0.05) ? kExitDoNotRestart
                                                                   : random_.Between(1, 92)});
    }
    if (JobOf(node).steps > 0) {
      schedule_.After(jitter, [this, id = node.incarnation, of = IdOf(assignment), i] {
        if (FindWorker(id, of, i) == nullptr) return;
        Promise(id, of, i, std::nullopt);
        BeginStep(id, of, i);
      });
    } else {
      ScheduleExit(node, LocalRank(i), work + jitter, std::nullopt);
    }
  }
  // Once more later: perhaps a server has lost the keys meanwhile.
  for (const absl::Duration when :
       {absl::Milliseconds(50), random_.Between(absl::Seconds(1), absl::Seconds(40))}) {
    schedule_.After(when, [this, id = node.incarnation, round = assignment.round] {
      Node& owner = nodes_.at(id);
      if (owner.is_alive && owner.assignment->round == round) UseStore(owner);
    });
  }
  const absl::Duration every = JobOf(node).checkpoint_every;
  if (every == absl::ZeroDuration() || assignment.node_rank.value() != 0) return;
  schedule_.After(every, [this, id = node.incarnation, assignment] { Checkpoint(id, assignment); });
}

// Rank 0 has written a checkpoint, and asks whether it may publish it.
void SimCluster::Checkpoint(Incarnation id, const Assignment& of) {
  Node& node = nodes_.at(id);
  const bool is_same =
      node.assignment->instance == of.instance && node.assignment->round == of.round;
  const Worker& first = node.workers.front();
  if (!node.is_alive || !is_same || !first.alive || first.is_told) return;
  // A stopped agent passes nothing on, nor does one whose lease has ended by its own count.
  const bool may_publish = node.core->MayPublish(NowOf(node)).ok();
  const LeaseSettings lease;
  if (may_publish && !node.is_paused && node.heard_at && table_ != nullptr && !is_stalling_ &&
      ServerNow() - *node.heard_at >= lease.duration + lease.margin) {
    Fail(absl::StrCat("C10: ", node.name, " would publish, and its lease has ended"));
  }
  if (may_publish && !node.is_paused && node.is_connected) {
    const CommitCheckpoint commit{.step = ++fates_[node.job].step};
    node.commits[SendStoreRequest(node, commit, "")] = of;
  }
  schedule_.After(JobOf(node).checkpoint_every, [this, id, of] { Checkpoint(id, of); });
}

void SimCluster::Promise(Incarnation id, RoundId round, int local_rank,
                         std::optional<int64_t> floor) {
  const Node& node = nodes_.at(id);
  StepAgent(id, agent::WorkerPromised{.round = round.second,
                                      .local_rank = LocalRank(local_rank),
                                      .obeys = JobOf(node).steps > 0,
                                      .floor = floor,
                                      .survives = JobOf(node).survives,
                                      .awaits_round = node.workers.at(local_rank).awaits_round});
}

// What it was doing with the others fails, and it lets go; or it is stuck for good.
void SimCluster::TellRoundOver(Node& node, bool is_followed) {
  CheckMaySignal(node);
  CheckDisturbs(node);
  for (Worker& worker : node.workers) {
    if (!worker.alive) continue;
    worker.is_told = true;
    if (worker.is_unkillable) continue;
    coverage_.survivors_ended += !is_followed && worker.awaits_round;
    if (!is_followed || worker.is_stubborn) continue;
    schedule_.After(random_.Between(absl::Milliseconds(1), absl::Milliseconds(500)),
                    [this, id = node.incarnation, round = IdOf(*node.assignment),
                     i = worker.local_rank.value()] {
                      Worker* const told = FindWorker(id, round, i);
                      if (told == nullptr) return;
                      told->awaits_round = true;
                      Promise(id, round, i, std::nullopt);
                    });
  }
}

void SimCluster::EndLeftovers(Node& node) {
  if (!is_healed_ && random_.Chance(plan_.leftovers)) return;
  schedule_.After(absl::Milliseconds(1),
                  [this, id = node.incarnation] { StepAgent(id, agent::DescendantsGone{}); });
}

void SimCluster::SignalWorkers(Node& node, const agent::SignalWorkers& effect) {
  if (effect.signal != SIGKILL) CheckMaySignal(node);
  if (effect.signal == SIGUSR1) return;  // they handle it, and go on
  for (const Worker& worker : node.workers) {
    const auto& spared = effect.spared;
    if (std::find(spared.begin(), spared.end(), worker.local_rank) != spared.end()) continue;
    if (!worker.alive || worker.is_unkillable) continue;
    if (worker.is_stubborn && effect.signal != SIGKILL) continue;
    ScheduleExit(node, worker.local_rank,
                 random_.Between(absl::Milliseconds(1), absl::Milliseconds(300)),
                 WorkerFailure{.signal = effect.signal});
  }
  CheckDisturbs(node);
}

void SimCluster::CheckDisturbs(const Node& node) {
  const bool is_growth_possible = JobOf(node).settings.max_nodes > JobOf(node).settings.min_nodes;
  const bool is_asked = is_healed_ && fates_[node.job].causes.asked_to_stop > 0;
  const bool is_given_up = !KnowsAllRounds() && !IsOfThisLife(node.assignment->instance) &&
                           schedule_.now() - server_since_ >= JobOf(node).settings.orphan_timeout;
  if (!is_growth_possible && !is_asked && !is_given_up && HarmsOnlyTheServer()) {
    Fail(absl::StrCat("C7: workers of ", node.name,
                      " are signalled, though only the server and the way to it failed"));
  }
}

void SimCluster::ScheduleExit(Node& node, LocalRank local_rank, absl::Duration delay,
                              std::optional<WorkerFailure> failure) {
  const Assignment& assignment = *node.assignment;
  if (failure) {
    failure->rank = Rank(assignment.first_rank.value() + local_rank.value());
    failure->local_rank = local_rank;
    failure->node_rank = assignment.node_rank;
    failure->node_name = node.name;
  }
  schedule_.After(delay, [this, id = node.incarnation, round = assignment.round,
                          instance = assignment.instance, local_rank, failure] {
    Node& owner = nodes_.at(id);
    const bool is_current =
        owner.assignment->round == round && owner.assignment->instance == instance;
    if (!owner.is_alive || !is_current) return;
    Worker& worker = owner.workers.at(local_rank.value());
    if (!worker.alive || (worker.is_told && !failure)) return;
    worker.alive = false;
    Trace(owner.name, absl::StrCat("worker ", local_rank.value(), " ends"));
    coverage_.parked_deaths += worker.awaits_round;
    NoteExit(owner, failure);
    if (failure && IsOwnFailure(owner, *failure)) owner.check.has_passed = false;
    const bool may_have_aborted = plan_.inquiries > 0 && failure && failure->signal == 0;
    if (may_have_aborted && random_.Chance(plan_.inquiries)) BeginInquiries(owner);
    StepAgent(id, agent::WorkerExited{round, local_rank, failure});
  });
}

void SimCluster::NoteExit(const Node& node, const std::optional<WorkerFailure>& failure) {
  JobCauses& causes = fates_[node.job].causes;
  const RoundId round = IdOf(*node.assignment);
  if (!failure) {
    const int node_rank = node.assignment->node_rank.value();
    const int num_done = ++causes.exits_with_0[{round, node_rank}];
    if (num_done == node.assignment->local_world_size) causes.succeeded[round].insert(node_rank);
  } else if (failure->signal == 0 || node.workers.at(failure->local_rank.value()).is_liar) {
    // A liar may say that it survives rounds, and is ended when it does not come to the next.
    causes.failures.push_back(*failure);
    causes.failed_rounds.insert(round);
  }
}

// Each node says a value of this round, waits for everybody's, asks for all else that there is, and
// takes part in one exchange.
void SimCluster::UseStore(Node& node) {
  const Assignment& a = *node.assignment;
  const std::string tag = absl::StrCat(ToString(a.instance), "/", ToString(a.round));
  SendStoreRequest(node, StoreSet{absl::StrCat("node", a.node_rank.value()), tag}, "");
  StoreWait wait{.timeout = absl::Seconds(30)};
  for (int i = 0; i < a.num_nodes; ++i) wait.keys.push_back(absl::StrCat("node", i));
  SendStoreRequest(node, wait, tag);
  const std::string own = absl::StrCat("own", a.node_rank.value());
  SendStoreRequest(node, StoreSet{own, tag}, "");
  SendStoreRequest(node, StoreGet{own}, tag);
  SendStoreRequest(node, StoreCompareAndSet{"first", "", tag}, tag);
  SendStoreRequest(node, StoreCompareAndSet{"first", "another", "never"}, tag);
  SendStoreRequest(node, StoreAdd{"sum", 1}, "");
  const std::string text = absl::StrCat("text", a.node_rank.value());  // in whatever order
  SendStoreRequest(node, StoreSet{text, tag}, "");
  SendStoreRequest(node, StoreAdd{text, 1}, "");
  SendStoreRequest(node, StoreDelete{text}, "");
  SendStoreRequest(node, StoreSet{std::string(kMaxStoreKeyBytes + 1, 'k'), tag}, "");
  SendStoreRequest(node, StoreWait{.keys = {"never"}, .timeout = absl::Seconds(1)}, "");
  const bool is_first = a.node_rank.value() == 0;
  SendStoreRequest(node,
                   UniqueIdExchange{.group = "world",
                                    .nonce = 1,
                                    .group_rank = a.node_rank.value(),
                                    .group_size = a.num_nodes,
                                    .unique_id = is_first ? "id of " + tag : "",
                                    .timeout = absl::Seconds(30)},
                   "id of " + tag);
}

uint64_t SimCluster::SendStoreRequest(Node& node, StoreOperation operation,
                                      const std::string& expected) {
  const uint64_t id = ++node.store_requests;
  if (!node.is_connected) return id;
  node.expected[id] = expected;
  const StoreRequest request{.request_id = id,
                             .round = node.assignment->round,
                             .operation = std::move(operation),
                             .instance = node.assignment->instance};
  Deliver(node.incarnation, Direction::kUp,
          [this, from = node.incarnation, life = server_life_, request] {
            if (life != server_life_) return;
            AtServer([this, from, request] {
              return table_->OnStoreRequest(KeyOf(nodes_.at(from).job), from, request, ServerNow());
            });
          });
  return id;
}

void SimCluster::OnStoreReply(Incarnation to, const StoreReply& reply) {
  Node& node = nodes_.at(to);
  const auto asked = node.expected.find(reply.request_id);
  if (asked == node.expected.end()) {
    Fail(absl::StrCat("C8: ", node.name, " got an answer to what it did not ask"));
    return;
  }
  if (!reply.status.ok() || asked->second.empty()) return;
  coverage_.unique_ids += asked->second[0] == 'i';
  for (const std::string& value : reply.values) {
    if (value == asked->second) continue;
    Fail(absl::StrCat("C8: ", node.name, " got '", value, "' for '", asked->second, "'"));
  }
}

}  // namespace muster::simulation
