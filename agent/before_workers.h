// What a round needs before its workers start: a network that has been looked at, and the hook.
//
// Threads: loop thread only.
#pragma once

#include <utility>

#include "agent/network/round_network.h"
#include "agent/process/guardian.h"
#include "agent/round_hook.h"
#include "asio/io_context.hpp"

namespace muster::agent {

class BeforeWorkers {
 public:
  BeforeWorkers(asio::io_context& loop, GuardianClient& guardian, RoundNetworkOptions options,
                RoundNetwork::Ask ask)
      : network_(loop, std::move(options), std::move(ask)), hook_(loop, guardian) {}

  RoundNetwork& network() { return network_; }
  const RoundNetwork& network() const { return network_; }
  RoundHook& hook() { return hook_; }
  void Cancel() {
    network_.Cancel();
    hook_.Cancel();
  }

 private:
  RoundNetwork network_;
  RoundHook hook_;
};

}  // namespace muster::agent
