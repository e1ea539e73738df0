#include "launcher/commands/run_command.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "agent/agent.h"
#include "agent/console/error_file.h"
#include "agent/console/log_routing.h"
#include "agent/guardian/death_notice_wire.h"
#include "agent/machine/port_reservation.h"
#include "asio/dispatch.hpp"
#include "asio/executor_work_guard.hpp"
#include "asio/io_context.hpp"
#include "asio/posix/stream_descriptor.hpp"
#include "asio/steady_timer.hpp"
#include "launcher/commands/host_listening.h"
#include "launcher/commands/hosts_command.h"
#include "launcher/exit_summary.h"
#include "launcher/flags.h"
#include "launcher/invocation.h"
#include "launcher/metrics_option.h"
#include "launcher/node_setup.h"
#include "launcher/schedulers/placement.h"
#include "launcher/schedulers/scheduler.h"
#include "launcher/schedulers/step_daemon.h"
#include "launcher/schedulers/task_gate.h"
#include "proto/base/environment.h"
#include "proto/base/exit_codes.h"
#include "proto/base/mono_time.h"
#include "proto/base/process_end.h"
#include "proto/base/status_macros.h"
#include "proto/io/descriptors.h"
#include "proto/io/job_key.h"
#include "proto/io/log.h"
#include "proto/io/metrics_token.h"
#include "proto/io/user_secret.h"
#include "rendezvous/client/grpc_link.h"
#include "rendezvous/server/port_mark.h"
#include "rendezvous/server/rendezvous_server.h"

namespace muster::launcher {
namespace {

// Pipes, files, ports and a pidfd.
constexpr int kDescriptorsPerWorker = 16;
constexpr absl::Duration kFarewell = absl::Seconds(5);  // for the other nodes to learn the end
// For nodes that a scheduler starts later than the others, and after the end.
constexpr absl::Duration kLateNodes = absl::Seconds(30);
constexpr int kLookForServerEvery = 200;  // milliseconds
constexpr absl::Duration kLongestTimer = absl::Hours(24 * 365);
constexpr char kErrorFile[] = "TORCHELASTIC_ERROR_FILE";

int Refuse(const absl::Status& status) {
  log::Write(log::Level::kError, "refused", status.message());
  return ExitCodeOf(status);
}

// Says of an option that the user did not type where it came from.
absl::Status WithSource(const absl::Status& refusal, const Invocation& invocation) {
  for (const auto& [option, source] : invocation.sources) {
    if (!absl::StartsWith(refusal.message(), absl::StrCat("--", option, "="))) continue;
    return absl::Status(refusal.code(), absl::StrCat(refusal.message(), " (from ", source, ")"));
  }
  return refusal;
}

bool IsIgnored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

// SIGHUP that we were started ignoring, under nohup, stays ignored. What a shell without job
// control lets its background processes ignore (SIGINT, SIGQUIT) is obeyed: somebody sends it to us
// and means us.
//
// Source: torchrun, which sets its own handlers whatever it was started with.
sigset_t SignalsToTake(const JobSpec& spec, bool under_slurm) {
  std::vector<int> signals = HandledSignals(spec);
  if (under_slurm) signals.insert(signals.end(), {SIGUSR1, SIGUSR2, SIGCONT});
  if (isatty(STDIN_FILENO) == 1) signals.push_back(SIGTSTP);
  signals.push_back(SIGWINCH);
  sigset_t set;
  sigemptyset(&set);
  for (int signal : signals) {
    if (signal != SIGHUP || !IsIgnored(signal)) sigaddset(&set, signal);
  }
  return set;
}

// What the pipes and boards of so many workers certainly need; log files and connections come on
// top.
absl::Status CheckOpenFiles(int limit, int num_workers) {
  constexpr int kOwn = 24;
  constexpr int kOfWorker = 3;
  const int64_t needed = kOwn + int64_t{kOfWorker} * num_workers;
  if (needed <= limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(num_workers, num_workers == 1 ? " worker needs " : " workers need ", needed,
                   " open files in this process, which may have ", limit,
                   "; raise the hard limit (ulimit -Hn)"));
}

void ConfigureLog(const OutputFlags& flags, std::function<void(const std::string&)> sink) {
  log::Options options;
  options.sink = std::move(sink);
  options.format = flags.log_format == "json" ? log::Format::kJson : log::Format::kText;
  options.level = flags.log_level == "debug"     ? log::Level::kDebug
                  : flags.log_level == "warning" ? log::Level::kWarning
                  : flags.log_level == "error"   ? log::Level::kError
                                                 : log::Level::kInfo;
  log::Configure(std::move(options));
}

absl::Duration LeftUntil(int64_t end_time) { return absl::FromUnixSeconds(end_time) - absl::Now(); }

// In words, with whole minutes above one.
std::string TimeLeft(int64_t end_time) {
  const absl::Duration left = LeftUntil(end_time);
  return absl::FormatDuration(
      absl::Trunc(left, left < absl::Minutes(1) ? absl::Seconds(1) : absl::Minutes(1)));
}

// One node's run: the loop and everything on it. Destroyed in reverse order.
class NodeRun {
 public:
  NodeRun(NodeSetup setup, const Invocation& invocation, const RunFlags& flags)
      : setup_(std::move(setup)),
        invocation_(invocation),
        output_(flags.output),
        placement_(flags.placement),
        work_(loop_.get_executor()),
        signals_(loop_),
        step_daemon_(loop_),
        late_nodes_(loop_),
        time_limit_(loop_) {}

