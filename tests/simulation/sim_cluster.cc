#include "tests/simulation/sim_cluster.h"

#include <csignal>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/base/exit_codes.h"

namespace muster::simulation {
namespace {

constexpr int kMaxStepsAtOneInstant = 2000;
// The most that a job needs after the faults: all its waits in a row, the longest hold-back among
// them.
constexpr absl::Duration kLivenessBound = absl::Minutes(80);

}  // namespace

void SimCoverage::Add(const SimCoverage& other) {
  rounds += other.rounds;
  restarts += other.restarts;
  membership_changes += other.membership_changes;
  losses += other.losses;
  deaths_noticed += other.deaths_noticed;
  successes += other.successes;
  job_failures += other.job_failures;
  timeouts += other.timeouts;
  server_lives += other.server_lives;
  unrecorded_rounds += other.unrecorded_rounds;
  silences += other.silences;
  held_back += other.held_back;
  unique_ids += other.unique_ids;
  strangers_survived += other.strangers_survived;
  restored_jobs += other.restored_jobs;
  commits += other.commits;
  commits_refused += other.commits_refused;
  misfits_refused += other.misfits_refused;
  states_damaged += other.states_damaged;
  written_unknown += other.written_unknown;
  writes_lost += other.writes_lost;
  lies += other.lies;
  growths_at_commits += other.growths_at_commits;
  stops_at_one_step += other.stops_at_one_step;
  jobs_stopped += other.jobs_stopped;
  nodes_drained += other.nodes_drained;
  nodes_replaced += other.nodes_replaced;
  stops_by_signals += other.stops_by_signals;
  stops_restored += other.stops_restored;
  kept += other.kept;
  parked_deaths += other.parked_deaths;
  survivors_ended += other.survivors_ended;
  inquiries += other.inquiries;
  signals_kept += other.signals_kept;
  failures_kept += other.failures_kept;
  rounds_checked += other.rounds_checked;
  rounds_parted += other.rounds_parted;
  jobs_parted += other.jobs_parted;
  checks_passed += other.checks_passed;
  checks_failed += other.checks_failed;
  rounds_without_unfit += other.rounds_without_unfit;
}

SimPlan SimCluster::PlanOf(uint64_t seed) {
  SimRandom random(seed);
  return DrawPlan(random);
}

// The run draws from a sequence of its own, so that it stays alike when families are taken away.
SimCluster::SimCluster(uint64_t seed, SimPlan plan, bool trace)
    : plan_(std::move(plan)),
      random_(~seed),
      schedule_(random_),
      trace_(trace),
      seed_(seed),
      fates_(plan_.jobs.size()) {}

std::string SimCluster::Run() {
  if (!plan_.is_embedded) StartServer();
  for (int j = 0; j < static_cast<int>(plan_.jobs.size()); ++j) {
    const SimJobPlan& job = plan_.jobs[j];
    for (int i = 0; i < job.num_nodes + job.num_late; ++i) {
      const bool is_late = i >= job.num_nodes;
      const bool hosts = plan_.is_embedded && i == 0;
      const absl::Duration spread = is_late ? plan_.safety_phase : job.start_spread;
      const std::optional<int> rank = job.settings.is_static ? std::optional(i) : std::nullopt;
      const std::string name = absl::StrCat(std::string(1, "nxyzw"[j]), i + 1);
      schedule_.After(random_.Between(absl::ZeroDuration(), spread),
                      [this, j, name, rank, hosts] { StartNode(j, name, rank, hosts); });
    }
  }
  schedule_.After(absl::Seconds(1), [this] { InjectFaults(); });
  Sample();
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

rendezvous::JobKey SimCluster::KeyOf(int job) { return {"", absl::StrCat("job", job)}; }

int SimCluster::JobOfKey(const rendezvous::JobKey& key) {
  int job = 0;
  return absl::SimpleAtoi(key.run_id.substr(3), &job) ? job : 0;
}

void SimCluster::StartNode(int job, const std::string& name, std::optional<int> node_rank,
                           bool hosts) {
  const SimJobPlan& plan = plan_.jobs[job];
  const Incarnation id(random_.Bits() | 1);
  Node& node = nodes_[id];
  node.incarnation = id;
  node.job = job;
  node.name = name;
  node.node_rank = node_rank;
  node.hosts = hosts;
  node.clock_rate = 1 + plan_.drifts * (2 * random_.Unit() - 1);
  if (hosts && table_ == nullptr) StartServer();
  if (hosts) table_->SetHost(id);
  agent::AgentCoreOptions options{.node = {.name = name,
                                           .address = absl::StrCat("address-of-", name),
                                           .local_world_size = plan.local_world_size,
                                           .node_rank = node_rank},
                                  .settings = plan.settings,
                                  .read_timeout = absl::Seconds(60),
                                  .server = "the rendezvous",
                                  .hosts_server = hosts,
                                  .checks_node = plan_.failed_checks > 0};
  node.core = std::make_unique<agent::AgentCore>(options);
  node.is_connected = false;
  StepAgent(id, agent::Started{});
  Reconnect(id);
}

void SimCluster::StepAgent(Incarnation id, agent::Event event) {
  Node& node = nodes_.at(id);
  if (!node.is_alive || !failure_.empty()) return;
  if (node.is_paused) {
    node.held_events.push_back(std::move(event));
    return;
  }
  const auto* const changed = std::get_if<agent::LastCallsChanged>(&event);
  if (changed != nullptr) NoteHeardInquiry(node, *changed);
  for (const agent::Effect& effect : node.core->Step(event, NowOf(node))) {
    Trace(node.name, agent::ToString(effect));
    Perform(node, effect);
  }
  node.is_leaving = node.core->is_leaving();
  if (const agent::NodePhase phase = node.core->phase(); phase != node.phase) {
    node.phase = phase;
    Trace(node.name, absl::StrCat("is ", ToString(phase)));
  }
  if (std::string broken = node.core->CheckInvariants(); !broken.empty()) {
    Fail(absl::StrCat(node.name, ": ", broken));
  }
  const auto* const exited = std::get_if<agent::WorkerExited>(&event);
  if (exited != nullptr) CheckFailureIsTaken(node, *exited);
  ArmAgent(node);
}

void SimCluster::ArmAgent(Node& node) {
  const uint64_t timer = ++node.timer;
  const MonoTime deadline = node.core->NextDeadline();
  if (deadline.is_infinite() || !node.is_alive) return;
  // Rounded up, or a timer would come before its time, again and again.
  const MonoTime when =
      MonoTime::At(deadline.since_zero() / node.clock_rate) + absl::Microseconds(1);
  schedule_.At(when, [this, id = node.incarnation, timer] {
    if (nodes_.at(id).timer == timer) StepAgent(id, agent::Tick{});
  });
}

void SimCluster::Perform(Node& node, const agent::Effect& effect) {
  const Incarnation id = node.incarnation;
  if (const auto* send = std::get_if<agent::SendReport>(&effect)) {
    SendReport(node, send->report);
  } else if (std::holds_alternative<agent::ReservePorts>(effect)) {
    if (!is_healed_ && random_.Chance(plan_.port_failures)) {
      NoteCause(node, kExitFailure);
      schedule_.After(absl::ZeroDuration(), [this, id] {
        StepAgent(id, agent::PortsFailed{absl::UnavailableError("no port is free")});
      });
      return;
    }
    agent::PortsReserved ports{.store_port = random_.Between(20000, 60000)};
    for (int i = 0; i < JobOf(node).local_world_size; ++i) {
      ports.worker_ports.push_back(random_.Between(20000, 60000));
    }
    schedule_.After(absl::ZeroDuration(), [this, id, ports] { StepAgent(id, ports); });
  } else if (std::holds_alternative<agent::RunCheck>(effect)) {
    RunCheck(node);
  } else if (std::holds_alternative<agent::EndCheck>(effect)) {
    node.check = {};
  } else if (const auto* start = std::get_if<agent::StartWorkers>(&effect)) {
    CheckIsFit(node);
    node.heard_inquiry = {};
    node.signals_kept = 0;
    if (CheckPairs(node, start->assignment).empty()) {
      StartWorkers(node, start->assignment, start->kept);
    } else {
      HoldWorkers(node, start->assignment);
    }
  } else if (const auto* signal = std::get_if<agent::SignalWorkers>(&effect)) {
    SignalWorkers(node, *signal);
  } else if (std::holds_alternative<agent::PrepareSignal>(effect)) {
    PrepareSignal(node);
  } else if (const auto* end = std::get_if<agent::EndWorker>(&effect)) {
    ScheduleExit(node, end->local_rank, absl::ZeroDuration(), WorkerFailure{.signal = SIGKILL});
  } else if (const auto* over = std::get_if<agent::TellRoundOver>(&effect)) {
    TellRoundOver(node, over->is_followed);
  } else if (const auto* stop = std::get_if<agent::TellStop>(&effect)) {
    TellStop(node, stop->stop);
  } else if (std::holds_alternative<agent::SweepDescendants>(effect) ||
             std::holds_alternative<agent::AwaitDescendants>(effect)) {
    EndLeftovers(node);
  } else if (std::holds_alternative<agent::NameDescendants>(effect)) {
    schedule_.After(absl::Milliseconds(1),
                    [this, id] { StepAgent(id, agent::DescendantsNamed{{"a program (pid 7)"}}); });
  } else if (const auto* finish = std::get_if<agent::Finish>(&effect)) {
    FinishNode(node, finish->outcome);
  }
}

void SimCluster::FinishNode(Node& node, const JobOutcome& outcome) {
  node.finished = outcome;
  CheckFinish(node, outcome);
  // The host tells the others before it goes, and its server goes with it.
  if (node.hosts && table_ != nullptr) {
    fates_[node.job].was_host_lost = true;
    if (node.is_leaving) {
      AtServer([this, name = node.name, outcome] {
        const int signal = outcome.exit_code > 128 ? outcome.exit_code - 128 : 0;
        return table_->OnHostLeaving({.signal = signal, .reason = outcome.reason}, name,
                                     ServerNow());
      });
    }
  }
  const absl::Duration linger = node.hosts ? absl::Seconds(10) : absl::Milliseconds(5);
  schedule_.After(linger, [this, id = node.incarnation, life = server_life_] {
    Node& done = nodes_.at(id);
    done.is_alive = false;
    const int stream = ++done.stream;
    if (done.hosts) {
      if (life == server_life_) CrashServer();  // else a new start of the node has its own
    } else {
      TellDisconnect(id, stream);
    }
  });
}

}  // namespace muster::simulation
