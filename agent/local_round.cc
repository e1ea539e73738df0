#include "agent/local_round.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/watch/torch_hook.h"
#include "proto/io/log.h"

namespace muster::agent {
namespace {

// What the hook's output may take to be read.
constexpr absl::Duration kHookWordsTime = absl::Seconds(2);

RoundNetworkOptions MakeNetworkOptions(const AgentOptions& options) {
  return {.use = options.spec.network,
          .node_name = options.node.name,
          .address = options.node.address,
          .facts = options.facts,
          .inherited = options.environment};
}

std::vector<std::string> ListOf(const EnvironmentMap& environment) {
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment) {
    variables.push_back(absl::StrCat(name, "=", value));
  }
  return variables;
}

absl::Status DescribeHookFailure(const absl::Status& ended, const std::string& words) {
  return absl::Status(ended.code(),
                      words.empty() ? std::string(ended.message())
                                    : absl::StrCat(ended.message(), "; it said last:\n", words));
}

}  // namespace

LocalRound::LocalRound(asio::io_context& loop, Parts parts, RoundNetwork::Ask ask)
    : parts_(parts),
      network_(loop, MakeNetworkOptions(parts.options), std::move(ask)),
      programs_(loop, parts.guardian),
      warm_({.modules = parts.options.spec.program.warm,
             .runtime_directory = parts.options.runtime_directory},
            parts.guardian,
            [this](const std::string& text) {
              log::Write(log::Level::kInfo, "warm", text,
                         {{"run", parts_.options.spec.run_id}, {"node", parts_.options.node.name}});
            }),
      torch_programs_(
          loop, EffectiveWatch(parts.options.spec) != WatchMode::kOff,
          [this](const GroupCalls::Line& line) {
            log::Write(line.is_warning ? log::Level::kWarning : log::Level::kInfo, "group",
                       line.text,
                       {{"run", parts_.options.spec.run_id},
                        {"round", ToString(assignment().round)},
                        {"node", parts_.options.node.name}});
          },
          [this] { warm_.OnListed(); }),
      torch_store_(parts.options.spec.store_clients) {}

void LocalRound::RunCheck() {
  EnvironmentMap environment = parts_.options.environment;
  environment[kNodeCheckVariable] = "1";
  const NodeProgramSpec& check = parts_.options.spec.node_programs.check;
  programs_.check.Start({.id = parts_.roster.NewId(),
                         .argv = check.command,
                         .timeout = check.timeout,
                         .environment = ListOf(environment)},
                        [this](CheckEnded ended) { parts_.shell.Feed(std::move(ended)); });
}

Event LocalRound::ReservePorts() {
  torch_store_.EndRound();
  const JobSpec& spec = parts_.options.spec;
  const absl::Status reserved = ports_.Reserve(parts_.options.node.local_world_size,
                                               spec.worker_ports, spec.worker_master_port);
  if (!reserved.ok()) return PortsFailed{reserved};
  return PortsReserved{.store_port = ports_.store_port(), .worker_ports = ports_.worker_ports()};
}

void LocalRound::Start() {
  std::vector<PumpedWorker> pumped;
  for (int i = 0; i < assignment().local_world_size; ++i) {
    pumped.push_back({.local_rank = LocalRank(i),
                      .rank = Rank(assignment().first_rank.value() + i),
                      .is_kept = parts_.roster.IsKept(LocalRank(i))});
  }
  is_starting_ = true;
  parts_.status.Show(absl::StrCat("opening log files in ", parts_.options.run_directory));
  parts_.pump.OpenAttempt(assignment().restart_count, pumped, parts_.options.spec.join_timeout,
                          [this](absl::StatusOr<std::vector<WorkerStreams>> streams) {
                            if (streams.ok()) {
                              Prepare(*std::move(streams));
                            } else {
                              SpawnWorkers(std::move(streams));
                            }
                          });
  // Meanwhile, while another thread makes the files:
  network_.StartRound(assignment(), ports_.worker_ports().front());
  MakeBoards();
  // The store must be there before the first worker looks for it.
  const WorkerEnv env = MakeEnvs().front();
  torch_store_.StartRound(assignment(), env.master_addr, env.master_port);
}

