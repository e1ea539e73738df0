#include "tests/simulation/sim_cluster.h"

#include <csignal>
#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace muster::simulation {
namespace {

constexpr size_t kEffectsKept = 50;
constexpr int kMaxStepsAtOneInstant = 2000;
// After the faults: every wait of the job in a row, and as much again.
constexpr absl::Duration kLivenessBound = absl::Minutes(15);

rendezvous::JobTableOptions TableOptions() {
  return {.term = ServerTerm(1), .lease = {}, .only_run_id = "sim", .first_instance = Instance(1)};
}

}  // namespace

void SimCoverage::Add(const SimCoverage& other) {
  rounds += other.rounds;
  restarts += other.restarts;
  membership_changes += other.membership_changes;
  losses += other.losses;
  successes += other.successes;
  job_failures += other.job_failures;
  timeouts += other.timeouts;
  instances += other.instances;
}

SimCluster::SimCluster(uint64_t seed, bool trace)
    : random_(seed),
      plan_(DrawPlan(random_)),
      schedule_(random_),
      trace_(trace),
      seed_(seed),
      table_(TableOptions()) {}

std::string SimCluster::Run() {
  for (int i = 0; i < plan_.num_nodes + plan_.num_late; ++i) {
    const bool is_late = i >= plan_.num_nodes;
    const absl::Duration spread = is_late ? plan_.safety_phase : plan_.start_spread;
    const std::optional<int> rank = plan_.settings.is_static ? std::optional(i) : std::nullopt;
    schedule_.After(random_.Between(absl::ZeroDuration(), spread),
                    [this, i, rank] { StartNode(absl::StrCat("node", i + 1), rank); });
  }
  schedule_.After(absl::Seconds(1), [this] { InjectFaults(); });
  schedule_.After(plan_.safety_phase, [this] { Heal(); });
  const MonoTime end = MonoTime::At(plan_.safety_phase + kLivenessBound);
  while (failure_.empty() && schedule_.RunNext(end)) {
    if (schedule_.steps_at_now() > kMaxStepsAtOneInstant) Fail("a timer spins");
  }
  if (failure_.empty()) {
    if (std::string broken = CheckEnd(); !broken.empty()) Fail(broken);
  }
  return failure_;
}

// --- Nodes

void SimCluster::StartNode(const std::string& name, std::optional<int> node_rank) {
  const Incarnation id(random_.Bits() | 1);
  Node& node = nodes_[id];
  node.incarnation = id;
  node.name = name;
  node.node_rank = node_rank;
  agent::AgentCoreOptions options{.node = {.name = name,
                                           .address = absl::StrCat("10.0.0.", nodes_.size()),
                                           .local_world_size = plan_.local_world_size,
                                           .node_rank = node_rank},
                                  .settings = plan_.settings,
                                  .orphan_timeout = absl::Minutes(3),
                                  .read_timeout = absl::Seconds(60),
                                  .server = "the rendezvous"};
  node.core = std::make_unique<agent::AgentCore>(options);
  StepAgent(id, agent::Started{});
  StepAgent(id, agent::LinkChanged{.up = true});
}

void SimCluster::StepAgent(Incarnation id, agent::Event event) {
  Node& node = nodes_.at(id);
  if (!node.is_alive || !failure_.empty()) return;
  if (node.is_paused) {
    node.held_events.push_back(std::move(event));
    return;
  }
  for (const agent::Effect& effect : node.core->Step(event, schedule_.now())) {
    Trace(node.name, agent::ToString(effect));
    Perform(node, effect);
  }
  if (std::string broken = node.core->CheckInvariants(); !broken.empty()) {
    Fail(absl::StrCat(node.name, ": ", broken));
  }
  ArmAgent(node);
}

void SimCluster::ArmAgent(Node& node) {
  const uint64_t timer = ++node.timer;
  const MonoTime deadline = node.core->NextDeadline();
  if (deadline.is_infinite() || !node.is_alive) return;
  schedule_.At(deadline, [this, id = node.incarnation, timer] {
    if (nodes_.at(id).timer == timer) StepAgent(id, agent::Tick{});
  });
}

