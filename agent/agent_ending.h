// The last acts of an agent, none of which blocks, since its loop may serve the rendezvous of other
// nodes, which must hear of the end meanwhile: the guardian ends with all that is below it, then
// what was only for the job is removed; the last report goes out, and the link is closed.
//
// One event loop, loop thread only.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "agent/core/agent_events.h"
#include "agent/guardian/guardian.h"
#include "agent/process/lane.h"
#include "asio/io_context.hpp"
#include "proto/io/loop_mailbox.h"
#include "rendezvous/link/rendezvous_link.h"

namespace muster::agent {

// How long each of them is tried.
inline constexpr absl::Duration kFarewell = absl::Seconds(5);

struct AgentEndingOptions {
  std::string runtime_directory;  // removed once the guardian has ended
  // Called then: keeps or removes the run directory, and calls `settled`, once, from the loop.
  std::function<void(std::function<void()> settled)> settle_run_directory;
  // Called once, at the very end.
  std::function<void(JobOutcome)> on_finished;
};

class AgentEnding {
 public:
  // `guardian` and `link` are used in Begin alone.
  AgentEnding(asio::io_context& loop, AgentEndingOptions options, GuardianClient& guardian,
              rendezvous::RendezvousLink& link);
  ~AgentEnding() { mailbox_.Close(); }

  void Begin(const Finish& effect);
  // Ends every process below this one on a thread of its own, which takes some seconds at most, and
  // then runs `then` on the loop.
  void EndDescendants(std::function<void()> then);

 private:
  void OnGuardianEnded();
  void FinishIfAllIsClosed();

  AgentEndingOptions options_;
  GuardianClient& guardian_;
  rendezvous::RendezvousLink& link_;
  const LoopMailbox mailbox_;
  const Lane sweeping_{"sweep"};
  std::optional<JobOutcome> outcome_;  // from Begin on
  bool run_directory_is_settled_ = false;
  bool link_is_closed_ = false;
};

}  // namespace muster::agent
