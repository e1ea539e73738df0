#include "agent/agent.h"

#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/machine/descendants.h"
#include "agent/process/runtime_directory.h"
#include "agent/workers/worker_speaker.h"
#include "proto/base/status_macros.h"
#include "proto/io/log.h"

namespace muster::agent {
namespace {

AgentCoreOptions MakeCoreOptions(const AgentOptions& options) {
  AgentCoreOptions core;
  core.node = options.node;
  core.settings = MakeRendezvousSettings(options.spec);
  core.lease = options.spec.lease;
  core.read_timeout = options.spec.read_timeout;
  core.server = options.server;
  core.hosts_server = options.hosts_server;
  core.checks_node = !options.spec.node_programs.check.command.empty();
  core.stop_signals = options.spec.signals_to_handle;
  return core;
}

LogPumpOptions MakePumpOptions(const AgentOptions& options) {
  LogPumpOptions pump;
  pump.logs = options.spec.logs;
  pump.run_directory = options.run_directory;
  if (options.run_directory_is_temporary) {
    pump.topmost_directory = options.run_directory.substr(0, options.run_directory.rfind('/'));
  }
  pump.host = options.node.name;
  pump.role = options.spec.role;
  pump.has_hook = !options.spec.node_programs.round_hook.program.empty();
  // Where there may be another round, some of its workers may survive it.
  pump.keeps_workers =
      options.spec.max_restarts > 0 || options.spec.min_nodes < options.spec.max_nodes;
  const auto terminal = options.environment.find("TERM");
  pump.cursor_moves = terminal == options.environment.end() || terminal->second != "dumb";
  return pump;
}

log::Level ToLogLevel(Announce::Level level) {
  switch (level) {
    case Announce::Level::kInfo:
      return log::Level::kInfo;
    case Announce::Level::kWarning:
      return log::Level::kWarning;
    case Announce::Level::kError:
      return log::Level::kError;
  }
  return log::Level::kInfo;
}

}  // namespace

Agent::Agent(asio::io_context& loop, AgentOptions options, GuardianHandle guardian,
             std::unique_ptr<rendezvous::RendezvousLink> link,
             std::function<void(JobOutcome)> on_finished)
    : options_(std::move(options)),
      runner_(loop, MakeCoreOptions(options_), *this),
      status_(loop,
              [](const std::string& text) { log::Write(log::Level::kInfo, "waiting", text); }),
      pump_(loop, MakePumpOptions(options_)),
      link_(std::move(link)),
      ending_(
          loop,
          {.runtime_directory = options_.runtime_directory,
           .settle_run_directory =
               [this](std::function<void()> settled) { SettleRunDirectory(std::move(settled)); },
           .on_finished = std::move(on_finished)},
          guardian_, *link_),
      worker_service_(
          loop, {.forward = [this](const StoreRequest& request) { Forward(request); },
                 .may_publish = [this] { return core().MayPublish(MonoNow()); },
                 .may_speak = [this](LocalRank worker,
                                     pid_t pid) { return CheckSpeaker(roster_, worker, pid); },
                 .on_hello =
                     [this](LocalRank worker) {
                       Feed(WorkerGreeted{assignment().round, worker});
                     },
                 .on_silent_leave = [this](LocalRank worker) { exits_.OnSilentLeave(worker); },
                 .on_promise =
                     [this](LocalRank worker, WorkerPromise promise) {
                       Feed(WorkerPromised{assignment().round, worker, promise.obeys, promise.floor,
                                           promise.survives, promise.awaits_round});
                     }}),
      signals_(loop, roster_, guardian_, options_.signals_may_reach_workers),
      watch_(loop, options_.watch, MakeWatchListener()),
      hang_watch_(
          loop, MakeHangWatchOptions(),
          [this](int pid, const std::string& why) { signals_.End(roster_.FindByPid(pid), why); },
          [this](const hangs::NodeWord& word) { link_->SendWatchWord(word); }),
      sight_(loop, {.options = options_,
                    .core = core(),
                    .roster = roster_,
                    .hang_watch = hang_watch_,
                    .link = *link_,
                    .kernel_lines = [this] { return exits_.KernelLines(); }}),
      exits_({.options = options_,
              .roster = roster_,
              .pump = pump_,
              .hang_watch = hang_watch_,
              .followers = sight_.followers(),
              .on_exit = [this](WorkerExited exited) { Feed(std::move(exited)); }}),
      round_(loop,
             {.options = options_,
              .roster = roster_,
              .pump = pump_,
              .status = status_,
              .hang_watch = hang_watch_,
              .guardian = guardian_,
              .shell = *this},
             [this](StoreOperation operation, auto then) {
               worker_service_.AskForAgent(std::move(operation), std::move(then));
             }),
      guardian_(loop, std::move(guardian), MakeGuardianListener()) {}

absl::Status Agent::Start() {
  guardian_.RemoveAtEnd(options_.runtime_directory);
  MUSTER_RETURN_IF_ERROR(
      worker_service_.Listen(absl::StrCat(options_.runtime_directory, "/agent.sock")));
  MUSTER_RETURN_IF_ERROR(
      sight_.desk().Listen(absl::StrCat(options_.runtime_directory, "/", kSightSocketName)));
  round_.PrepareTorchPrograms();
  MUSTER_RETURN_IF_ERROR(watch_.Start());
  // The pipe is ours only once the watch has made it.
  if (!options_.watch.timer_pipe.empty()) guardian_.RemoveAtEnd(options_.watch.timer_pipe);
  if (options_.watch.health_port != 0) {
    // The health port is open at every address, as users of the variable expect.
    const absl::StatusOr<int> port = sight_.health().Listen("", options_.watch.health_port);
    if (!port.ok()) {
      log::Write(log::Level::kWarning, "health_port",
                 absl::StrCat("TORCHELASTIC_HEALTH_CHECK_PORT=", options_.watch.health_port,
                              ": cannot listen: ", port.status().message()));
    }
  }
  sight_.diary().Begin();
  Feed(Started{});
  link_->Open(MakeLinkListener());
  return absl::OkStatus();
}

void Agent::OnSignal(int signal) {
  signals_.NoteReceived(signal);
  Feed(SignalReceived{signal});
}

void Agent::OnTimeRunsOut(const std::string& reason) { Feed(TimeRunsOut{reason}); }

void Agent::OnWindowSize() {
  pump_.OnWindowSize();
  signals_.TellWindowSize();
}

void Agent::ReturnToTerminal() {
  pump_.ReturnToTerminal();
  OnWindowSize();
}

void Agent::PrintLine(const std::string& line) { pump_.PrintLine(line); }

// --- Effects

void Agent::OnEffect(const Effect& effect) {
  std::visit([this](const auto& e) { Perform(e); }, effect);
}

void Agent::Perform(const SendReport& effect) { link_->SendReport(effect.report); }

void Agent::Perform(const ReservePorts&) { Feed(round_.ReservePorts()); }

void Agent::Perform(const RunCheck&) { round_.RunCheck(); }

void Agent::Perform(const EndCheck&) { round_.programs().check.Cancel(); }

void Agent::Perform(const StartWorkers& effect) {
  // One that has died since it was kept is replaced.
  roster_.StartRound(effect.assignment, effect.kept);
  signals_.StartRound();
  worker_service_.StartRound(assignment().round, assignment().instance);
  watch_.StartRound();
  hang_watch_.OnReformed();
  exits_.StartRound();
  log::Write(log::Level::kDebug, "round_started", assignment().reason,
             {{"run", options_.spec.run_id},
              {"round", ToString(assignment().round)},
              {"node", options_.node.name},
              {"world_size", absl::StrCat(assignment().world_size)}});
  sight_.diary().NoteRound();
  round_.Start();
}

void Agent::Perform(const SignalWorkers& effect) {
  if (core().phase() == NodePhase::kStopping) round_.Leave();
  signals_.Send(effect);
}

void Agent::Perform(const PrepareSignal& effect) {
  if (core().phase() == NodePhase::kStopping) round_.Leave();
  if (effect.signal != 0) signals_.Prepare(effect);
}

void Agent::Perform(const TellRoundOver& effect) {
  round_.Leave();
  worker_service_.TellRoundOver(effect.is_followed, effect.reason);
}

void Agent::Perform(const EndWorker& effect) {
  signals_.End(roster_.FindByLocalRank(effect.local_rank), effect.why);
}

void Agent::Perform(const TellStop& effect) { worker_service_.TellStop(effect.stop); }

void Agent::Perform(const SweepDescendants& effect) { guardian_.Sweep(effect.signal); }

void Agent::Perform(const AwaitDescendants&) { guardian_.Sweep(0); }

void Agent::Perform(const NameDescendants&) { guardian_.ListStrays(); }

void Agent::Perform(const ShowStatus& effect) { status_.Show(effect.text); }

void Agent::Perform(const Announce& effect) {
  log::Write(ToLogLevel(effect.level), effect.event, effect.text,
             {{"run", options_.spec.run_id},
              {"round", ToString(core().round())},
              {"node", options_.node.name}});
  sight_.diary().NoteSaid(core().round(), effect.text);
}

void Agent::Perform(const Finish& effect) {
  round_.torch_store().EndRound();
  sight_.diary().End(effect.outcome);
  pump_.CloseAttempt();
  worker_service_.Close();
  watch_.Stop();
  hang_watch_.OnStopping();
  sight_.Close();
  ending_.Begin(effect);
}

void Agent::SettleRunDirectory(std::function<void()> settled) {
  if (options_.run_directory_is_temporary && !hang_watch_.HasWritten()) {
    pump_.RemoveRunIfUnused(kFarewell, std::move(settled));
  } else {
    sight_.diary().Close(std::move(settled));
  }
}

void Agent::FlushOutput() { pump_.FlushConsole(kFarewell); }

// --- The rendezvous

void Agent::Forward(StoreRequest request) {
  if (auto* commit = std::get_if<CommitCheckpoint>(&request.operation))
    commit->term = core().term();
  link_->SendStoreRequest(request);
}

rendezvous::LinkListener Agent::MakeLinkListener() {
  return {.on_directive = [this](Directive d) { Feed(DirectiveArrived{std::move(d)}); },
          .on_store_reply = [this](StoreReply reply) { worker_service_.OnReply(reply); },
          .on_watch_order = [this](const hangs::WatchOrder& order) { hang_watch_.OnOrder(order); },
          .on_inquiry = [this](const Inquiry& inquiry) { sight_.desk().OnInquiry(inquiry); },
          .on_inquiry_answer =
              [this](InquiryAnswer answer) { sight_.desk().OnAnswer(std::move(answer)); },
          .on_lease =
              [this](absl::Duration lease, absl::Duration renew_interval) {
                Feed(LeaseTold{lease, renew_interval});
              },
          .on_state =
              [this](bool up, std::string detail, absl::Status fatal) {
                Feed(LinkChanged{up, std::move(detail), std::move(fatal)});
              }};
}

// --- The guardian

GuardianListener Agent::MakeGuardianListener() {
  return {
      .on_spawned = [this](uint64_t id, pid_t pid, UniqueFd,
                           bool is_forked) { OnSpawned(id, pid, is_forked); },
      .on_spawn_failed = [this](uint64_t id, absl::Status status) { OnSpawnFailed(id, status); },
      .on_exited = [this](const WorkerExit& exit) { OnExited(exit); },
      .on_warm = [this](const WarmState& state) { round_.warm().OnState(state); },
      .on_empty =
          [this] {
            pump_.CloseAttempt(roster_.LocalRanks());
            Feed(DescendantsGone{});
          },
      .on_strays =
          [this](const std::vector<pid_t>& pids) {
            DescendantsNamed named;
            for (const pid_t pid : pids) {
              named.names.push_back(absl::StrCat(CommandOf(pid), " (pid ", pid, ")"));
            }
            Feed(std::move(named));
          },
      .on_lost = [this](const std::string& reason) { OnGuardianLost(reason); }};
}

// Its pidfd is not kept: hundreds of workers share one table of descriptors.
void Agent::OnSpawned(uint64_t worker_id, int pid, bool is_forked) {
  round_.warm().OnSpawned(is_forked);
  RunningWorker* const worker = roster_.Find(worker_id);
  if (worker == nullptr) return;
  worker->pid = pid;
  const std::optional<ProcessInfo> process = ReadProcess(pid);
  worker->start_time = process ? process->start_time : 0;
  OnRuns(*worker, is_forked ? &status::WorkerStarts::forked : &status::WorkerStarts::fresh);
}

void Agent::OnRuns(const RunningWorker& worker, int status::WorkerStarts::*how) {
  round_.torch_store().AddWorker(worker.rank, worker.pid);
  hang_watch_.OnSpawned(worker.local_rank.value(), worker.pid);
  sight_.diary().NoteStart(how, round_.warm().why_afresh());
  Feed(WorkerSpawned{worker.round, worker.local_rank, worker.pid});
}

void Agent::OnCannotStart(LocalRank local_rank, const absl::Status& why) {
  if (roster_.IsKept(local_rank)) {
    signals_.End(roster_.FindByLocalRank(local_rank), std::string(why.message()));
  } else {
    exits_.OnSpawnFailed(roster_.Add(local_rank).id, why);
  }
}

void Agent::OnPlaceOfKept(LocalRank local_rank, std::vector<std::string> environment) {
  RunningWorker* const worker = roster_.FindByLocalRank(local_rank);
  if (worker == nullptr || !std::exchange(worker->is_kept, false)) return;
  guardian_.SignalGroup(worker->id, SIGWINCH);  // its terminal may have another size
  OnRuns(*worker, &status::WorkerStarts::kept);
  if (worker_service_.SendNextRound(local_rank, environment)) {
    Feed(WorkerPromised{.round = assignment().round, .local_rank = local_rank, .survives = true});
  } else {
    signals_.End(roster_.FindByLocalRank(local_rank),
                 "it lost its connection to the agent while it awaited this round");
  }
}

void Agent::OnSpawnFailed(uint64_t worker_id, const absl::Status& status) {
  if (round_.programs().OnSpawnFailed(worker_id, status)) return;
  exits_.OnSpawnFailed(worker_id, status);
}

void Agent::OnExited(const WorkerExit& exit) {
  if (round_.programs().OnExited(exit)) return;
  exits_.OnExited(exit);
}

// --- The watch

HangWatchOptions Agent::MakeHangWatchOptions() {
  const WatchMode mode = EffectiveWatch(options_.spec);
  return {.is_on = mode != WatchMode::kOff,
          .ends_workers = mode == WatchMode::kRestart || mode == WatchMode::kReplace,
          .may_replace = mode == WatchMode::kReplace,
          .hang_timeout = options_.spec.hang_timeout,
          .grace = options_.spec.shutdown_timeout,
          .run_id = options_.spec.run_id,
          .node = options_.node.name,
          .report_directory = options_.run_directory,
          .on_said =
              [this](WatchEvent event, const std::string& text) {
                sight_.diary().NoteWatch(event, text);
                KeepDiary();
              },
          .on_last_calls =
              [this](Round round, const hangs::LastCallsState& state) {
                Feed(LastCallsChanged{round, state});
              }};
}

WatchListener Agent::MakeWatchListener() {
  return {.worker_pids = [this] { return roster_.Pids(); },
          .on_expired = [this](int pid, std::string why) { OnExpired(pid, std::move(why)); },
          .on_stuck = [this](int pid, const std::string& why) { OnStuck(pid, why); }};
}

void Agent::OnExpired(int pid, std::string why) {
  RunningWorker* const worker = roster_.FindByPid(pid);
  if (worker == nullptr) return;
  log::Write(log::Level::kWarning, "timer_expired",
             absl::StrCat("rank ", ToString(worker->rank), " (pid ", pid, "): ", why));
  worker->why_ended = std::move(why);
}

void Agent::OnStuck(int pid, const std::string& why) {
  const RunningWorker* const worker = roster_.FindByPid(pid);
  if (worker == nullptr) return;
  guardian_.SignalGroup(worker->id, SIGKILL);
  exits_.OnGivenUp(worker->id, why);
}

void Agent::OnGuardianLost(const std::string& reason) {
  roster_.Forget();
  round_.Abandon();
  ending_.EndDescendants([this, reason] {
    pump_.CloseAttempt();
    RemoveOwnedPath(options_.runtime_directory);
    Feed(GuardianLost{reason});
  });
}

}  // namespace muster::agent