void SimCluster::Perform(Node& node, const agent::Effect& effect) {
  const Incarnation id = node.incarnation;
  if (const auto* send = std::get_if<agent::SendReport>(&effect)) {
    SendReport(node, send->report);
  } else if (std::holds_alternative<agent::ReservePorts>(effect)) {
    agent::PortsReserved ports{.store_port = random_.Between(20000, 60000)};
    for (int i = 0; i < plan_.local_world_size; ++i) {
      ports.worker_ports.push_back(random_.Between(20000, 60000));
    }
    schedule_.After(absl::ZeroDuration(), [this, id, ports] { StepAgent(id, ports); });
  } else if (const auto* start = std::get_if<agent::StartWorkers>(&effect)) {
    StartWorkers(node, start->assignment);
  } else if (const auto* signal = std::get_if<agent::SignalWorkers>(&effect)) {
    SignalWorkers(node, signal->signal);
  } else if (std::holds_alternative<agent::SweepDescendants>(effect) ||
             std::holds_alternative<agent::AwaitDescendants>(effect)) {
    schedule_.After(absl::Milliseconds(1), [this, id] { StepAgent(id, agent::DescendantsGone{}); });
  } else if (const auto* finish = std::get_if<agent::Finish>(&effect)) {
    FinishNode(node, finish->outcome);
  }
}

void SimCluster::StartWorkers(Node& node, const Assignment& assignment) {
  CheckAssignment(node, assignment);
  for (const Worker& worker : node.workers) {
    if (worker.alive && !worker.is_unkillable)
      Fail(node.name + " starts a round over live workers (I11)");
  }
  node.assignment = assignment;
  node.workers.clear();
  for (int i = 0; i < assignment.local_world_size; ++i) {
    const bool faults = !is_healed_;
    const bool is_unkillable = faults && random_.Chance(plan_.unkillable_workers);
    node.workers.push_back({.local_rank = LocalRank(i),
                            .is_stubborn = random_.Chance(plan_.stubborn_workers),
                            .is_unkillable = is_unkillable});
    schedule_.After(absl::ZeroDuration(), [this, id = node.incarnation, assignment, i] {
      StepAgent(id, agent::WorkerSpawned{assignment.round, LocalRank(i), 1000 + i});
    });
    const absl::Duration jitter = random_.Between(absl::ZeroDuration(), absl::Seconds(1));
    if (faults && random_.Chance(plan_.worker_failures)) {
      ScheduleExit(node, LocalRank(i), random_.Unit() * plan_.work,
                   WorkerFailure{.exit_code = random_.Between(1, 100)});
    } else {
      ScheduleExit(node, LocalRank(i), plan_.work + jitter, std::nullopt);
    }
  }
}

void SimCluster::SignalWorkers(Node& node, int signal) {
  for (const Worker& worker : node.workers) {
    if (!worker.alive || worker.is_unkillable) continue;
    if (worker.is_stubborn && signal != SIGKILL) continue;
    ScheduleExit(node, worker.local_rank,
                 random_.Between(absl::Milliseconds(1), absl::Milliseconds(300)),
                 WorkerFailure{.signal = signal});
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
    if (!worker.alive) return;
    worker.alive = false;
    StepAgent(id, agent::WorkerExited{round, local_rank, failure});
  });
}

void SimCluster::FinishNode(Node& node, const JobOutcome& outcome) {
  node.finished = outcome;
  for (const Worker& worker : node.workers) {
    if (worker.alive && !worker.is_unkillable) Fail(node.name + " finished over live workers (A3)");
  }
  if (node.told && !node.was_signalled && *node.told != outcome && plan_.unkillable_workers == 0) {
    Fail(absl::StrCat(node.name, " was told \"", node.told->reason, "\" but ended with \"",
                      outcome.reason, "\""));
  }
  schedule_.After(absl::Milliseconds(5), [this, id = node.incarnation] {
    Node& done = nodes_.at(id);
    done.is_alive = false;
    const int stream = ++done.stream;
    Deliver([this, id, stream] {
      if (nodes_.at(id).stream == stream)
        StepServer(table_.OnDisconnect(job_, id, schedule_.now()));
    });
  });
}

// --- The server

void SimCluster::StepServer(std::vector<rendezvous::JobTable::JobEffect> effects) {
  for (rendezvous::JobTable::JobEffect& effect : effects) {
    Observe(effect);
    auto* send = std::get_if<rendezvous::SendDirective>(&effect.effect);
    if (send == nullptr) continue;
    const Incarnation to = send->to;
    if (!nodes_.at(to).is_connected) continue;
    Deliver([this, to, directive = send->directive] {
      Node& node = nodes_.at(to);
      if (!node.is_connected || !node.is_alive) return;
      if (const auto* end = std::get_if<EndJob>(&directive.body)) node.told = end->outcome;
      StepAgent(to, agent::DirectiveArrived{directive});
    });
  }
  if (std::string broken = table_.CheckInvariants(); !broken.empty()) Fail(broken);
  ArmServer();
}