std::vector<WorkerEnv> LocalRound::MakeEnvs() const {
  const JobSpec& spec = parts_.options.spec;
  return MakeWorkerEnvs(
      assignment(), {.role_name = spec.role,
                     .master_addr = spec.worker_master_addr,
                     .master_port = spec.worker_master_port,
                     .max_restarts = spec.max_restarts,
                     .run_id = spec.run_id,
                     .timer_file = parts_.options.watch.timer_pipe,
                     .signals_to_handle = NamesOfSignals(HandledSignals(spec)),
                     .virtual_local_rank = spec.virtual_local_rank,
                     .agent_socket = absl::StrCat(parts_.options.runtime_directory, "/agent.sock"),
                     .python_folder = torch_programs_.python_folder(),
                     .torch_notes = torch_programs_.notes_socket()});
}

void LocalRound::Prepare(std::vector<WorkerStreams> streams) {
  parts_.status.Show("checking the network between the nodes");
  network_.WhenReady([this, streams = std::move(streams)](const RoundClearance& clearance) mutable {
    if (clearance.forbidden) return parts_.shell.Feed(RoundForbidden{*clearance.forbidden});
    if (!clearance.failed.empty()) {
      parts_.status.Show(
          "waiting for the rendezvous to part the nodes that do not reach each other");
      return parts_.shell.Feed(PairsFailed{assignment().round, clearance.failed});
    }
    if (parts_.options.spec.node_programs.round_hook.program.empty())
      return SpawnWorkers(std::move(streams));
    RunHook(std::move(streams));
  });
}

// What it is told of the round is what all workers of the node are told alike.
void LocalRound::RunHook(std::vector<WorkerStreams> streams) {
  const NodeProgramSpec& hook = parts_.options.spec.node_programs.round_hook;
  ProgramRun run{.id = parts_.roster.NewId(),
                 .argv = {hook.program},
                 .timeout = hook.timeout,
                 .output = parts_.pump.TakeHookOutput()};
  EnvironmentMap environment = parts_.options.environment;
  const auto of_worker = EncodeWorkerEnv(MakeEnvs().front(), parts_.options.environment);
  for (const char* name :
       {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR",
        "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_RUN_ID", "MUSTER_ROUND", "MUSTER_INSTANCE"}) {
    if (const auto found = of_worker.find(name); found != of_worker.end())
      environment[name] = found->second;
  }
  run.environment = ListOf(environment);
  parts_.status.Show(absl::StrCat("waiting for the round hook ", hook.program));
  programs_.hook.Start(
      std::move(run), [this, streams = std::move(streams)](const absl::Status& ended) mutable {
        if (ended.ok()) return SpawnWorkers(std::move(streams));
        parts_.pump.TakeHookWords(kHookWordsTime, [this, ended](const std::string& words) {
          if (is_starting_) SpawnWorkers(DescribeHookFailure(ended, words));
        });
      });
}

void LocalRound::SpawnWorkers(absl::StatusOr<std::vector<WorkerStreams>> streams) {
  is_starting_ = false;
  parts_.status.Show("");
  std::vector<WorkerEnv> envs = MakeEnvs();
  std::vector<std::string> torch_servers = AddWatched(envs);
  const std::vector<std::string>& devices = parts_.options.visible_devices;
  for (size_t i = 0; i < envs.size(); ++i) {
    if (i < devices.size()) envs[i].visible_devices = devices[i];
    if (streams.ok()) envs[i].error_file = streams->at(i).error_file;
  }
  const absl::Status ready = streams.ok() ? torch_store_.status() : streams.status();
  if (!ready.ok()) {
    for (const WorkerEnv& env : envs) {
      parts_.shell.OnCannotStart(env.local_rank, ready);
    }
    return;
  }
  torch_programs_.StartRound(assignment().round, assignment().num_nodes);
  for (size_t i = 0; i < envs.size(); ++i) {
    if (parts_.roster.IsKept(envs[i].local_rank)) continue;
    WorkerStreams of_worker = std::move((*streams)[i]);
    const absl::Status taken = parts_.pump.TakeDescriptors(of_worker);
    if (taken.ok()) {
      Spawn(envs[i], of_worker);
    } else {
      parts_.shell.OnCannotStart(envs[i].local_rank, taken);
    }
  }
  StartHangWatch(std::move(torch_servers));
  for (const WorkerEnv& env : envs) {
    if (!parts_.roster.IsKept(env.local_rank)) continue;
    parts_.shell.OnPlaceOfKept(env.local_rank, EnvironmentOfWorker(env));
  }
  warm_.OnStarted();
}

std::vector<std::string> LocalRound::AddWatched(std::vector<WorkerEnv>& envs) const {
  for (size_t i = 0; i < envs.size() && i < boards_.size(); ++i) {
    if (boards_[i]) envs[i].board = boards_[i]->path();
  }
  std::vector<std::string> servers;
  if (torch_programs_.python_folder().empty()) return servers;
  if (EffectiveWatch(parts_.options.spec) == WatchMode::kOff) return servers;
  for (WorkerEnv& env : envs) {
    env.torch_server = TorchServerPath(parts_.options.runtime_directory, assignment().round,
                                       env.local_rank.value());
    servers.push_back(env.torch_server);
  }
  return servers;
}