  absl::StatusOr<JobOutcome> Run(agent::GuardianHandle guardian) {
    MUSTER_RETURN_IF_ERROR(ListenToSignals());
    if (std::optional<JobOutcome> interrupted = AwaitMarkedServer()) {
      UndoNodeSetup(setup_.agent);
      return *std::move(interrupted);
    }
    MUSTER_ASSIGN_OR_RETURN(std::unique_ptr<rendezvous::RendezvousLink> link, MakeLink(guardian));
    agent_ = std::make_unique<agent::Agent>(
        loop_, setup_.agent, std::move(guardian), std::move(link),
        [this](JobOutcome outcome) { OnFinished(std::move(outcome)); });
    RouteLogBetweenWorkersLines();
    absl::Status started = agent_->Start();
    if (started.ok()) started = ServeMetrics();
    if (placement_.is_slurm) WatchStepDaemon();
    if (placement_.end_time > 0) AwaitTimeLimit();
    if (started.ok()) loop_.run();
    ConfigureLog(output_, nullptr);  // the agent's lines end here, also where it could not start
    MUSTER_RETURN_IF_ERROR(started);
    agent_->FlushOutput();
    MUSTER_CHECK(outcome_.has_value());
    return *outcome_;
  }

  // Once it has run; none where the job ended before its agent began.
  std::vector<std::string> network_faults() const {
    return agent_ == nullptr ? std::vector<std::string>() : agent_->network_faults();
  }

 private:
  // From here on our own lines go through the agent's log pump, so that they tear none of the
  // workers'.
  void RouteLogBetweenWorkersLines() {
    ConfigureLog(output_, [this](const std::string& line) {
      asio::dispatch(loop_, [this, line] { agent_->PrintLine(line); });
    });
  }

  // A job does not fail for want of a port; without the secret it would tell strangers.
  absl::Status ServeMetrics() {
    const std::optional<Endpoint> at = MetricsAddress(invocation_.args, invocation_.environment);
    if (!at) return absl::OkStatus();
    std::string token;
    if (setup_.agent.spec.authentication) {
      MUSTER_ASSIGN_OR_RETURN(const UserSecret secret, FindSecret());
      token = DeriveMetricsToken(secret.secret);
    }
    const absl::StatusOr<int> port = agent_->ServeMetrics(*at, std::move(token));
    if (port.ok()) {
      log::Write(log::Level::kInfo, "metrics",
                 absl::StrCat("metrics at http://",
                              ToString(Endpoint{.host = at->host, .port = *port}), "/metrics"));
    } else {
      log::Write(log::Level::kWarning, "metrics",
                 absl::StrCat("--metrics=", ToString(*at), ": cannot listen: ",
                              port.status().message(), "; this node runs without metrics"));
    }
    return absl::OkStatus();
  }