void SimCluster::ArmServer() {
  const uint64_t timer = ++server_timer_;
  const MonoTime deadline = table_.NextDeadline();
  if (deadline.is_infinite()) return;
  schedule_.At(deadline, [this, timer] {
    if (timer == server_timer_) StepServer(table_.Tick(schedule_.now()));
  });
}

void SimCluster::Observe(const rendezvous::JobTable::JobEffect& effect) {
  if (const auto* announce = std::get_if<rendezvous::Announce>(&effect.effect)) {
    Trace("server", rendezvous::ToString(*announce));
    coverage_.rounds += announce->event == "round_completed";
    coverage_.restarts += absl::StartsWith(announce->reason, "restart ");
    coverage_.membership_changes +=
        announce->event == "round_stopped" && !absl::StartsWith(announce->reason, "restart ");
    coverage_.losses += announce->event == "node_lost";
    return;
  }
  const auto* send = std::get_if<rendezvous::SendDirective>(&effect.effect);
  if (send == nullptr) return;
  Trace("server", absl::StrCat("to ", nodes_.at(send->to).name, " revision=",
                               send->directive.revision, " ", ToString(send->directive.body)));
  const auto* end = std::get_if<EndJob>(&send->directive.body);
  if (end == nullptr) return;
  const auto [place, is_new] = outcomes_.emplace(send->directive.instance, end->outcome);
  const rendezvous::JobState* state = table_.FindState(job_);
  if (is_new) {
    ++coverage_.instances;
    coverage_.successes += end->outcome.exit_code == 0;
    coverage_.job_failures += end->outcome.root_cause.has_value();
    coverage_.timeouts += end->outcome.exit_code == 4;
  }
  if (place->second == end->outcome) return;
  // While the job is ending, failures still come in, and only who leaves is told early.
  const bool is_final = state == nullptr || state->phase == rendezvous::JobPhase::kEnded;
  if (!is_final || nodes_.at(send->to).was_signalled) return;
  Fail(absl::StrCat("two outcomes of one job: \"", place->second.reason, "\" and \"",
                    end->outcome.reason, "\""));
}

// --- The network

void SimCluster::Deliver(std::function<void()> act) {
  const SimPlan& plan = plan_;
  const bool faults = !is_healed_;
  const int copies = (faults && random_.Chance(plan.loss) ? 0 : 1) +
                     (faults && random_.Chance(plan.duplication) ? 1 : 0);
  for (int i = 0; i < copies; ++i) {
    absl::Duration delay = random_.Exponential(plan.delay_mean);
    if (faults && random_.Chance(plan.reorder)) {
      delay += random_.Between(absl::ZeroDuration(), absl::Seconds(3));
    }
    schedule_.After(delay, act);
  }
}

void SimCluster::SendReport(Node& node, AgentReport report) {
  if (!node.is_connected) return;
  Deliver([this, id = node.incarnation, report = std::move(report)] {
    StepServer(table_.OnReport(job_, id, report, schedule_.now()));
  });
}

void SimCluster::BreakStream(Node& node) {
  if (!node.is_connected) return;
  const Incarnation id = node.incarnation;
  node.is_connected = false;
  const int stream = ++node.stream;
  Trace(node.name, "stream breaks");
  StepAgent(id, agent::LinkChanged{.up = false, .detail = "the stream broke"});
  schedule_.After(random_.Exponential(plan_.delay_mean), [this, id, stream] {
    if (nodes_.at(id).stream == stream) StepServer(table_.OnDisconnect(job_, id, schedule_.now()));
  });
  schedule_.After(random_.Between(absl::Milliseconds(10), absl::Seconds(20)),
                  [this, id] { Reconnect(id); });
}

void SimCluster::Reconnect(Incarnation id) {
  Node& node = nodes_.at(id);
  if (!node.is_alive || node.is_connected) return;
  node.is_connected = true;
  ++node.stream;
  StepAgent(id, agent::LinkChanged{.up = true});
}

// --- Faults

