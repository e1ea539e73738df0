// The server of the simulation: its lives, its stalls, and what leaves it.
#include "absl/strings/str_cat.h"
#include "tests/simulation/sim_cluster.h"

namespace muster::simulation {

void SimCluster::StartServer() {
  ++server_life_;
  ++coverage_.server_lives;
  stalled_ = absl::ZeroDuration();
  is_stalling_ = false;
  held_at_server_.clear();
  const LeaseSettings lease;
  // A first life has nobody before it; an embedded one does not wait in case it had.
  const bool is_young = server_life_ > 1 && !plan_.is_embedded;
  const MonoTime young_until =
      is_young ? schedule_.now() + lease.duration + lease.margin : MonoTime();
  table_ = std::make_unique<rendezvous::JobTable>(
      rendezvous::JobTableOptions{.term = ServerTerm(server_life_),
                                  .lease = lease,
                                  .only_run_id = plan_.is_embedded ? KeyOf(0).run_id : "",
                                  .young_until = young_until});
  for (auto& [unused, node] : nodes_) node.heard_at.reset();
  Trace("server", absl::StrCat("starts life ", server_life_));
}

void SimCluster::CrashServer() {
  if (table_ == nullptr) return;
  Trace("server", "crashes");
  table_.reset();
  held_at_server_.clear();
  ++server_timer_;
  for (auto& [unused, node] : nodes_) {
    if (node.is_alive && node.is_connected && !node.hosts) BreakStream(node, "the server is gone");
  }
}

void SimCluster::StallServer(absl::Duration length) {
  if (table_ == nullptr || is_stalling_) return;
  Trace("server", absl::StrCat("stalls for ", absl::FormatDuration(length)));
  is_stalling_ = true;
  schedule_.After(length, [this, length, life = server_life_] {
    if (life != server_life_ || table_ == nullptr) return;
    is_stalling_ = false;
    stalled_ += length;  // as StallClock counts it
    std::vector<std::function<void()>> held = std::move(held_at_server_);
    held_at_server_.clear();
    for (const auto& act : held) act();
    ArmServer();
  });
}

void SimCluster::AtServer(std::function<std::vector<rendezvous::JobTable::JobEffect>()> act) {
  if (table_ == nullptr || !failure_.empty()) return;
  if (is_stalling_) {
    held_at_server_.push_back([this, act] { AtServer(act); });
    return;
  }
  StepServer(act());
}

void SimCluster::StepServer(std::vector<rendezvous::JobTable::JobEffect> effects) {
  for (rendezvous::JobTable::JobEffect& effect : effects) {
    Observe(effect);
    if (auto* send = std::get_if<rendezvous::SendDirective>(&effect.effect)) {
      const Incarnation to = send->to;
      Deliver(to, Direction::kDown, [this, to, directive = send->directive] {
        Node& node = nodes_.at(to);
        if (!node.is_connected || !node.is_alive) return;
        if (const auto* end = std::get_if<EndJob>(&directive.body)) node.told = end->outcome;
        node.was_accepted |= !std::holds_alternative<Refuse>(directive.body);
        StepAgent(to, agent::DirectiveArrived{directive});
      });
    } else if (auto* reply = std::get_if<rendezvous::SendStoreReply>(&effect.effect)) {
      Deliver(reply->to, Direction::kDown, [this, to = reply->to, answer = reply->reply] {
        if (nodes_.at(to).is_connected && nodes_.at(to).is_alive) OnStoreReply(to, answer);
      });
    }
  }
  if (std::string broken = table_->CheckInvariants(); !broken.empty()) Fail(broken);
  ArmServer();
}

void SimCluster::ArmServer() {
  const uint64_t timer = ++server_timer_;
  if (is_stalling_) return;  // armed when it ends
  const MonoTime deadline = table_->NextDeadline();
  if (deadline.is_infinite()) return;
  schedule_.At(deadline + stalled_, [this, timer] {
    if (timer != server_timer_ || is_stalling_) return;
    StepServer(table_->Tick(ServerNow()));
  });
}

}  // namespace muster::simulation
