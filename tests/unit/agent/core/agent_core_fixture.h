// An AgentCore on its way through its life, for tests of what it does.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "agent/core/agent_core.h"
#include "gtest/gtest.h"

namespace muster::agent {

inline constexpr absl::Duration kGrace = absl::Seconds(30);
inline constexpr uint64_t kEveryReport = 1'000'000;  // is answered

// Drives a core through its life; remembers the effects of the last step.
class AgentCoreTest : public ::testing::Test {
 protected:
  AgentCoreTest() : core_(Options()) {}

  static AgentCoreOptions Options() {
    AgentCoreOptions options;
    options.node = {.name = "node1", .address = "10.0.0.1", .local_world_size = 2};
    options.settings = {.min_nodes = 1,
                        .max_nodes = 2,
                        .max_restarts = 3,
                        .join_timeout = absl::Seconds(600),
                        .last_call_timeout = absl::Seconds(30),
                        .close_timeout = absl::Seconds(30),
                        .shutdown_timeout = kGrace,
                        .orphan_timeout = absl::Minutes(10)};
    options.read_timeout = absl::Seconds(60);
    options.server = "the rendezvous at node1:29400";
    return options;
  }

  std::vector<Effect>& Do(const Event& event, absl::Duration later = absl::ZeroDuration()) {
    now_ = now_ + later;
    effects_ = core_.Step(event, now_);
    EXPECT_EQ(core_.CheckInvariants(), "");
    return effects_;
  }

  std::vector<Effect>& Direct(DirectiveBody body, absl::Duration later = absl::ZeroDuration()) {
    return Do(DirectiveArrived{Directive{.term = ServerTerm(1),
                                         .instance = Instance(7),
                                         .revision = ++revision_,
                                         .report_sequence = kEveryReport,
                                         .body = std::move(body)}},
              later);
  }

  static Assignment Place(int64_t round) {
    return {.round = Round(round),
            .instance = Instance(7),
            .num_nodes = 2,
            .local_world_size = 2,
            .world_size = 4,
            .restart_count = static_cast<int>(round)};
  }

  void Join() {
    Do(LinkChanged{.up = true, .detail = "connected"});
    Do(Started{});
    Do(PortsReserved{.store_port = 1, .worker_ports = {2, 3}});
  }

  void Run() {
    Join();
    Direct(RunRound{Place(0)});
  }

  std::vector<Effect>& Exit(int local_rank, int exit_code, int signal = 0, int64_t round = 0) {
    WorkerExited event{.round = Round(round), .local_rank = LocalRank(local_rank)};
    if (exit_code != 0 || signal != 0) {
      event.failure = WorkerFailure{.rank = Rank(local_rank),
                                    .local_rank = LocalRank(local_rank),
                                    .node_name = "node1",
                                    .exit_code = exit_code,
                                    .signal = signal};
    }
    return Do(event);
  }

  void SucceedEverywhere() {
    Exit(0, 0);
    Exit(1, 0);
    Do(DescendantsGone{});
  }

  template <typename T>
  std::vector<T> All() const {
    std::vector<T> found;
    for (const Effect& effect : effects_) {
      if (const T* e = std::get_if<T>(&effect)) found.push_back(*e);
    }
    return found;
  }

  AgentReport LastReport() const {
    const auto reports = All<SendReport>();
    return reports.empty() ? AgentReport{} : reports.back().report;
  }

  MonoTime now_ = MonoTime::At(absl::Seconds(100));
  AgentCore core_;
  std::vector<Effect> effects_;
  uint64_t revision_ = 0;
};

}  // namespace muster::agent
