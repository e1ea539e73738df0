// One node's run: the loop and everything on it, from the signals to the end of the job.
//
// The loop runs on the calling thread, which owns all of it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/agent.h"
#include "agent/guardian/guardian.h"
#include "asio/executor_work_guard.hpp"
#include "asio/io_context.hpp"
#include "asio/posix/stream_descriptor.hpp"
#include "asio/steady_timer.hpp"
#include "launcher/line/flags.h"
#include "launcher/line/invocation.h"
#include "launcher/line/placement.h"
#include "launcher/node/meeting.h"
#include "launcher/node/node_setup.h"
#include "launcher/node/node_signals.h"
#include "proto/base/membership.h"

namespace muster::launcher {

class NodeRun {
 public:
  // `invocation` and `flags` outlive it.
  NodeRun(NodeSetup setup, const Invocation& invocation, const RunFlags& flags);

  // Runs until the job is over for this node. Called once.
  //
  // Errors: for the user: what kept it from beginning.
  absl::StatusOr<JobOutcome> Run(agent::GuardianHandle guardian);
  // Once it has run; none where the job ended before its agent began.
  std::vector<std::string> network_faults() const;

 private:
  void RouteLogBetweenWorkersLines();
  absl::Status ServeMetrics();
  void WatchStepDaemon();
  void AwaitTimeLimit();
  void OnSignal(int signal);
  bool IsRepeatedBySlurm(int signal);
  void StopWithTheTerminalGivenBack();
  void OnFinished(JobOutcome outcome);

  // Constant after construction, but for what the meeting finds out.
  NodeSetup setup_;
  const Invocation& invocation_;
  const RunFlags& flags_;

  // Destroyed in reverse order.
  asio::io_context loop_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  NodeSignals signals_;
  asio::posix::stream_descriptor step_daemon_;
  asio::steady_timer time_limit_;
  Meeting meeting_;
  std::unique_ptr<agent::Agent> agent_;
  std::optional<JobOutcome> outcome_;
  bool got_sigterm_ = false;
};

}  // namespace muster::launcher
