#include "launcher/node/node_run.h"

#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "asio/dispatch.hpp"
#include "launcher/node/host_listening.h"
#include "launcher/node/log_setup.h"
#include "launcher/schedulers/step_daemon.h"
#include "proto/base/endpoint.h"
#include "proto/base/exit_codes.h"
#include "proto/base/process_end.h"
#include "proto/base/status_macros.h"
#include "proto/io/log.h"
#include "proto/io/metrics_token.h"
#include "proto/io/user_secret.h"

namespace muster::launcher {
namespace {

constexpr absl::Duration kLongestTimer = absl::Hours(24 * 365);

}  // namespace

NodeRun::NodeRun(NodeSetup setup, const Invocation& invocation, const RunFlags& flags)
    : setup_(std::move(setup)),
      invocation_(invocation),
      flags_(flags),
      work_(loop_.get_executor()),
      signals_(loop_),
      step_daemon_(loop_),
      time_limit_(loop_),
      meeting_(loop_, flags.placement) {}

absl::StatusOr<JobOutcome> NodeRun::Run(agent::GuardianHandle guardian) {
  const JobSpec& spec = setup_.agent.spec;
  MUSTER_RETURN_IF_ERROR(
      signals_.Hold(spec, /*under_slurm=*/invocation_.environment.contains("SLURM_JOB_ID")));
  if (setup_.endpoint && setup_.may_host) {
    if (auto interrupted = AwaitMarkedServer(spec, *setup_.endpoint, signals_)) {
      UndoNodeSetup(setup_.agent);
      return *std::move(interrupted);
    }
  }
  MUSTER_ASSIGN_OR_RETURN(std::unique_ptr<rendezvous::RendezvousLink> link,
                          meeting_.MakeLink(setup_, invocation_.environment, guardian));
  agent_ = std::make_unique<agent::Agent>(
      loop_, setup_.agent, std::move(guardian), std::move(link),
      [this](JobOutcome outcome) { OnFinished(std::move(outcome)); });
  signals_.Deliver([this](int signal) { OnSignal(signal); });
  RouteLogBetweenWorkersLines();
  absl::Status started = agent_->Start();
  if (started.ok()) started = ServeMetrics();
  if (flags_.placement.is_slurm) WatchStepDaemon();
  if (flags_.placement.end_time > 0) AwaitTimeLimit();
  if (started.ok()) loop_.run();
  ConfigureLog(flags_.output);  // the agent's lines end here, also where it could not start
  MUSTER_RETURN_IF_ERROR(started);
  agent_->FlushOutput();
  MUSTER_CHECK(outcome_.has_value());
  return *outcome_;
}

std::vector<std::string> NodeRun::network_faults() const {
  return agent_ == nullptr ? std::vector<std::string>() : agent_->network_faults();
}

// Our own lines go through the agent's log pump, so that they tear none of the workers'.
void NodeRun::RouteLogBetweenWorkersLines() {
  ConfigureLog(flags_.output, [this](const std::string& line) {
    asio::dispatch(loop_, [this, line] { agent_->PrintLine(line); });
  });
}

// A job does not fail for want of a port; without the secret it would tell strangers.
absl::Status NodeRun::ServeMetrics() {
  const std::optional<Endpoint>& at = flags_.output.metrics;
  if (!at) return absl::OkStatus();
  std::string token;
  if (setup_.agent.spec.authentication) {
    MUSTER_ASSIGN_OR_RETURN(const UserSecret secret,
                            FindSecret(setup_.agent.spec, invocation_.environment));
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

// --- Signals, and what ends a node as they do

void NodeRun::OnSignal(int signal) {
  if (outcome_) meeting_.EndNow();
  if (signal == SIGWINCH) return agent_->OnWindowSize();
  if (signal == SIGTSTP) return StopWithTheTerminalGivenBack();
  if (IsRepeatedBySlurm(signal)) return;
  agent_->OnSignal(signal);
  if (agent_->IsLeaving()) {
    meeting_.TellLeaving(signal, absl::StrCat("got ", SignalInWords(signal)));
  }
}

// At a time limit Slurm sends SIGTERM twice within milliseconds, and SIGKILL when its own time is
// up. The second is nobody's wish for haste.
bool NodeRun::IsRepeatedBySlurm(int signal) {
  if (!flags_.placement.is_slurm || signal != SIGTERM) return false;
  return std::exchange(got_sigterm_, true);
}

// A node that Slurm can neither stop nor hear is lost to its job, and would be a ghost beside the
// next.
void NodeRun::WatchStepDaemon() {
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
void NodeRun::AwaitTimeLimit() {
  const int64_t end_time = flags_.placement.end_time;
  const absl::Duration left = LeftUntil(end_time, absl::Now());
  if (left < absl::ZeroDuration() || left > kLongestTimer) return;
  time_limit_.expires_after(absl::ToChronoNanoseconds(left - setup_.agent.spec.shutdown_timeout));
  time_limit_.async_wait([this, end_time](const asio::error_code& error) {
    if (error) return;
    agent_->OnTimeRunsOut(
        absl::StrCat("the job reaches its time limit in ", TimeLeftInWords(end_time, absl::Now())));
  });
}

// Ctrl-Z. What follows the stop runs once somebody continues us. The signal's default action
// stops nobody whom no shell could continue. Workers run on: they are in sessions of their own.
void NodeRun::StopWithTheTerminalGivenBack() {
  agent_->LeaveTerminal();
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTSTP);
  raise(SIGTSTP);
  pthread_sigmask(SIG_UNBLOCK, &stop, nullptr);
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  agent_->ReturnToTerminal();
}

void NodeRun::OnFinished(JobOutcome outcome) {
  const bool is_leaving = agent_->IsLeaving();
  if (is_leaving) meeting_.TellLeaving(0, outcome.reason);
  const bool awaits_late_nodes = !is_leaving && outcome.exit_code != kExitNodesMissing;
  outcome_ = std::move(outcome);
  meeting_.End(awaits_late_nodes, [this] { loop_.stop(); });
}

}  // namespace muster::launcher
