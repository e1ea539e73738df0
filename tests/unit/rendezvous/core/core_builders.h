// Small builders for tests of the rendezvous cores.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "gtest/gtest.h"
#include "proto/base/membership.h"
#include "proto/base/mono_time.h"
#include "rendezvous/core/rendezvous_core.h"
#include "rendezvous/core/round_state.h"

namespace muster::rendezvous {

inline MonoTime At(double seconds) { return MonoTime::At(absl::Seconds(seconds)); }

inline RendezvousSettings Settings(int min_nodes, int max_nodes, int max_restarts = 0) {
  return {.min_nodes = min_nodes,
          .max_nodes = max_nodes,
          .max_restarts = max_restarts,
          .join_timeout = absl::Seconds(600),
          .last_call_timeout = absl::Seconds(30),
          .close_timeout = absl::Seconds(20),
          .shutdown_timeout = absl::Seconds(30)};
}

inline RendezvousSettings StaticSettings(int nodes, int max_restarts = 0) {
  RendezvousSettings settings = Settings(nodes, nodes, max_restarts);
  settings.is_static = true;
  return settings;
}

inline NodeDescription Describe(const std::string& name, int local_world_size = 2) {
  NodeDescription node{.name = name,
                       .address = "address-of-" + name,
                       .local_world_size = local_world_size,
                       .store_port = 29400};
  for (int i = 0; i < local_world_size; ++i) node.worker_ports.push_back(30000 + i);
  return node;
}

// A RendezvousCore and the agents that talk to it, each as one report that tests change and send.
// Like agents, they say the instance and the newest round that they have been told.
class CoreUnderTest {
 public:
  explicit CoreUnderTest(RendezvousSettings settings)
      : settings_(settings), core_({.term = ServerTerm(1), .instance = Instance(5)}) {}

  // Node n is "node<n>" with incarnation n.
  AgentReport& Report(int n) {
    auto [place, is_new] = reports_.try_emplace(n);
    AgentReport& report = place->second;
    if (is_new) {
      report.node = Describe("node" + std::to_string(n));
      if (settings_.is_static) report.node.node_rank = n - 1;
      report.settings = settings_;
      told_[n] = kNoRound;
    }
    return report;
  }

  const std::vector<Effect>& Send(int n) {
    ++Report(n).sequence;
    return Step(AgentReported{Incarnation(n), Report(n)});
  }
  const std::vector<Effect>& Join(int n) {
    Report(n).phase = AgentPhase::kJoining;
    Report(n).failures.clear();
    Report(n).round = told_[n];
    return Send(n);
  }
  const std::vector<Effect>& SendPhase(int n, AgentPhase phase) {
    Report(n).phase = phase;
    Report(n).round = told_[n];
    return Send(n);
  }
  const std::vector<Effect>& Fail(int n, int local_rank = 0, int exit_code = 1,
                                  absl::Duration age = absl::ZeroDuration()) {
    const Assignment& a = core_.state().assignments.at(Incarnation(n));
    Report(n).failures = {{.rank = Rank(a.first_rank.value() + local_rank),
                           .local_rank = LocalRank(local_rank),
                           .node_rank = a.node_rank,
                           .node_name = Report(n).node.name,
                           .exit_code = exit_code,
                           .age = age}};
    return SendPhase(n, AgentPhase::kFailed);
  }
  // A worker of node n asks whether it may publish; the answer.
  absl::Status Commit(int n, int64_t step) { return Commit(n, told_[n], {.step = step}); }
  absl::Status Commit(int n, Round round, CommitCheckpoint checkpoint) {
    Step(CommitRequested{Incarnation(n), ++commits_, round, checkpoint});
    for (const Effect& effect : effects) {
      const auto* reply = std::get_if<SendStoreReply>(&effect);
      if (reply != nullptr && reply->reply.request_id == commits_) return reply->reply.status;
    }
    return absl::InternalError("no answer");
  }
  const std::vector<Effect>& Leave(int n, Departure departure) {
    Report(n).departure = std::move(departure);
    return SendPhase(n, AgentPhase::kLeaving);
  }
  // Joins nodes 1..n, and says that those with a place run.
  void RunWith(int n) {
    for (int i = 1; i <= n; ++i) Join(i);
    for (int i = 1; i <= n; ++i) {
      if (core_.state().in_round.contains(Incarnation(i))) SendPhase(i, AgentPhase::kRunning);
    }
  }
  // `nodes` renew their leases every two seconds until `seconds` later.
  void Advance(double seconds, const std::vector<int>& nodes) {
    const MonoTime end = now + absl::Seconds(seconds);
    while (now + absl::Seconds(2) < end) {
      now = now + absl::Seconds(2);
      for (const int n : nodes) Send(n);
    }
    now = end;
    Step(Tick{});
  }

  const std::vector<Effect>& Step(const Event& event) {
    effects = core_.Step(event, now);
    broken += core_.CheckInvariants();
    for (const Effect& effect : effects) NoteTold(effect);
    return effects;
  }
  // The newest directive of the last step to node n; nullptr if there was none.
  const Directive* DirectiveTo(int n) const {
    const Directive* newest = nullptr;
    for (const Effect& effect : effects) {
      const auto* send = std::get_if<SendDirective>(&effect);
      if (send != nullptr && send->to == Incarnation(n)) newest = &send->directive;
    }
    return newest;
  }
  template <typename Body>
  const Body* Told(int n) const {
    const Directive* directive = DirectiveTo(n);
    return directive == nullptr ? nullptr : std::get_if<Body>(&directive->body);
  }
  bool IsRetired() const {
    for (const Effect& effect : effects) {
      if (std::holds_alternative<Retire>(effect)) return true;
    }
    return false;
  }
  const JobState& state() const { return core_.state(); }
  MonoTime NextDeadline() const { return core_.NextDeadline(); }

  MonoTime now = At(1000);
  std::vector<Effect> effects;  // of the last step
  std::string broken;           // invariants, as words; tests expect none

 private:
  void NoteTold(const Effect& effect) {
    const auto* send = std::get_if<SendDirective>(&effect);
    if (send == nullptr || std::holds_alternative<Refuse>(send->directive.body)) return;
    const int n = static_cast<int>(send->to.value());
    Report(n).instance = send->directive.instance;
    const auto* run = std::get_if<RunRound>(&send->directive.body);
    if (run != nullptr) told_[n] = run->assignment.round;
    const auto* stop = std::get_if<StopRound>(&send->directive.body);
    if (stop != nullptr) told_[n] = std::max(told_[n], stop->round);
  }

  RendezvousSettings settings_;
  RendezvousCore core_;
  absl::btree_map<int, AgentReport> reports_;
  absl::btree_map<int, Round> told_;
  uint64_t commits_ = 0;
};

// One job, made by each test. Every test ends by asking that no invariant was broken on its way.
class CoreTest : public ::testing::Test {
 protected:
  CoreUnderTest& Job(RendezvousSettings settings) {
    job_.emplace(settings);
    return *job_;
  }
  void TearDown() override { EXPECT_EQ(job_->broken, ""); }

  std::optional<CoreUnderTest> job_;
};

}  // namespace muster::rendezvous
