// What a server hears that no agent of ours says: a member that lies, newcomers that may not come
// in, workers that say of themselves what comes to their minds. Nothing that the others rely on may
// break.
#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "proto/base/exit_codes.h"
#include "tests/simulation/sim_cluster.h"

namespace muster::simulation {
namespace {

constexpr int kMany = 1000000;

}  // namespace

Incarnation SimCluster::HostileOf(int job) {
  return Incarnation(0xbad + static_cast<uint64_t>(job));
}

void SimCluster::InjectForeignReports(int job) {
  if (table_ == nullptr || is_stalling_) return;
  const bool is_last = job > 0 && job + 1 == static_cast<int>(plan_.jobs.size());
  if (is_last && random_.Chance(plan_.hostile_members)) {
    const AgentReport report = DrawHostileReport(job);
    NoteHostileReport(job, report);
    SendForeign(job, HostileOf(job), report);
  }
  if (random_.Chance(plan_.misfits)) CheckMisfit(job);
}

void SimCluster::SendForeign(int job, Incarnation from, const AgentReport& report) {
  Trace("foreign", ToString(report));
  JobCauses& causes = fates_[job].causes;
  causes.foreign = &report;
  AtServer([&] { return table_->OnReport(KeyOf(job), from, report, ServerNow()); });
  causes.foreign = nullptr;
}

// What it says of itself may be how its job goes on, or ends.
void SimCluster::NoteHostileReport(int job, const AgentReport& report) {
  JobFate& fate = fates_[job];
  ++fate.disturbances;
  fate.causes.hostile_names.insert(report.node.name);
  fate.causes.hostile_phases.insert(report.phase);
  fate.causes.hostile_restarts = std::max(fate.causes.hostile_restarts, report.past.restarts_used);
  fate.causes.hostile_round =
      std::max(fate.causes.hostile_round, RoundId(report.instance, report.round));
  if (report.phase == AgentPhase::kFailed) {
    fate.causes.failed_rounds.insert(fate.newest_round);
  }
  for (const WorkerFailure& failure : report.failures) {
    fate.causes.failures.push_back(failure);
    fate.causes.failed_rounds.insert(fate.newest_round);
  }
  if (report.departure) fate.causes.exit_codes.insert(ExitCodeOfSignal(report.departure->signal));
  if (report.stop_wish) fate.causes.exit_codes.insert(ExitCodeOfSignal(report.stop_wish->signal));
}

AgentReport SimCluster::DrawHostileReport(int job) {
  const auto& [instance, round] = fates_[job].newest_round;
  const auto near = [&](int64_t value) {
    const int kind = random_.Between(0, 4);
    return kind == 0 ? 0 : kind == 1 ? value + 1 : kind == 2 ? random_.Between(-1, kMany) : value;
  };
  const std::string name = absl::StrCat(std::string(1, "nxyzw"[job]), random_.Between(1, 6));
  AgentReport report{
      .sequence = random_.Chance(0.9)
                      ? static_cast<uint64_t>(schedule_.now().since_zero() / absl::Milliseconds(1))
                      : random_.Bits(),
      .phase = static_cast<AgentPhase>(random_.Between(0, 5)),
      .round = random_.Chance(0.2) ? kNoRound : Round(near(round.value())),
      .instance = Instance(near(instance.value())),
      .num_nodes = static_cast<int>(near(3)),
      .past = {.attempts = static_cast<int>(near(5)), .restarts_used = static_cast<int>(near(1))},
      .node = {.name = name,
               .address = random_.Chance(0.5) ? "address-of-" + name : "elsewhere",
               .local_world_size = static_cast<int>(std::max<int64_t>(1, near(2) % 9))},
      .settings = plan_.jobs[job].settings};
  if (report.settings.is_static) report.node.node_rank = random_.Between(0, 5);
  if (random_.Chance(0.2)) {
    report.failures.push_back({.rank = Rank(random_.Between(0, 20)), .exit_code = 7});
  }
  if (random_.Chance(0.05)) report.unkillable_pids = {1};
  if (report.phase == AgentPhase::kLeaving) report.departure = Departure{.signal = 15};
  if (random_.Chance(0.3)) report.stop_floor = near(10);
  if (plan_.failed_checks > 0 && random_.Chance(0.2)) {
    report.check = CheckState{.failure = random_.Chance(0.5) ? "it says so" : ""};
  }
  if (random_.Chance(0.1)) report.stop_wish = StopWish{.signal = 15, .drain_me = true};
  return report;
}

// A newcomer of other settings, or of impossible ones: it is refused, and nothing else happens.
void SimCluster::CheckMisfit(int job) {
  const rendezvous::JobState* state = table_->FindState(KeyOf(job));
  const bool is_open =
      state != nullptr && state->settings && state->phase != rendezvous::JobPhase::kEnded &&
      *state->settings == plan_.jobs[job].settings && table_->NextDeadline() > ServerNow();
  if (!is_open) return;
  AgentReport report{.sequence = 1,
                     .node = {.name = "misfit", .address = "address-of-misfit"},
                     .settings = plan_.jobs[job].settings};
  RendezvousSettings& settings = report.settings;
  if (settings.is_static) report.node.node_rank = 0;
  rendezvous::JobKey key = KeyOf(job);
  const bool is_full = !plan_.is_embedded && table_->size() == plan_.jobs.size();
  const int kind = random_.Between(0, settings.is_static ? 14 : 10);
  switch (kind) {
    case 0:
      settings.is_static = !settings.is_static;
      break;
    case 1:
      ++settings.max_nodes;
      break;
    case 2:
      ++settings.max_restarts;
      break;
    case 3:
      settings.join_timeout += absl::Seconds(1);
      break;
    case 4:
      settings.last_call_timeout += absl::Seconds(1);
      break;
    case 5:
      settings.shutdown_timeout += absl::Seconds(1);
      break;
    case 6:
      settings.min_nodes = 0;
      break;
    case 7:
      report.node.local_world_size = random_.Chance(0.5) ? 0 : kMany;
      break;
    case 8:
      report.node.worker_ports = {1, 2, 3};
      break;
    case 9:
      settings.close_timeout += absl::Seconds(1);
      break;
    case 10:
      key.run_id = plan_.is_embedded ? "another" : "none";
      if (is_full && random_.Chance(0.5)) key.run_id = "one too many";
      break;
    case 11:
      report.node.node_rank.reset();
      break;
    case 12:
      report.node.node_rank = settings.max_nodes;
      break;
    case 13:
      report.node.node_rank = -1;
      break;
    default:
      if (state->ranks.claims.empty()) return;
      report.node.node_rank = state->ranks.claims.begin()->first;
      if (!state->nodes.at(state->ranks.claims.begin()->second.holder).connected) return;
  }
  const Incarnation from(random_.Bits() | 1);
  bool is_refused = false;
  Trace("foreign", absl::StrCat("misfit ", kind));
  AtServer([&] {
    auto effects = table_->OnReport(key, from, report, ServerNow());
    for (const auto& effect : effects) {
      const auto* send = std::get_if<rendezvous::SendDirective>(&effect.effect);
      if (send == nullptr || send->to != from) continue;
      const auto* refuse = std::get_if<Refuse>(&send->directive.body);
      is_refused |= refuse != nullptr && (absl::IsInvalidArgument(refuse->status) ||
                                          absl::IsResourceExhausted(refuse->status));
    }
    return effects;
  });
  state = table_ == nullptr ? nullptr : table_->FindState(KeyOf(job));
  const bool is_over = state == nullptr || state->phase == rendezvous::JobPhase::kEnded;
  coverage_.misfits_refused += is_refused;
  if (is_over || is_refused) return;
  Fail(absl::StrCat("a newcomer that may not come in (", kind, ") is not refused"));
}

void SimCluster::AskOddly(int job) {
  if (table_ == nullptr || is_stalling_) return;
  LookAtJobs();
  std::vector<Incarnation> members;
  for (const auto& [id, node] : nodes_) {
    if (node.job == job && node.assignment) members.push_back(id);
  }
  if (members.empty()) return;
  const Incarnation from = members[random_.Between(0, static_cast<int>(members.size()) - 1)];
  Node& node = nodes_.at(from);
  const std::vector<StoreRequest> requests = DrawOddRequests(node);
  Trace("foreign", absl::StrCat(requests.size(), " odd requests of ", node.name));
  AtServer([&] {
    std::vector<rendezvous::JobTable::JobEffect> effects;
    for (const StoreRequest& request : requests) {
      auto more = table_->OnStoreRequest(KeyOf(job), from, request, ServerNow());
      for (auto& effect : more) effects.push_back(std::move(effect));
    }
    return effects;
  });
}

std::vector<StoreRequest> SimCluster::DrawOddRequests(Node& node) {
  std::vector<StoreRequest> requests;
  const auto ask = [&](StoreOperation operation) {
    const uint64_t id = ++node.store_requests;
    node.expected[id] = "";
    requests.push_back({.request_id = id,
                        .round = node.assignment->round,
                        .operation = std::move(operation),
                        .instance = node.assignment->instance});
  };
  const auto exchange = [&](int rank, int size, std::string unique_id) {
    ask(UniqueIdExchange{.group = "odd",
                         .nonce = node.store_requests,
                         .group_rank = rank,
                         .group_size = size,
                         .unique_id = std::move(unique_id),
                         .timeout = absl::Seconds(1)});
  };
  const CommitCheckpoint commit{.step = ++fates_[node.job].step};
  switch (random_.Between(0, 7)) {
    case 0:
      ask(StoreSet{"odd", std::string(kMaxStoreValueBytes + 1, 'v')});
      break;
    case 1:
      exchange(2, 2, "");
      exchange(1, 2, "an id");
      exchange(0, 2, std::string(kMaxStoreKeyBytes + 1, 'i'));
      break;
    case 2:
      exchange(0, 2, "an id");
      for (const int size : {2, 3}) {
        exchange(0, size, "an id");
        auto& repeated = std::get<UniqueIdExchange>(requests.back().operation);
        repeated.nonce = std::get<UniqueIdExchange>(requests.front().operation).nonce;
      }
      break;
    case 3:
      for (int i = 0; i < 2; ++i) {
        ask(StoreAdd{"odd sum", std::numeric_limits<int64_t>::max()});
      }
      break;
    case 4:  // more than are remembered, and the first of them again
      for (int i = 0; i < 300; ++i) ask(StoreSet{"odd", "value"});
      requests.push_back(requests.front());
      break;
    case 5:  // heard of a server that is newer than this one
      ask(commit);
      std::get<CommitCheckpoint>(requests.back().operation).term =
          ServerTerm(terms_.present.value() + 1);
      break;
    case 6:
      exchange(1, 2, "");
      break;
    default:  // perhaps it is dead, or its round is over
      ask(commit);
      node.commits[node.store_requests] = *node.assignment;
  }
  return requests;
}

void SimCluster::LookAtJobs() {
  for (const rendezvous::JobKey& key : table_->JobsOf("")) {
    if (table_->FindState(key) == nullptr) Fail("a job without a state: " + key.run_id);
  }
  for (int job = 0; job < static_cast<int>(fates_.size()); ++job) {
    const JobOutcome* outcome = table_->FindOutcome(KeyOf(job));
    if (outcome != nullptr && outcome->reason.empty()) {
      Fail("an outcome without a reason: " + KeyOf(job).run_id);
    }
  }
}

void SimCluster::Lie(Incarnation id, RoundId round, int local_rank) {
  Worker* const worker = FindWorker(id, round, local_rank);
  if (worker == nullptr) return;
  ++coverage_.lies;
  StepAgent(id, agent::WorkerPromised{
                    .round = round.second,
                    .local_rank = LocalRank(local_rank),
                    .obeys = random_.Chance(0.7),
                    .floor = random_.Chance(0.5)
                                 ? std::optional<int64_t>(random_.Between(-1, kMostStepsOfALie))
                                 : std::nullopt,
                    .survives = random_.Chance(0.5),
                    .awaits_round = random_.Chance(0.5)});
  schedule_.After(random_.Between(absl::Milliseconds(1), absl::Seconds(10)),
                  [this, id, round, local_rank] { Lie(id, round, local_rank); });
}

}  // namespace muster::simulation
