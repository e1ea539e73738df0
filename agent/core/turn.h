// One step of AgentCore on its way through the values that it consists of.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "agent/core/agent_events.h"
#include "proto/base/membership.h"
#include "proto/base/mono_time.h"

namespace muster::agent {

struct AgentCoreOptions {
  NodeDescription node;  // without ports
  RendezvousSettings settings;
  LeaseSettings lease;
  absl::Duration read_timeout;  // see JobSpec
  absl::Duration lost_peer_grace = absl::Seconds(5);
  // What ends quicker than this after the workers is not worth a line.
  absl::Duration leftover_notice = absl::Seconds(1);
  // A signal here stops the job, although it would be passed on to the workers otherwise.
  std::vector<int> stop_signals;
  absl::Duration unkillable_timeout = absl::Seconds(10);
  // What a worker that awaits a round, and is given its place in it, may take to come.
  absl::Duration hello_timeout = absl::Seconds(30);
  std::string server;         // "the rendezvous at node1:29400", for messages
  bool hosts_server = false;  // this process is the server too: it is never unreachable
  bool checks_node = false;   // there is a --node_check
};

struct Turn {
  const AgentCoreOptions& options;
  MonoTime now;
  std::vector<Effect> effects = {};  // in this order

  void Do(Effect effect) { effects.push_back(std::move(effect)); }
  void Say(Announce::Level level, std::string event, std::string text) {
    Do(Announce{level, std::move(event), std::move(text)});
  }
};

}  // namespace muster::agent
