// What stands before a start of workers: a network that has been looked at, the hook, and the warm
// process that may fork them.
//
// Threads: loop thread only.
#pragma once

#include <utility>

#include "agent/guardian/guardian.h"
#include "agent/network/round_network.h"
#include "agent/round_hook.h"
#include "agent/warm_start.h"
#include "asio/io_context.hpp"

namespace muster::agent {

class BeforeWorkers {
 public:
  BeforeWorkers(asio::io_context& loop, GuardianClient& guardian, RoundNetworkOptions options,
                RoundNetwork::Ask ask, WarmStart::Options warm, WarmStart::Say say)
      : network_(loop, std::move(options), std::move(ask)),
        hook_(loop, guardian),
        warm_(std::move(warm), guardian, std::move(say)) {}

  RoundNetwork& network() { return network_; }
  const RoundNetwork& network() const { return network_; }
  RoundHook& hook() { return hook_; }
  WarmStart& warm() { return warm_; }
  void Cancel() {
    network_.Cancel();
    hook_.Cancel();
  }

 private:
  RoundNetwork network_;
  RoundHook hook_;
  WarmStart warm_;
};

}  // namespace muster::agent
