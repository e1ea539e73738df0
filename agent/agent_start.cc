// How the workers of a round come to run: log files, then the hook, then the workers themselves.
// All of it may be cancelled by a stop that comes meanwhile.
#include <csignal>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "agent/agent.h"
#include "agent/core/worker_environment.h"
#include "agent/watch/torch_hook.h"
#include "proto/io/log.h"

namespace muster::agent {
namespace {

// What the hook's output may take to be read.
constexpr absl::Duration kLastWordsTime = absl::Seconds(2);

absl::Status DescribeHookFailure(const absl::Status& ended, const std::string& words) {
  return absl::Status(ended.code(),
                      words.empty() ? std::string(ended.message())
                                    : absl::StrCat(ended.message(), "; it said last:\n", words));
}

}  // namespace

void Agent::Perform(const StartWorkers& effect) {
  // One that has died since it was kept is replaced.
  roster_.StartRound(effect.assignment, effect.kept);
  worker_service_.StartRound(assignment().round, assignment().instance);
  watch_.StartRound();
  hang_watch_.OnReformed();
  exits_.StartRound();
  log::Write(log::Level::kDebug, "round_started", assignment().reason,
             {{"run", options_.spec.run_id},
              {"round", ToString(assignment().round)},
              {"node", options_.node.name},
              {"world_size", absl::StrCat(assignment().world_size)}});
  std::vector<PumpedWorker> pumped;
  for (int i = 0; i < assignment().local_world_size; ++i) {
    pumped.push_back({.local_rank = LocalRank(i),
                      .rank = Rank(assignment().first_rank.value() + i),
                      .is_kept = roster_.IsKept(LocalRank(i))});
  }
  is_starting_ = true;
  NoteRound();
  status_.Show(absl::StrCat("opening log files in ", options_.run_directory));
  pump_.OpenAttempt(assignment().restart_count, pumped, options_.spec.join_timeout,
                    [this](absl::StatusOr<std::vector<WorkerStreams>> streams) {
                      if (streams.ok()) {
                        PrepareRound(*std::move(streams));
                      } else {
                        SpawnWorkers(std::move(streams));
                      }
                    });
  // Meanwhile, while another thread makes the files:
  before_workers_.network().StartRound(assignment(), ports_.worker_ports().front());
  MakeBoards();
  // Before the first worker looks for it.
  const WorkerEnv env = MakeWorkerEnvs(assignment(), MakeEnvContext()).front();
  torch_store_.StartRound(assignment(), env.master_addr, env.master_port);
}

WorkerEnvContext Agent::MakeEnvContext() const {
  return {.run_id = options_.spec.run_id,
          .role = options_.spec.role,
          .max_restarts = options_.spec.max_restarts,
          .signals_to_handle = HandledSignals(options_.spec),
          .visible_devices = options_.visible_devices,
          .virtual_local_rank = options_.spec.virtual_local_rank,
          .agent_socket = absl::StrCat(options_.runtime_directory, "/agent.sock"),
          .timer_file = options_.watch.timer_pipe,
          .master_addr = options_.spec.worker_master_addr,
          .master_port = options_.spec.worker_master_port};
}

void Agent::PrepareRound(std::vector<WorkerStreams> streams) {
  status_.Show("checking the network between the nodes");
  before_workers_.network().WhenReady(
      [this, streams = std::move(streams)](const RoundClearance& clearance) mutable {
        if (clearance.forbidden) return Feed(RoundForbidden{*clearance.forbidden});
        if (!clearance.failed.empty()) {
          status_.Show("waiting for the rendezvous to part the nodes that do not reach each other");
          return Feed(PairsFailed{assignment().round, clearance.failed});
        }
        if (options_.spec.round_hook.empty()) return SpawnWorkers(std::move(streams));
        RunHook(std::move(streams));
      });
}

// What it is told of the round is what all workers of the node are told alike.
void Agent::RunHook(std::vector<WorkerStreams> streams) {
  HookRun run{.id = roster_.NewId(),
              .program = options_.spec.round_hook,
              .output = pump_.TakeHookOutput(),
              .timeout = options_.spec.round_hook_timeout};
  EnvironmentMap environment = options_.environment;
  const auto of_worker =
      EncodeWorkerEnv(MakeWorkerEnvs(assignment(), MakeEnvContext()).front(), options_.environment);
  for (const char* name :
       {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR",
        "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_RUN_ID", "MUSTER_ROUND", "MUSTER_INSTANCE"}) {
    if (const auto found = of_worker.find(name); found != of_worker.end())
      environment[name] = found->second;
  }
  for (const auto& [name, value] : environment) {
    run.environment.push_back(absl::StrCat(name, "=", value));
  }
  status_.Show(absl::StrCat("waiting for the round hook ", run.program));
  before_workers_.hook().Start(
      std::move(run), [this, streams = std::move(streams)](const absl::Status& ended) mutable {
        if (ended.ok()) return SpawnWorkers(std::move(streams));
        pump_.TakeHookWords(kLastWordsTime, [this, ended](const std::string& words) {
          if (is_starting_) SpawnWorkers(DescribeHookFailure(ended, words));
        });
      });
}

void Agent::SpawnWorkers(absl::StatusOr<std::vector<WorkerStreams>> streams) {
  is_starting_ = false;
  status_.Show("");
  WorkerEnvContext context = MakeEnvContext();
  if (streams.ok()) {
    for (const WorkerStreams& s : *streams) context.error_files.push_back(s.error_file);
  }
  for (const std::optional<BoardMemory>& board : boards_) {
    context.boards.push_back(board ? board->path() : "");
  }
  context.python_folder = torch_programs_.python_folder();
  context.torch_notes = torch_programs_.notes_socket();
  const bool is_watched =
      !context.python_folder.empty() && EffectiveWatch(options_.spec) != WatchMode::kOff;
  for (int i = 0; is_watched && i < assignment().local_world_size; ++i) {
    context.torch_servers.push_back(
        TorchServerPath(options_.runtime_directory, assignment().round, i));
  }
  const std::vector<WorkerEnv> envs = MakeWorkerEnvs(assignment(), context);
  const absl::Status ready = streams.ok() ? torch_store_.status() : streams.status();
  if (!ready.ok()) {
    for (const WorkerEnv& env : envs) {
      if (roster_.IsKept(env.local_rank)) {
        signals_.End(roster_.FindByLocalRank(env.local_rank), std::string(ready.message()));
      } else {
        OnSpawnFailed(roster_.Add(env.local_rank).id, ready);
      }
    }
    return;
  }
  sight_.starts = {};
  torch_programs_.StartRound(assignment().round, assignment().num_nodes);
  for (size_t i = 0; i < envs.size(); ++i) {
    if (roster_.IsKept(envs[i].local_rank)) continue;
    WorkerStreams of_worker = std::move((*streams)[i]);
    const absl::Status taken = pump_.TakeDescriptors(of_worker);
    if (taken.ok()) {
      Spawn(envs[i], of_worker);
    } else {
      OnSpawnFailed(roster_.Add(envs[i].local_rank).id, taken);
    }
  }
  // Not before them: it looks at the node's interfaces, and lets go of the boards of the last
  // round.
  hang_watch_.StartRound({.round = assignment().round,
                          .restart_count = assignment().restart_count,
                          .num_nodes = assignment().num_nodes,
                          .first_rank = assignment().first_rank.value(),
                          .world_size = assignment().world_size,
                          .boards = std::exchange(boards_, {}),
                          .torch_servers = context.torch_servers,
                          .ask_store = MakeStoreQuestion(),
                          .network_faults = [this] { return network_faults(); }});
  for (const WorkerEnv& env : envs) Keep(env);
  before_workers_.warm().OnStarted();
}

void Agent::Keep(const WorkerEnv& env) {
  RunningWorker* const worker = roster_.FindByLocalRank(env.local_rank);
  if (worker == nullptr || !std::exchange(worker->is_kept, false)) return;
  const int pid = worker->pid;
  torch_store_.AddWorker(worker->rank, pid);
  hang_watch_.OnSpawned(env.local_rank.value(), pid);
  NoteStart(&status::WorkerStarts::kept);
  guardian_.SignalGroup(worker->id, SIGWINCH);  // its terminal may have another size
  Feed(WorkerSpawned{worker->round, env.local_rank, pid});
  if (worker_service_.SendNextRound(env.local_rank, EnvironmentOfWorker(env))) {
    Feed(WorkerPromised{
        .round = assignment().round, .local_rank = env.local_rank, .survives = true});
  } else {
    signals_.End(roster_.FindByLocalRank(env.local_rank),
                 "it lost its connection to the agent while it awaited this round");
  }
}

StoreQuestion Agent::MakeStoreQuestion() {
  if (!torch_store_.is_serving()) return nullptr;
  return [this](auto answer) { torch_store_.AskWhoIsMissing(std::move(answer)); };
}

// The core is stopping workers that have not been started yet.
void Agent::CancelStart() {
  if (!std::exchange(is_starting_, false)) return;
  status_.Show("");
  before_workers_.Cancel();
  pump_.CloseAttempt(roster_.LocalRanks());
  for (int i = 0; i < assignment().local_world_size; ++i) {
    if (!roster_.IsKept(LocalRank(i))) {
      Feed(WorkerExited{assignment().round, LocalRank(i), std::nullopt});
    }
  }
}

// A worker without a board runs all the same, but marks into memory of its own.
void Agent::MakeBoards() {
  boards_.clear();
  for (int i = 0; i < assignment().local_world_size; ++i) {
    absl::StatusOr<BoardMemory> board = BoardMemory::Create();
    if (board.ok()) {
      boards_.emplace_back(*std::move(board));
      continue;
    }
    boards_.emplace_back();
    log::Write(log::Level::kWarning, "no_progress_board", std::string(board.status().message()),
               {{"run", options_.spec.run_id},
                {"round", ToString(assignment().round)},
                {"node", options_.node.name},
                {"local_rank", absl::StrCat(i)}});
  }
}

// Without it PyTorch's workers run all the same, and nothing is known of them.
void Agent::PrepareTorchPrograms() {
  const absl::Status prepared = torch_programs_.Prepare(options_.runtime_directory);
  if (prepared.ok()) return;
  log::Write(log::Level::kWarning, "no_torch_hook", prepared.message(),
             {{"run", options_.spec.run_id}, {"node", options_.node.name}});
}

std::vector<std::string> Agent::EnvironmentOfWorker(const WorkerEnv& env) const {
  EnvironmentMap environment = options_.environment;
  environment.insert(before_workers_.network().variables().begin(),
                     before_workers_.network().variables().end());
  const bool is_lone = env.world_size == 1 && !options_.spec.program.rank_variables;
  const EnvironmentMap own = is_lone ? EncodeLoneWorkerEnv(env, options_.environment)
                                     : EncodeWorkerEnv(env, options_.environment);
  for (const auto& [name, value] : own) environment[name] = value;
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment) {
    variables.push_back(absl::StrCat(name, "=", value));
  }
  return variables;
}

void Agent::Spawn(const WorkerEnv& env, const WorkerStreams& streams) {
  WorkerCommand command{.worker_id = roster_.Add(env.local_rank, streams.error_file).id,
                        .argv = WorkerArguments(options_.worker_command, env.local_rank)};
  command.environment = EnvironmentOfWorker(env);
  command.stdin_fd = streams.stdin_fd.get();
  command.stdout_fd = streams.stdout_fd.get();
  command.stderr_fd = streams.stderr_fd.get();
  const size_t local_rank = env.local_rank.value();
  if (local_rank < options_.cpus.size()) command.cpus = options_.cpus[local_rank];
  if (local_rank == 0) {
    for (std::string& variable : before_workers_.warm().VariablesForListing()) {
      command.environment.push_back(std::move(variable));
    }
  }
  before_workers_.warm().OnStart(command);
  guardian_.Spawn(command);
}

}  // namespace muster::agent
