// What goes wrong, second by second, until the faults end.
#include <csignal>

#include "absl/strings/str_cat.h"
#include "proto/base/exit_codes.h"
#include "tests/simulation/sim_cluster.h"

namespace muster::simulation {
namespace {

// gRPC's keepalive gives up a connection on which nothing has come for so long.
constexpr absl::Duration kKeepalive = absl::Seconds(15);
// The patience of launcher/commands/death_notice_command.cc.
constexpr absl::Duration kNoticePatience = absl::Seconds(3);

}  // namespace

void SimCluster::InjectFaults() {
  if (is_healed_) return;
  std::vector<Incarnation> alive;
  for (const auto& [id, node] : nodes_) {
    if (node.is_alive && !node.finished) alive.push_back(id);
  }
  for (const Incarnation id : alive) InjectNodeFaults(id);
  InjectServerFaults();
  InjectRequests();
  schedule_.After(absl::Seconds(1), [this] { InjectFaults(); });
}

void SimCluster::InjectNodeFaults(Incarnation id) {
  Node& node = nodes_.at(id);
  const auto cut_length = [this] { return random_.Between(absl::Seconds(1), absl::Seconds(40)); };
  if (random_.Chance(plan_.stream_breaks)) BreakStream(node, "connection reset");
  if (random_.Chance(plan_.slow_loops)) {
    Pause(node, random_.Between(absl::Milliseconds(200), absl::Seconds(3)));
  }
  if (random_.Chance(plan_.pauses)) {
    Pause(node, random_.Between(absl::ZeroDuration(), absl::Seconds(30)));
  }
  if (random_.Chance(plan_.cuts)) {
    const absl::Duration length = cut_length();
    Cut(node, Direction::kUp, length);
    Cut(node, Direction::kDown, length);
  }
  if (random_.Chance(plan_.cuts_up)) Cut(node, Direction::kUp, cut_length());
  if (random_.Chance(plan_.cuts_down)) Cut(node, Direction::kDown, cut_length());
  if (random_.Chance(plan_.signals)) {
    ++fates_[node.job].disturbances;
    SignalAgent(node, random_.Chance(0.5) ? SIGTERM : SIGINT);
    if (random_.Chance(0.3)) {
      schedule_.After(random_.Between(absl::Milliseconds(1), absl::Seconds(3)), [this, id] {
        Node& same = nodes_.at(id);
        if (same.is_alive && !same.finished) SignalAgent(same, SIGINT);
      });
    }
  }
  if (node.is_alive && !node.is_paused && random_.Chance(plan_.warnings)) Warn(node);
  if (node.is_alive && !node.is_paused && random_.Chance(plan_.forbidden_rounds)) {
    NoteCause(node, kExitFailure);
    ++fates_[node.job].disturbances;
    StepAgent(id, agent::RoundForbidden{{.reason = node.name + " cannot reach another node",
                                         .exit_code = kExitFailure}});
  }
  if (node.is_alive && !node.is_paused && random_.Chance(plan_.guardian_losses)) {
    NoteCause(node, kExitFailure);
    ++fates_[node.job].disturbances;
    for (Worker& worker : node.workers) worker.alive = false;
    StepAgent(id, agent::GuardianLost{"the guardian was killed"});
  }
  if (random_.Chance(plan_.crashes)) Crash(node, false);
  if (node.is_alive && random_.Chance(plan_.storms)) {
    ++fates_[node.job].disturbances;
    Crash(node, true);
  }
  // The second node of each job is the one with the bad cable.
  const bool flaps = node.name.size() == 2 && node.name[1] == '2';
  if (flaps && node.is_alive && random_.Chance(plan_.flapping)) Crash(node, true);
}

void SimCluster::InjectServerFaults() {
  if (random_.Chance(plan_.blackouts) && schedule_.now() >= blackout_until_) {
    const absl::Duration length = random_.Between(absl::Seconds(1), absl::Seconds(60));
    Trace("network", absl::StrCat("blackout for ", absl::FormatDuration(length)));
    blackout_until_ = schedule_.now() + length;
    for (JobFate& fate : fates_) ++fate.disturbances;
    if (length > kKeepalive) {
      schedule_.After(kKeepalive, [this] {
        if (schedule_.now() >= blackout_until_) return;  // the faults have ended meanwhile
        for (auto& [unused, node] : nodes_) {
          if (node.is_alive) BreakStream(node, "keepalive");
        }
      });
    }
  }
  if (random_.Chance(plan_.server_stalls) && table_ != nullptr) {
    const absl::Duration length = random_.Between(absl::Milliseconds(500), absl::Seconds(20));
    StallServer(length);
    // The host's agent is the same process.
    for (auto& [unused, node] : nodes_) {
      if (node.hosts && node.is_alive) Pause(node, length);
    }
  }
  if (random_.Chance(plan_.disk_stalls) && schedule_.now() >= disk_stalls_until_) {
    const absl::Duration length = random_.Between(absl::Milliseconds(100), absl::Seconds(20));
    Trace("disk", absl::StrCat("writes nothing for ", absl::FormatDuration(length)));
    disk_stalls_until_ = schedule_.now() + length;
    for (JobFate& fate : fates_) ++fate.disturbances;
  }
  if (!plan_.is_embedded && table_ != nullptr && random_.Chance(plan_.server_crashes)) {
    KillServer();
  }
  for (auto& [id, node] : nodes_) {
    if (!node.hosts || !node.is_alive || node.finished) continue;
    if (random_.Chance(plan_.server_crashes)) Crash(node, true);
    if (node.is_alive && random_.Chance(plan_.host_departures)) {
      SignalAgent(node, SIGTERM);
    }
  }
}

void SimCluster::NoteCause(Node& node, int exit_code) {
  node.causes.exit_codes.insert(exit_code);
  fates_[node.job].causes.exit_codes.insert(exit_code);
}

void SimCluster::Warn(Node& node) {
  if (random_.Chance(0.5)) {
    StepAgent(node.incarnation, agent::SignalReceived{SIGUSR1});  // workers go on
    return;
  }
  NoteCause(node, ExitCodeOfSignal(SIGTERM));
  ++fates_[node.job].causes.asked_to_stop;
  ++fates_[node.job].disturbances;
  StepAgent(node.incarnation, agent::TimeRunsOut{"the time is up in a minute"});
}

void SimCluster::SignalAgent(Node& node, int signal) {
  NoteCause(node, ExitCodeOfSignal(signal));
  StepAgent(node.incarnation, agent::SignalReceived{signal});
}

// A dead process takes its workers along; a dead machine does not even close its stream.
void SimCluster::Crash(Node& node, bool is_back_soon) {
  Trace(node.name, "crashes");
  JobFate& fate = fates_[node.job];
  const bool is_flapping = is_back_soon && !node.hosts;
  fate.disturbances += !is_flapping;
  node.is_alive = false;
  node.is_connected = false;
  for (Worker& worker : node.workers) worker.alive = false;
  const int stream = ++node.stream;
  if (node.hosts) {
    fate.was_host_lost = true;
    CrashServer();
  } else if (is_back_soon || random_.Chance(0.5)) {
    TellDisconnect(node.incarnation, stream);
    if (random_.Chance(plan_.death_notices)) {
      SendDeathNotice(node.incarnation, schedule_.now() + kNoticePatience);
    }
  }
  if (!is_back_soon && !random_.Chance(0.8)) return;
  // A machine that closes no connection has to start first.
  const absl::Duration gone = is_back_soon
                                  ? random_.Between(absl::Milliseconds(100), absl::Seconds(3))
                                  : random_.Between(absl::Seconds(3), absl::Seconds(20));
  schedule_.After(gone, [this, job = node.job, name = node.name, rank = node.node_rank,
                         hosts = node.hosts] { StartNode(job, name, rank, hosts); });
}

void SimCluster::SendDeathNotice(Incarnation id, MonoTime until) {
  schedule_.After(random_.Between(absl::Milliseconds(10), absl::Seconds(1)), [this, id, until] {
    const Node& node = nodes_.at(id);
    if (schedule_.now() > until) return;
    if (table_ == nullptr || is_stalling_ || IsCut(node, Direction::kUp)) {
      SendDeathNotice(id, until);
      return;
    }
    Trace(node.name, "its guardian tells of its death");
    const rendezvous::JobKey key = KeyOf(node.job);
    const auto is_known = [&] {
      const rendezvous::JobState* state = table_ == nullptr ? nullptr : table_->FindState(key);
      return state != nullptr && state->nodes.contains(id);
    };
    const bool was_known = is_known();
    const Incarnation guardian(random_.Bits() | 1);
    AtServer(
        [&] { return table_->OnAgentEnded(key, {.from = guardian, .agent = id}, ServerNow()); });
    fates_[node.job].deaths_noticed += was_known;
    coverage_.deaths_noticed += was_known && !is_known();
  });
}

void SimCluster::Pause(Node& node, absl::Duration length) {
  if (node.is_paused || !node.is_alive) return;
  Trace(node.name, absl::StrCat("is paused for ", absl::FormatDuration(length)));
  if (length > absl::Seconds(4)) {
    ++fates_[node.job].disturbances;
    if (node.hosts) StallServer(length);
  }
  node.is_paused = true;
  schedule_.After(length, [this, id = node.incarnation] { Resume(id); });
}

void SimCluster::Resume(Incarnation id) {
  Node& node = nodes_.at(id);
  node.is_paused = false;
  std::vector<agent::Event> held = std::move(node.held_events);
  node.held_events.clear();
  for (agent::Event& event : held) StepAgent(id, std::move(event));
}

void SimCluster::Cut(Node& node, Direction direction, absl::Duration length) {
  if (node.hosts) return;
  const MonoTime until = schedule_.now() + length;
  (direction == Direction::kUp ? node.cut_up_until : node.cut_down_until) = until;
  ++fates_[node.job].disturbances;
  Trace(node.name, absl::StrCat("is cut off ", direction == Direction::kUp ? "up" : "down", " for ",
                                absl::FormatDuration(length)));
  if (length <= kKeepalive) return;
  schedule_.After(kKeepalive, [this, id = node.incarnation, direction] {
    Node& same = nodes_.at(id);
    if (same.is_alive && IsCut(same, direction)) BreakStream(same, "keepalive");
  });
}

void SimCluster::Heal() {
  Trace("simulation", "faults end");
  is_healed_ = true;
  blackout_until_ = schedule_.now();
  std::vector<Incarnation> ids;
  for (auto& [id, node] : nodes_) {
    ids.push_back(id);
    node.cut_up_until = node.cut_down_until = schedule_.now();
  }
  for (const Incarnation id : ids) Resume(id);
  for (int job = 0; job < static_cast<int>(fates_.size()); ++job) {
    plan_.jobs[job].is_endless ? ExpectRound(job) : ExpectEnd(job);
  }
}

}  // namespace muster::simulation