void SimCluster::Crash(Node& node) {
  Trace(node.name, "crashes");
  node.is_alive = false;
  node.is_connected = false;
  const Incarnation id = node.incarnation;
  const int stream = ++node.stream;
  // A dead process closes its stream; a dead machine says nothing.
  if (random_.Chance(0.5)) {
    schedule_.After(random_.Exponential(plan_.delay_mean), [this, id, stream] {
      if (nodes_.at(id).stream == stream) {
        StepServer(table_.OnDisconnect(job_, id, schedule_.now()));
      }
    });
  }
  if (!random_.Chance(0.8)) return;
  schedule_.After(random_.Between(absl::Seconds(1), absl::Seconds(20)),
                  [this, name = node.name, rank = node.node_rank] { StartNode(name, rank); });
}

void SimCluster::Pause(Node& node, absl::Duration length) {
  if (node.is_paused) return;
  Trace(node.name, absl::StrCat("is paused for ", absl::FormatDuration(length)));
  node.is_paused = true;
  schedule_.After(length, [this, id = node.incarnation] { Resume(id); });
}

void SimCluster::Resume(Incarnation id) {
  Node& node = nodes_.at(id);
  node.is_paused = false;
  std::vector<agent::Event> held = std::move(node.held_events);
  node.held_events.clear();
  for (agent::Event& event : held) StepAgent(id, std::move(event));
}

void SimCluster::InjectFaults() {
  if (is_healed_) return;
  std::vector<Incarnation> alive;
  for (const auto& [id, node] : nodes_) {
    if (node.is_alive && !node.finished) alive.push_back(id);
  }
  for (const Incarnation id : alive) {
    Node& node = nodes_.at(id);
    if (random_.Chance(plan_.stream_breaks)) BreakStream(node);
    if (random_.Chance(plan_.pauses)) {
      Pause(node, random_.Between(absl::ZeroDuration(), absl::Seconds(30)));
    }
    if (random_.Chance(plan_.signals)) {
      node.was_signalled = true;
      StepAgent(id, agent::SignalReceived{random_.Chance(0.5) ? SIGTERM : SIGINT});
    }
    if (random_.Chance(plan_.crashes)) Crash(node);
  }
  schedule_.After(absl::Seconds(1), [this] { InjectFaults(); });
}

void SimCluster::Heal() {
  Trace("simulation", "faults end");
  is_healed_ = true;
  std::vector<Incarnation> ids;
  for (const auto& [id, node] : nodes_) ids.push_back(id);
  for (const Incarnation id : ids) {
    Resume(id);
    Reconnect(id);
  }
}

// --- Checks

void SimCluster::CheckAssignment(const Node& node, const Assignment& assignment) {
  const std::pair key(assignment.instance, assignment.round);
  const auto [holder, is_new] =
      history_[key].emplace(assignment.node_rank.value(), node.incarnation);
  if (holder->second != node.incarnation) {
    Fail(absl::StrCat("I1: node rank ", assignment.node_rank.value(), " of round ",
                      ToString(assignment.round), " given twice"));
  }
  if (!is_new) Fail(node.name + " starts one round twice");
  const auto size = world_sizes_.emplace(key, assignment.world_size).first;
  const int expected = assignment.num_nodes * plan_.local_world_size;
  if (size->second != assignment.world_size || assignment.world_size != expected) {
    Fail(absl::StrCat("I2: world sizes ", size->second, " and ", assignment.world_size));
  }
  if (static_cast<int>(assignment.peers.size()) != assignment.num_nodes) Fail("I2: peers missing");
}

std::string SimCluster::CheckEnd() const {
  std::vector<std::string> unfinished;
  for (const auto& [unused, node] : nodes_) {
    if (node.is_alive && !node.finished) {
      unfinished.push_back(absl::StrCat(node.name, " (", ToString(node.core->phase()), ")"));
    }
  }
  if (!unfinished.empty()) {
    return absl::StrCat("L6: still not finished: ", absl::StrJoin(unfinished, ", "));
  }
  if (table_.size() != 0) return "I14: the server still knows the job";
  if (plan_.is_calm() && coverage_.successes == 0) return "L1: a calm job did not succeed";
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
  failure_ = absl::StrCat("seed ", seed_, ": ", what, "\nreplay: sim_cluster_test --seed=", seed_,
                          "\nplan: ", ToString(plan_), "\n", absl::StrJoin(last_effects_, "\n"));
}

}  // namespace muster::simulation
