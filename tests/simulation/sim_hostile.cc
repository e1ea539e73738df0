// What a server hears that no agent of ours says: a member that lies, newcomers that may not come
// in, workers that say of themselves what comes to their minds. Nothing that the others rely on may
// break.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/simulation/sim_cluster.h"

namespace muster::simulation {
namespace {

constexpr int kMany = 1000000;
constexpr uint64_t kHostile = 0xbad;  // the incarnation of each job's, plus the job

}  // namespace

void SimCluster::InjectForeignReports(int job) {
  if (table_ == nullptr || is_stalling_) return;
  const bool is_last = job > 0 && job + 1 == static_cast<int>(plan_.jobs.size());
  if (is_last && random_.Chance(plan_.hostile_members)) {
    fates_[job].causes.has_hostile_member = true;
    SendForeign(job, Incarnation(kHostile + static_cast<uint64_t>(job)), DrawHostileReport(job));
  }
  if (random_.Chance(plan_.misfits)) CheckMisfit(job);
}

void SimCluster::SendForeign(int job, Incarnation from, const AgentReport& report) {
  Trace("foreign", ToString(report));
  AtServer([&] { return table_->OnReport(KeyOf(job), from, report, ServerNow()); });
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
  const int kind = random_.Between(0, settings.is_static ? 13 : 9);
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
      report.node.node_rank.reset();
      break;
    case 11:
      report.node.node_rank = settings.max_nodes;
      break;
    case 12:
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
    auto effects = table_->OnReport(KeyOf(job), from, report, ServerNow());
    for (const auto& effect : effects) {
      const auto* send = std::get_if<rendezvous::SendDirective>(&effect.effect);
      if (send == nullptr || send->to != from) continue;
      const auto* refuse = std::get_if<Refuse>(&send->directive.body);
      is_refused |= refuse != nullptr && absl::IsInvalidArgument(refuse->status);
    }
    return effects;
  });
  state = table_ == nullptr ? nullptr : table_->FindState(KeyOf(job));
  const bool is_over = state == nullptr || state->phase == rendezvous::JobPhase::kEnded;
  coverage_.misfits_refused += is_refused;
  if (is_over || is_refused) return;
  Fail(absl::StrCat("a newcomer that may not come in (", kind, ") is not refused"));
}

void SimCluster::Lie(Incarnation id, RoundId round, int local_rank) {
  Worker* const worker = FindWorker(id, round, local_rank);
  if (worker == nullptr) return;
  ++coverage_.lies;
  StepAgent(id, agent::WorkerPromised{.round = round.second,
                                      .local_rank = LocalRank(local_rank),
                                      .obeys = random_.Chance(0.7),
                                      .floor = random_.Chance(0.5)
                                                   ? std::optional<int64_t>(random_.Between(-1, 60))
                                                   : std::nullopt,
                                      .survives = random_.Chance(0.5),
                                      .awaits_round = random_.Chance(0.5)});
  schedule_.After(random_.Between(absl::Milliseconds(1), absl::Seconds(10)),
                  [this, id, round, local_rank] { Lie(id, round, local_rank); });
}

}  // namespace muster::simulation
