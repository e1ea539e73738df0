// The server of the simulation: its lives, its stalls, and what leaves it.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rendezvous/core/round_restore.h"
#include "tests/simulation/sim_cluster.h"

namespace muster::simulation {

void SimCluster::StartServer() {
  ++server_life_;
  server_since_ = schedule_.now();
  ++coverage_.server_lives;
  stalled_ = absl::ZeroDuration();
  is_stalling_ = false;
  held_at_server_.clear();
  DrawTerm();
  const LeaseSettings lease;
  // A first life has nobody before it; an embedded one does not wait in case it had.
  // One with durable state knows every round that runs.
  const bool knows_all = plan_.is_durable && terms_.first_kept != terms_.present;
  const bool is_young = server_life_ > 1 && !plan_.is_embedded && !knows_all;
  const MonoTime young_until =
      is_young ? schedule_.now() + lease.duration + lease.margin : MonoTime();
  table_ = std::make_unique<rendezvous::JobTable>(rendezvous::JobTableOptions{
      .term = terms_.present,
      .lease = lease,
      .only_run_id = plan_.is_embedded ? KeyOf(0).run_id : "",
      .max_jobs = static_cast<int>(plan_.jobs.size()),
      .young_until = young_until,
      .keeps_records = plan_.is_durable,
      .first_term = plan_.is_durable ? terms_.first_kept : ServerTerm()});
  gate_ = {};
  unsynced_.clear();
  in_flight_.clear();
  before_newest_.reset();
  is_syncing_ = false;
  std::vector<rendezvous::KeptJob> kept;
  std::vector<rendezvous::JobTable::JobEffect> skipped;  // with the term, as StateFile does it
  for (auto [unused, job] : disk_) {
    if (!knows_all) {
      rendezvous::SkipLostRounds(job.record);
      skipped.push_back({job.key, rendezvous::KeepJob{job.instance, job.record, job.record}});
    }
    kept.push_back(job);
    coverage_.restored_jobs += job.record.phase != rendezvous::JobPhase::kEnded;
    coverage_.stops_restored +=
        job.record.phase == rendezvous::JobPhase::kRunning && job.record.stop_step.has_value();
  }
  if (plan_.is_durable) Write(std::move(skipped), gate_.Hold());
  table_->Restore(std::move(kept), ServerNow());
  for (auto& [unused, node] : nodes_) {
    node.heard_at.reset();
    node.is_away = true;
  }
  for (int job = 0; job < static_cast<int>(fates_.size()); ++job) {
    const rendezvous::JobState* state = table_->FindState(KeyOf(job));
    fates_[job].newest_round = fates_[job].newest_told;
    if (state == nullptr || state->assignments.empty()) continue;
    const RoundId kept = IdOf(state->assignments.begin()->second);
    fates_[job].newest_round = std::max(kept, fates_[job].newest_round);
  }
  Trace("server", absl::StrCat("starts life ", server_life_));
  ArmServer();
}

// Chooses it as StateFile and the embedded server do. Without a disk the clock goes back by no more
// than the time since the last start: what is not tolerated.
void SimCluster::DrawTerm() {
  constexpr absl::Duration kToday = absl::Hours(24 * 365 * 56);
  const absl::Duration most = absl::Hours(1);
  const absl::Duration before = terms_.wall_offset;
  if (random_.Chance(plan_.clock_jumps)) {
    terms_.wall_offset += random_.Between(-most, most);
  }
  const auto term = [&] {
    return rendezvous::TermOfStart(
        absl::ToInt64Milliseconds(kToday + terms_.wall_offset + schedule_.now().since_zero()));
  };
  if (!plan_.is_durable && term() <= terms_.present) terms_.wall_offset = before;
  if (plan_.is_durable && server_life_ > 1 && random_.Chance(plan_.disk_damages)) {
    Trace("disk", "the state is damaged, and is moved away");
    disk_.clear();
    ++coverage_.states_damaged;
    terms_.was_damaged = true;
    // Nobody has promised that the clock goes on.
    terms_.wall_offset = std::max(terms_.wall_offset, before);
    if (term() <= terms_.present) {
      terms_.wall_offset += absl::Milliseconds(terms_.present.value() - term().value() + 1);
    }
    terms_.on_disk = ServerTerm();
  }
  terms_.present = term();
  if (plan_.is_durable && terms_.present <= terms_.on_disk) {
    terms_.present = ServerTerm(terms_.on_disk.value() + 1);
  }
  if (terms_.on_disk == ServerTerm() || terms_.is_torn) terms_.first_kept = terms_.present;
}

void SimCluster::CrashServer() {
  if (table_ == nullptr) return;
  Trace("server", "crashes");
  const bool is_writing = !in_flight_.empty() && schedule_.now() >= disk_stalls_until_;
  if (is_writing && random_.Chance(plan_.late_deaths)) {
    Trace("disk", "has written what was in flight");
    ++coverage_.written_unknown;
    CommitInFlight();
  }
  if (before_newest_ && random_.Chance(plan_.lost_writes)) {
    Trace("disk", "the newest transaction is not whole, and is left out");
    ++coverage_.writes_lost;
    disk_ = *before_newest_;
    terms_.was_damaged = terms_.is_torn = true;
    // What it said may have been told, and is not known.
    drained_.clear();
    stop_steps_.clear();
  }
  table_.reset();
  held_at_server_.clear();
  ++server_timer_;
  for (auto& [unused, node] : nodes_) {
    if (node.is_alive && node.is_connected && !node.hosts) BreakStream(node, "the server is gone");
  }
}

void SimCluster::KillServer() {
  CrashServer();
  for (JobFate& fate : fates_) ++fate.disturbances;
  schedule_.After(random_.Between(absl::Milliseconds(200), absl::Seconds(40)),
                  [this] { StartServer(); });
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
  for (const rendezvous::JobTable::JobEffect& effect : effects) Observe(effect);
  for (int job = 0; job < static_cast<int>(fates_.size()); ++job) CheckLosses(job);
  rendezvous::EffectGate::Passed passed = gate_.Push(std::move(effects));
  Leave(std::move(passed.leaving));
  if (!passed.to_write.empty()) Write(std::move(passed.to_write), passed.ticket);
  if (std::string broken = table_->CheckInvariants(); !broken.empty()) Fail(broken);
  ArmServer();
}

void SimCluster::Write(std::vector<rendezvous::JobTable::JobEffect> keeps, uint64_t ticket) {
  for (auto& keep : keeps) unsynced_.push_back(std::move(keep));
  unsynced_ticket_ = ticket;
  if (!is_syncing_) SyncDisk();
}

// One transaction at a time, with all that has come since the last one.
void SimCluster::SyncDisk() {
  is_syncing_ = true;
  absl::Duration length = random_.Between(absl::Microseconds(50), absl::Milliseconds(30));
  if (schedule_.now() < disk_stalls_until_) length += disk_stalls_until_ - schedule_.now();
  in_flight_ = std::exchange(unsynced_, {});
  const auto sync = [this, life = server_life_, ticket = unsynced_ticket_] {
    if (life != server_life_ || table_ == nullptr) return;
    CommitInFlight();
    // Between the disk and whom it is told to the server may die, too.
    AtServer([this, ticket] {
      is_syncing_ = false;
      Leave(gate_.OnDurable(ticket));
      if (!unsynced_.empty()) SyncDisk();
      return std::vector<rendezvous::JobTable::JobEffect>();
    });
  };
  schedule_.After(length, sync);
}

void SimCluster::CommitInFlight() {
  // The term of a life is in its first one.
  if (plan_.lost_writes > 0 && terms_.on_disk == terms_.present) before_newest_ = disk_;
  terms_.on_disk = terms_.present;
  terms_.is_torn = false;
  for (const auto& effect : std::exchange(in_flight_, {})) {
    const auto& keep = std::get<rendezvous::KeepJob>(effect.effect);
    if (keep.is_dropped) {
      disk_.erase({effect.job, keep.instance});
      continue;
    }
    rendezvous::KeptJob& job = disk_[{effect.job, keep.instance}];
    job.key = effect.job;
    job.instance = keep.instance;
    if (keep.round) static_cast<rendezvous::RoundRecord&>(job.record) = *keep.round;
    static_cast<rendezvous::ProgressRecord&>(job.record) = keep.progress;
  }
}

void SimCluster::Leave(std::vector<rendezvous::JobTable::JobEffect> effects) {
  for (rendezvous::JobTable::JobEffect& effect : effects) {
    if (const auto* send = std::get_if<rendezvous::SendDirective>(&effect.effect)) {
      ObserveDirective(JobOfKey(effect.job), *send);
    }
    if (auto* send = std::get_if<rendezvous::SendDirective>(&effect.effect)) {
      const Incarnation to = send->to;
      if (!nodes_.contains(to)) continue;  // no agent of ours
      Deliver(to, Direction::kDown, [this, to, directive = send->directive] {
        Node& node = nodes_.at(to);
        if (!node.is_connected || !node.is_alive) return;
        if (const auto* end = std::get_if<EndJob>(&directive.body))
          node.told.push_back(end->outcome);
        if (const auto* no = std::get_if<Refuse>(&directive.body)) {
          node.causes.refusals.insert(std::string(no->status.message()));
        }
        const auto* stop = std::get_if<StopRound>(&directive.body);
        if (stop != nullptr && stop->cause == StopCause::kJobFailed) node.causes.job_failed = *stop;
        node.was_accepted |= !std::holds_alternative<Refuse>(directive.body);
        StepAgent(to, agent::DirectiveArrived{directive});
      });
    } else if (auto* reply = std::get_if<rendezvous::SendStoreReply>(&effect.effect);
               reply != nullptr && nodes_.contains(reply->to)) {
      Deliver(reply->to, Direction::kDown, [this, to = reply->to, answer = reply->reply] {
        if (nodes_.at(to).is_connected && nodes_.at(to).is_alive) OnStoreReply(to, answer);
      });
    }
  }
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
