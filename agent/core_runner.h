// Runs AgentCore: feeds it one event after the other, hands its effects to the shell, and wakes it
// at its deadlines.
//
// One event loop, loop thread only.
#pragma once

#include <deque>

#include "agent/core/agent_core.h"
#include "asio/io_context.hpp"
#include "asio/steady_timer.hpp"

namespace muster::agent {

class CoreRunner {
 public:
  // Performs what the core decides; may feed events in all of these.
  class Shell {
   public:
    virtual ~Shell() = default;
    virtual void OnEffect(const Effect& effect) = 0;
    // The effects of one event have been performed.
    virtual void OnStepped() = 0;
    // The effects of all events have been performed.
    virtual void OnRest() = 0;
    // A deadline of the core has come, and its Tick follows.
    virtual void OnDeadline() = 0;
  };

  // `shell` outlives this; it is not called by the constructor.
  CoreRunner(asio::io_context& loop, AgentCoreOptions options, Shell& shell);

  // Events that come up while effects are performed wait for their turn, so that Step is never
  // entered twice.
  void Feed(Event event);
  const AgentCore& core() const { return core_; }

 private:
  void ArmTimer();

  Shell& shell_;
  AgentCore core_;
  std::deque<Event> events_;
  bool is_stepping_ = false;
  asio::steady_timer timer_;
};

}  // namespace muster::agent
