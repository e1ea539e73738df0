// The ways between agents and server.
#include "absl/strings/str_cat.h"
#include "tests/simulation/sim_cluster.h"

namespace muster::simulation {

bool SimCluster::IsCut(const Node& node, Direction direction) const {
  if (node.hosts) return false;
  if (schedule_.now() < blackout_until_) return true;
  return schedule_.now() < (direction == Direction::kUp ? node.cut_up_until : node.cut_down_until);
}

// The agent in the server's process needs no network.
void SimCluster::Deliver(Incarnation id, Direction direction, std::function<void()> act) {
  const Node& node = nodes_.at(id);
  if (node.hosts) {
    schedule_.After(absl::ZeroDuration(), std::move(act));
    return;
  }
  if (!node.is_connected || IsCut(node, direction)) return;
  const bool faults = !is_healed_;
  const int copies = (faults && random_.Chance(plan_.loss) ? 0 : 1) +
                     (faults && random_.Chance(plan_.duplication) ? 1 : 0);
  for (int i = 0; i < copies; ++i) {
    absl::Duration delay = random_.Exponential(plan_.delay_mean);
    if (faults && random_.Chance(plan_.reorder)) {
      delay += random_.Between(absl::ZeroDuration(), absl::Seconds(3));
    }
    schedule_.After(delay, act);
  }
}

void SimCluster::SendReport(Node& node, AgentReport report) {
  if (!node.is_connected) return;
  Deliver(node.incarnation, Direction::kUp,
          [this, id = node.incarnation, life = server_life_, report = std::move(report)] {
            if (life != server_life_) return;  // what was on its way to a server dies with it
            AtServer([this, id, report] {
              Node& from = nodes_.at(id);
              NoteHeard(from, report.sequence);
              from.causes.reported[report.sequence] = report.instance;
              const rendezvous::JobState* state = table_->FindState(KeyOf(from.job));
              const bool ran_without = state != nullptr && !state->in_round.contains(id) &&
                                       state->phase == rendezvous::JobPhase::kRunning;
              auto effects = table_->OnReport(KeyOf(from.job), id, report, ServerNow());
              CheckEndsNoRound(from, report, ran_without, effects);
              return effects;
            });
          });
}

// Counts as the server does: what comes late renews no lease.
void SimCluster::NoteHeard(Node& node, uint64_t sequence) {
  if (sequence <= node.heard_sequence) return;
  node.heard_sequence = sequence;
  const LeaseSettings lease;
  // It was not heard by this life before the job's present round was formed.
  const rendezvous::JobState* state = table_->FindState(KeyOf(node.job));
  const bool is_unknown =
      state != nullptr && state->round != kNoRound && !state->in_round.contains(node.incarnation);
  if (!node.heard_at && is_unknown) node.has_lapsed = true;
  if (node.heard_at && ServerNow() - *node.heard_at >= lease.duration) node.has_lapsed = true;
  node.heard_at = ServerNow();
  node.is_away = false;
}

void SimCluster::TellDisconnect(Incarnation id, int stream) {
  schedule_.After(random_.Exponential(plan_.delay_mean), [this, id, stream, life = server_life_] {
    if (nodes_.at(id).stream != stream || life != server_life_) return;
    AtServer([this, id] {
      nodes_.at(id).is_away = true;
      return table_->OnDisconnect(KeyOf(nodes_.at(id).job), id, ServerNow());
    });
  });
}

void SimCluster::BreakStream(Node& node, const std::string& why) {
  if (!node.is_connected || node.hosts) return;
  const Incarnation id = node.incarnation;
  node.is_connected = false;
  const int stream = ++node.stream;
  Trace(node.name, "stream breaks: " + why);
  TellDisconnect(id, stream);
  StepAgent(id, agent::LinkChanged{.up = false, .detail = why});
  schedule_.After(random_.Between(absl::Milliseconds(1), absl::Seconds(5)),
                  [this, id] { Reconnect(id); });
}

void SimCluster::Reconnect(Incarnation id) {
  Node& node = nodes_.at(id);
  if (!node.is_alive || node.is_connected || !failure_.empty()) return;
  const bool is_cut = IsCut(node, Direction::kUp) || IsCut(node, Direction::kDown);
  // A stopped process shakes nobody's hand.
  if (table_ == nullptr || is_cut || is_stalling_ || node.is_paused) {
    if (!node.is_paused && !is_healed_ && node.was_accepted && random_.Chance(plan_.impostors)) {
      ++coverage_.strangers_survived;
      StepAgent(id, agent::LinkChanged{.up = false,
                                       .detail = "somebody else answers",
                                       .fatal = absl::PermissionDeniedError("another secret")});
    }
    schedule_.After(random_.Between(absl::Milliseconds(500), absl::Seconds(5)),
                    [this, id] { Reconnect(id); });
    return;
  }
  node.is_connected = true;
  ++node.stream;
  StepAgent(id, agent::LinkChanged{.up = true, .detail = "connected"});
}

}  // namespace muster::simulation