void LocalRound::StartHangWatch(std::vector<std::string> torch_servers) {
  parts_.hang_watch.StartRound({.round = assignment().round,
                                .restart_count = assignment().restart_count,
                                .num_nodes = assignment().num_nodes,
                                .first_rank = assignment().first_rank.value(),
                                .world_size = assignment().world_size,
                                .boards = std::exchange(boards_, {}),
                                .torch_servers = std::move(torch_servers),
                                .ask_store = MakeStoreQuestion(),
                                .network_faults = [this] { return network_.faults(); }});
}

StoreQuestion LocalRound::MakeStoreQuestion() {
  if (!torch_store_.is_serving()) return nullptr;
  return [this](auto answer) { torch_store_.AskWhoIsMissing(std::move(answer)); };
}

void LocalRound::Leave() {
  torch_store_.StopTelling();
  CancelStart();
  torch_programs_.EndRound();
  parts_.hang_watch.OnStopping();
}

void LocalRound::Abandon() {
  if (!std::exchange(is_starting_, false)) return;
  programs_.hook.Cancel();
  parts_.pump.CloseAttempt();
}

// The core is stopping workers that have not been started yet.
void LocalRound::CancelStart() {
  if (!std::exchange(is_starting_, false)) return;
  parts_.status.Show("");
  network_.Cancel();
  programs_.hook.Cancel();
  parts_.pump.CloseAttempt(parts_.roster.LocalRanks());
  for (int i = 0; i < assignment().local_world_size; ++i) {
    if (!parts_.roster.IsKept(LocalRank(i))) {
      parts_.shell.Feed(WorkerExited{assignment().round, LocalRank(i), std::nullopt});
    }
  }
}

// A worker without a board runs all the same, but marks into memory of its own.
void LocalRound::MakeBoards() {
  boards_.clear();
  for (int i = 0; i < assignment().local_world_size; ++i) {
    absl::StatusOr<BoardMemory> board = BoardMemory::Create();
    if (board.ok()) {
      boards_.emplace_back(*std::move(board));
      continue;
    }
    boards_.emplace_back();
    log::Write(log::Level::kWarning, "no_progress_board", std::string(board.status().message()),
               {{"run", parts_.options.spec.run_id},
                {"round", ToString(assignment().round)},
                {"node", parts_.options.node.name},
                {"local_rank", absl::StrCat(i)}});
  }
}

void LocalRound::PrepareTorchPrograms() {
  const absl::Status prepared = torch_programs_.Prepare(parts_.options.runtime_directory);
  if (prepared.ok()) return;
  log::Write(log::Level::kWarning, "no_torch_hook", prepared.message(),
             {{"run", parts_.options.spec.run_id}, {"node", parts_.options.node.name}});
}

std::vector<std::string> LocalRound::EnvironmentOfWorker(const WorkerEnv& env) const {
  EnvironmentMap environment = parts_.options.environment;
  environment.merge(network_.variables());
  const bool is_lone = env.world_size == 1 && !parts_.options.spec.program.rank_variables;
  const EnvironmentMap own = is_lone ? EncodeLoneWorkerEnv(env, parts_.options.environment)
                                     : EncodeWorkerEnv(env, parts_.options.environment);
  for (const auto& [name, value] : own) environment[name] = value;
  return ListOf(environment);
}

void LocalRound::Spawn(const WorkerEnv& env, const WorkerStreams& streams) {
  WorkerCommand command{.worker_id = parts_.roster.Add(env.local_rank, streams.error_file).id,
                        .argv = WorkerArguments(parts_.options.worker_command, env.local_rank)};
  command.environment = EnvironmentOfWorker(env);
  command.stdin_fd = streams.stdin_fd.get();
  command.stdout_fd = streams.stdout_fd.get();
  command.stderr_fd = streams.stderr_fd.get();
  const size_t local_rank = env.local_rank.value();
  if (local_rank < parts_.options.cpus.size()) command.cpus = parts_.options.cpus[local_rank];
  if (local_rank == 0) {
    for (std::string& variable : warm_.VariablesForListing()) {
      command.environment.push_back(std::move(variable));
    }
  }
  warm_.OnStart(command);
  parts_.guardian.Spawn(command);
}

}  // namespace muster::agent