  absl::Status ListenToSignals() {
    const sigset_t set =
        SignalsToTake(setup_.agent.spec, invocation_.environment.contains("SLURM_JOB_ID"));
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);
    std::signal(SIGTTIN, SIG_IGN);  // see TerminalInput
    const int fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (fd < 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot handle signals: ", std::strerror(errno),
                       "; raise the limit on open files (ulimit -n)"));
    }
    signals_.assign(fd);
    WaitForSignal();
    return absl::OkStatus();
  }

  void WaitForSignal() {
    signals_.async_wait(
        asio::posix::stream_descriptor::wait_read, [this](const asio::error_code& error) {
          if (error) return;
          signalfd_siginfo info{};
          while (read(signals_.native_handle(), &info, sizeof(info)) == sizeof(info)) {
            OnSignal(static_cast<int>(info.ssi_signo));
          }
          WaitForSignal();
        });
  }

  void OnSignal(int signal) {
    if (agent_ == nullptr) return;
    if (outcome_) late_nodes_.cancel();
    if (signal == SIGWINCH) return agent_->OnWindowSize();
    if (signal == SIGTSTP) return StopWithTheTerminalGivenBack();
    if (IsRepeatedBySlurm(signal)) return;
    agent_->OnSignal(signal);
    if (agent_->IsLeaving())
      TellThatTheHostLeaves(signal, absl::StrCat("got ", SignalInWords(signal)));
  }

  // At a time limit Slurm sends SIGTERM twice within milliseconds, and SIGKILL when its own time is
  // up. The second is nobody's wish for haste.
  bool IsRepeatedBySlurm(int signal) {
    if (!placement_.is_slurm || signal != SIGTERM) return false;
    return std::exchange(got_sigterm_, true);
  }

  // A node that Slurm can neither stop nor hear is lost to its job, and would be a ghost beside the
  // next.
  void WatchStepDaemon() {
    UniqueFd daemon = OpenStepDaemon();
    if (!daemon) return;
    step_daemon_.assign(daemon.release());
    step_daemon_.async_wait(
        asio::posix::stream_descriptor::wait_read, [this](const asio::error_code& error) {
          if (error) return;
          log::Write(log::Level::kError, "step_daemon_lost",
                     "slurmstepd, the daemon of Slurm's step on this node, is gone, and Slurm "
                     "could no longer stop this job; leaving it");
          OnSignal(SIGTERM);
        });
  }

  // A grace before the scheduler's own signal, so that nothing is left to do when that comes.
  void AwaitTimeLimit() {
    const absl::Duration left = LeftUntil(placement_.end_time);
    if (left < absl::ZeroDuration() || left > kLongestTimer) return;
    time_limit_.expires_after(absl::ToChronoNanoseconds(left - setup_.agent.spec.shutdown_timeout));
    time_limit_.async_wait([this](const asio::error_code& error) {
      if (error) return;
      agent_->OnTimeRunsOut(
          absl::StrCat("the job reaches its time limit in ", TimeLeft(placement_.end_time)));
    });
  }

  // Ctrl-Z. What follows the stop runs once somebody continues us. The signal's default action
  // stops nobody whom no shell could continue. Workers run on: they are in sessions of their own.
  void StopWithTheTerminalGivenBack() {
    agent_->LeaveTerminal();
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    raise(SIGTSTP);
    pthread_sigmask(SIG_UNBLOCK, &stop, nullptr);
    pthread_sigmask(SIG_BLOCK, &stop, nullptr);
    agent_->ReturnToTerminal();
  }

  // The embedded server goes with this node: the other nodes must know before it is gone.
  void TellThatTheHostLeaves(int signal, const std::string& reason) {
    if (server_ == nullptr || !setup_.endpoint || told_leaving_) return;
    told_leaving_ = true;
    server_->HostLeaving(Departure{.signal = signal, .ends_job = true, .reason = reason},
                         setup_.agent.node.name);
  }

  // The server is in this process unless another node (or musterd) has the endpoint; there the
  // guardian tells of this agent's death.
  absl::StatusOr<std::unique_ptr<rendezvous::RendezvousLink>> MakeLink(
      agent::GuardianHandle& guardian) {
    const JobSpec& spec = setup_.agent.spec;
    rendezvous::RendezvousServerOptions options;
    options.lease = spec.lease;
    options.only_run_id = spec.run_id;
    options.reserved_descriptors += kDescriptorsPerWorker * setup_.agent.node.local_world_size;
    options.host_name = setup_.agent.node.name;
    options.node_names = placement_.expected_nodes;
    options.announce = [this, tell = setup_.endpoint.has_value()](
                           const rendezvous::JobKey&, const rendezvous::Announce& note) {
      if (note.event == "node_seen") ++nodes_seen_;
      // What concerns this node its agent says; the host adds who came and how the round began.
      const bool is_news = note.event == "node_seen" || note.event == "round_completed";
      log::Write(tell && is_news ? log::Level::kInfo : log::Level::kDebug, note.event, note.reason,
                 {{"round", ToString(note.round)}});
    };
    if (!setup_.endpoint) {
      server_ = rendezvous::RendezvousServer::Create(loop_, options);
      setup_.agent.hosts_server = true;
      return server_->MakeLocalLink(spec.run_id, IncarnationOf(life_key_));
    }
    MUSTER_ASSIGN_OR_RETURN(const UserSecret secret, FindSecret());
    options.tls = spec.tls && spec.authentication ? TlsMode::kOn : TlsMode::kOff;
    options.owners = {OwnerKey{.secret = secret.secret}};
    if (spec.authentication) options.secret_origin = secret.origin;
    if (setup_.may_host) {
      MUSTER_ASSIGN_OR_RETURN(const bool hosting, TryToHost(options));
      if (hosting) return server_->MakeLocalLink(spec.run_id, IncarnationOf(life_key_));
    }
    if (!spec.authentication) {
      log::Write(log::Level::kInfo, "authentication_off",
                 absl::StrCat("meeting the other nodes at ",
                              ToString(Endpoint{.host = setup_.endpoint->host,
                                                .port = setup_.endpoint->port}),
                              kAuthenticationOff));
    }
    rendezvous::GrpcLinkOptions link;
    // A name is resolved again at each attempt; what it means on this machine is decided.
    link.host = setup_.endpoint->is_local ? setup_.endpoint->address : setup_.endpoint->host;
    link.port = setup_.endpoint->port;
    link.secret = secret;
    link.tls = options.tls;
    link.run_id = spec.run_id;
    link.incarnation = IncarnationOf(life_key_);
    link.node_name = setup_.agent.node.name;
    link.jitter_seed = link.incarnation.value();
    guardian.death_notice =
        agent::Encode(agent::DeathNotice{.host = link.host,
                                         .port = link.port,
                                         .secret = link.secret.secret,
                                         .tls = link.tls == TlsMode::kOn,
                                         .run_id = link.run_id,
                                         .node_name = link.node_name,
                                         .life_key = {life_key_.begin(), life_key_.end()}});
    return std::make_unique<rendezvous::GrpcLink>(loop_, std::move(link));
  }

  absl::StatusOr<UserSecret> FindSecret() const {
    if (!setup_.agent.spec.authentication) return PublicSecret();
    return LoadUserSecret(
        {.token = VariableOrEmpty(invocation_.environment, "MUSTER_TOKEN"),
         .token_file = VariableOrEmpty(invocation_.environment, "MUSTER_TOKEN_FILE"),
         .home = VariableOrEmpty(invocation_.environment, "HOME")});
  }

  // A musterd that has just been killed comes back, if it has a supervisor; its port must be free
  // then. How this node ends, if it is told to meanwhile.
  std::optional<JobOutcome> AwaitMarkedServer() {
    const JobSpec& spec = setup_.agent.spec;
    if (!setup_.endpoint || !setup_.may_host) return std::nullopt;
    const ResolvedEndpoint& endpoint = *setup_.endpoint;
    if (spec.is_host.value_or(false)) return std::nullopt;  // the user has decided
    bool is_said = false;
    const MonoTime give_up = MonoNow() + spec.orphan_timeout;
    while (const auto marked = rendezvous::FindMarkedServer(endpoint.port, spec.orphan_timeout)) {
      if (IsServedHere(endpoint) || MonoNow() >= give_up) return std::nullopt;
      if (!std::exchange(is_said, true)) {
        log::Write(log::Level::kInfo, "awaiting_musterd",
                   absl::StrCat(marked->who, " had port ", endpoint.port,
                                " here and has not ended cleanly; waiting up to ",
                                absl::FormatDuration(absl::Ceil(
                                    spec.orphan_timeout - marked->silent_for, absl::Seconds(1))),
                                " for it to be started again, then this node hosts the rendezvous "
                                "(at once with --rdzv_conf=is_host=true)"));
      }
      pollfd signal{.fd = signals_.native_handle(), .events = POLLIN, .revents = 0};
      signalfd_siginfo info{};
      const bool is_told = ::poll(&signal, 1, kLookForServerEvery) > 0 &&
                           read(signals_.native_handle(), &info, sizeof(info)) == sizeof(info);
      const int signal_number = static_cast<int>(info.ssi_signo);
      const bool ends = signal_number == SIGINT || signal_number == SIGTERM ||
                        signal_number == SIGHUP || signal_number == SIGQUIT;
      if (!is_told || !ends) continue;
      return JobOutcome{.exit_code = ExitCodeOfSignal(signal_number),
                        .reason = absl::StrCat("interrupted while waiting for ", marked->who,
                                               " to be started again")};
    }
    return std::nullopt;
  }

  // False if the endpoint's port is taken: then its owner is the server.
  absl::StatusOr<bool> TryToHost(const rendezvous::RendezvousServerOptions& options) {
    server_ = rendezvous::RendezvousServer::Create(loop_, options);
    const ResolvedEndpoint& endpoint = *setup_.endpoint;
    const absl::StatusOr<int> port =
        ListenAsHost(endpoint, IncarnationOf(life_key_).value(), *server_);
    if (port.ok()) {
      setup_.agent.hosts_server = true;
      // A job of one node ends with it anyway.
      const char* const warning =
          setup_.agent.spec.is_single_node()
              ? ""
              : "; the job ends if this node is lost (musterd elsewhere would outlive it)";
      log::Write(log::Level::kInfo, "hosting",
                 absl::StrCat("hosting the rendezvous at ",
                              ToString(Endpoint{.host = endpoint.host, .port = *port}),
                              setup_.agent.spec.authentication ? "" : kAuthenticationOff, warning));
      ListenForOtherMachines(setup_.agent.spec, endpoint, setup_.agent.node.other_addresses,
                             *server_);
      return true;
    }
    server_.reset();
    if (port.status().code() != absl::StatusCode::kAlreadyExists) return port.status();
    const std::string holder = agent::DescribePortHolder(endpoint.port);
    if (!holder.empty()) absl::StrAppend(&setup_.agent.server, " (", holder, " has the port)");
    return false;
  }

  void OnFinished(JobOutcome outcome) {
    if (agent_->IsLeaving()) TellThatTheHostLeaves(0, outcome.reason);
    outcome_ = std::move(outcome);
    if (server_ == nullptr) {
      loop_.stop();
      return;
    }
    const int late = static_cast<int>(placement_.expected_nodes.size()) - nodes_seen_;
    if (late <= 0 || agent_->IsLeaving() || outcome_->exit_code == kExitNodesMissing) {
      return EndServer();
    }
    log::Write(log::Level::kInfo, "late_nodes",
               absl::StrCat("over; ", late, " of the ", placement_.expected_nodes.size(),
                            " nodes have not joined; they are told that the job is over for ",
                            absl::FormatDuration(kLateNodes)));
    late_nodes_.expires_after(absl::ToChronoNanoseconds(kLateNodes));
    late_nodes_.async_wait([this](const asio::error_code&) { EndServer(); });
  }

  void EndServer() {
    server_->Shutdown(kFarewell, [this] { loop_.stop(); });
  }

  // Constant after construction, but for what MakeLink finds out.
  NodeSetup setup_;
  const Invocation& invocation_;
  const OutputFlags& output_;
  const Placement& placement_;
  const Key life_key_ = DrawLifeKey();

  // Loop thread only.
  asio::io_context loop_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  asio::posix::stream_descriptor signals_;
  asio::posix::stream_descriptor step_daemon_;
  asio::steady_timer late_nodes_;
  asio::steady_timer time_limit_;
  std::unique_ptr<rendezvous::RendezvousServer> server_;
  std::unique_ptr<agent::Agent> agent_;
  std::optional<JobOutcome> outcome_;
  bool told_leaving_ = false;
  bool got_sigterm_ = false;
  int nodes_seen_ = 0;  // by the server of this process
};

// Whether the console of this node has shown what the worker wrote to stderr.
bool WasShown(const WorkerFailure& failure, const LogSpec& logs) {
  const agent::StreamRoute route =
      agent::DecideRoutes(logs, agent::ConsoleStream::kStderr,
                          {{.local_rank = failure.local_rank, .rank = failure.rank}})
          .front();
  return route.to_console;
}

int Conclude(const JobOutcome& outcome, const SummaryOptions& options,
             const Invocation& invocation) {
  if (outcome.exit_code == 0) return 0;
  const std::string summary = FormatExitSummary(outcome, options);
  std::fwrite(summary.data(), 1, summary.size(), stderr);
  const std::string error_file = VariableOrEmpty(invocation.environment, kErrorFile);
  if (!error_file.empty() && outcome.root_cause) {
    const absl::Status written = agent::WriteErrorFile(error_file, *outcome.root_cause);
    if (!written.ok()) log::Write(log::Level::kWarning, "error_file", written.message());
  }
  return outcome.exit_code;
}

}  // namespace

int RunCommand(const Invocation& invocation) {
  const absl::StatusOr<SchedulerFindings> scheduler = FindScheduler(SurroundingsOf(invocation));
  auto parsed = ParseFlags(invocation.args, invocation.environment,
                           absl::StrCat("local-", ToString(IncarnationOf(DrawLifeKey()))),
                           scheduler, ViewOfThisMachine(invocation));
  if (!parsed.ok()) {
    // One task of a node says it.
    if (scheduler.ok() && scheduler->local_task > 0) return ExitCodeOf(parsed.status());
    return Refuse(WithSource(parsed.status(), invocation));
  }
  if (const auto* print = std::get_if<PrintAndExit>(&*parsed)) {
    return std::fputs(print->text.c_str(), stdout) < 0 ? 1 : 0;
  }
  if (const auto* job = std::get_if<HostJob>(&*parsed)) return HostsCommand(*job, invocation);
  const RunFlags& flags = std::get<RunFlags>(*parsed);
  ConfigureLog(flags.output, nullptr);
  const Placement& placement = flags.placement;
  std::optional<TaskGate> gate;
  if (placement.num_local_tasks > 1) {
    const std::string tasks =
        placement.tasks_of.empty() ? absl::StrCat("of-", getppid()) : placement.tasks_of;
    if (placement.local_task > 0) return LieIdle(tasks);
    absl::StatusOr<TaskGate> opened = TaskGate::Open(tasks);
    if (!opened.ok()) return Refuse(opened.status());
    gate.emplace(*std::move(opened));
    TakeAllCpus();
  }
  if (!placement.start_line.empty()) {
    log::Write(placement.is_first ? log::Level::kInfo : log::Level::kDebug, "scheduler",
               placement.start_line);
  }
  if (placement.end_time > 0) {
    log::Write(placement.is_first ? log::Level::kInfo : log::Level::kDebug, "time_limit",
               absl::StrCat("Slurm ends this job in ", TimeLeft(placement.end_time),
                            " (SLURM_JOB_END_TIME)"));
  }
  for (const std::string& warning : flags.warnings) {
    log::Write(log::Level::kWarning, "flags", warning);
  }
  for (const std::string& note : flags.notes) {
    log::Write(placement.is_first ? log::Level::kInfo : log::Level::kDebug, "flags", note);
  }
  // Before anything that may start a thread; it ends by itself when we do.
  absl::StatusOr<agent::GuardianHandle> guardian = agent::ForkGuardian();
  if (!guardian.ok()) return Refuse(guardian.status());
  // Behind the guardian, so that workers keep the limit that they were started with.
  const int open_files = RaiseDescriptorLimit();
  Invocation configured = invocation;
  for (const auto& [name, value] : flags.environment) configured.environment[name] = value;
  absl::StatusOr<NodeSetup> setup = PrepareNode(flags.spec, placement, configured);
  if (!setup.ok()) return Refuse(setup.status());
  if (const absl::Status enough = CheckOpenFiles(open_files, setup->agent.node.local_world_size);
      !enough.ok()) {
    UndoNodeSetup(setup->agent);
    return Refuse(enough);
  }
  for (const std::string& note : setup->notes) log::Write(log::Level::kInfo, "setup", note);
  const agent::AgentOptions prepared = setup->agent;
  SummaryOptions summary{.program = flags.spec.program.name,
                         .this_node = prepared.node.name,
                         .python = setup->python,
                         .was_shown =
                             [&](const WorkerFailure& failure) {
                               return failure.node_name == prepared.node.name &&
                                      WasShown(failure, flags.spec.logs);
                             },
                         .shares_console = placement.shares_console};
  const absl::StatusOr<JobOutcome> outcome = [&] {
    NodeRun run(*std::move(setup), invocation, flags);
    absl::StatusOr<JobOutcome> ended = run.Run(*std::move(guardian));
    if (ended.ok()) summary.network_faults = run.network_faults();
    return ended;
  }();
  if (!outcome.ok()) {
    UndoNodeSetup(prepared);
    return Refuse(outcome.status());
  }
  return Conclude(*outcome, summary, invocation);
}

}  // namespace muster::launcher
