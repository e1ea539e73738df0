// Jobs of many nodes in one process, each at a loopback address of its own, and a store in memory.
#include "agent/network/round_network.h"

#include <unistd.h>

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "asio/io_context.hpp"
#include "asio/ip/tcp.hpp"
#include "asio/post.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/io/descriptors.h"

namespace muster::agent {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kPort = 47012;
constexpr int kThousand = 1000;
// A listener, and both ends of what its eight calls and eight guests have open.
constexpr int kDescriptorsPerNode = 17;

// Each process has addresses of its own: tests beside each other never meet.
std::string AddressOf(int node) {
  const int pid = static_cast<int>(getpid());
  return absl::StrCat("127.", 100 + pid % 100, ".", pid / 100 % 60 * 4 + node / 250, ".",
                      1 + node % 250);
}

// Answers a wait once its keys are there, or at EndOldestWait.
class FakeStore {
 public:
  explicit FakeStore(asio::io_context& loop) : loop_(loop) {}

  void Ask(StoreOperation operation, std::function<void(const StoreReply&)> then) {
    if (const auto* set = std::get_if<StoreSet>(&operation)) {
      values_[set->key] = set->value;
      asio::post(loop_, [then] { then({}); });
      const auto due = waits_.extract(set->key);
      if (due.empty()) return;
      for (Wait& wait : due.mapped()) Answer(std::move(wait));
    } else if (const auto* wait = std::get_if<StoreWait>(&operation)) {
      Answer({num_waits_++, wait->keys, std::move(then)});
    } else if (const auto* get = std::get_if<StoreGet>(&operation)) {
      const auto found = values_.find(get->key);
      if (found == values_.end()) return then({.status = absl::NotFoundError("absent")});
      then({.values = {found->second}});
    }
  }
  void EndOldestWait() {
    auto oldest = waits_.begin();
    for (auto it = oldest; it != waits_.end(); ++it) {
      if (it->second.front().number < oldest->second.front().number) oldest = it;
    }
    const Wait ended = std::move(oldest->second.front());
    oldest->second.erase(oldest->second.begin());
    if (oldest->second.empty()) waits_.erase(oldest);
    ended.then({.status = absl::DeadlineExceededError("absent")});
  }

 private:
  struct Wait {
    int number;
    std::vector<std::string> keys;
    std::function<void(const StoreReply&)> then;
  };

  void Answer(Wait wait) {
    StoreReply reply;
    for (const std::string& key : wait.keys) {
      const auto found = values_.find(key);
      if (found == values_.end()) return waits_[key].push_back(std::move(wait));
      reply.values.push_back(found->second);
    }
    asio::post(loop_, [then = std::move(wait.then), reply] { then(reply); });
  }

  asio::io_context& loop_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::vector<Wait>> waits_;  // by the first of their keys that is missing
  int num_waits_ = 0;
};

class LargeRound : public ::testing::Test {
 protected:
  void SetUp() override {
    if (RaiseDescriptorLimit() < kThousand * kDescriptorsPerNode + 200) {
      GTEST_SKIP() << "a thousand nodes need " << kThousand * kDescriptorsPerNode
                   << " open files (ulimit -Hn)";
    }
  }

  // What each node is told, as RendezvousCore tells it above kMaxPeersInAssignment.
  static Assignment AssignmentOf(int node) {
    return {.round = Round(3),
            .instance = Instance(7),
            .node_rank = NodeRank(node),
            .num_nodes = kThousand,
            .local_world_size = 1,
            .master_address = AddressOf(0)};
  }

  void Run(const NetworkUse& use, absl::Duration patience) {
    for (int node = 0; node < kThousand; ++node) {
      nodes_.push_back(std::make_unique<RoundNetwork>(
          loop_,
          RoundNetworkOptions{.use = use,
                              .node_name = absl::StrCat("node", node),
                              .address = AddressOf(node),
                              .patience = patience},
          [this](StoreOperation operation, std::function<void(const StoreReply&)> then) {
            store_.Ask(std::move(operation), std::move(then));
          }));
      nodes_.back()->StartRound(AssignmentOf(node), kPort);
      nodes_.back()->WhenReady([this, node](const RoundClearance& clearance) {
        ready_[node] = clearance;
        if (node == 0 && !clearance.failed.empty()) loop_.stop();
      });
    }
    loop_.run();
  }

  asio::io_context loop_{1};
  FakeStore store_{loop_};
  std::vector<std::unique_ptr<RoundNetwork>> nodes_;
  std::map<int, RoundClearance> ready_;
};

TEST_F(LargeRound, IsCheckedAndItsWorkersAreToldTheirNetwork) {
  Run({.kind = NetworkUse::Kind::kNamed, .interface = "lo", .strict_nodes = true},
      absl::Minutes(5));
  EXPECT_EQ(ready_.size(), static_cast<size_t>(kThousand));
  for (const auto& [node, clearance] : ready_) {
    EXPECT_FALSE(clearance.forbidden) << node << ": " << clearance.forbidden->reason;
    EXPECT_THAT(nodes_[node]->faults(), ::testing::IsEmpty());
    EXPECT_EQ(VariableOrEmpty(nodes_[node]->variables(), "GLOO_SOCKET_IFNAME"), "lo");
  }
}

TEST_F(LargeRound, DoesNotWaitForNodesThatDoNotSayWhereTheyAre) {
  const int node = 5;
  RoundNetwork network(
      loop_,
      {.node_name = "node5", .address = AddressOf(node), .patience = absl::Milliseconds(100)},
      [this](StoreOperation operation, std::function<void(const StoreReply&)> then) {
        store_.Ask(std::move(operation), std::move(then));
      });
  network.StartRound(AssignmentOf(node), kPort);
  store_.EndOldestWait();
  bool is_ready = false;
  network.WhenReady([&](const RoundClearance&) { is_ready = true; });
  loop_.run();
  EXPECT_TRUE(is_ready);
  ASSERT_EQ(network.faults().size(), static_cast<size_t>(kNeighbours));
  EXPECT_THAT(network.faults(), ::testing::Each(AllOf(HasSubstr("does not reach node rank "),
                                                      HasSubstr("no answer"))));
}

// The second round has half a second for the pair, instead of all the patience.
TEST(SmallRound, DoesNotGiveAPairThatHasFailedAllTheTimeAgain) {
  asio::io_context loop(1);
  FakeStore store(loop);
  RoundNetwork network(loop, {.node_name = "node0", .patience = absl::Seconds(8)},
                       [&](StoreOperation operation, auto then) {
                         store.Ask(std::move(operation), std::move(then));
                       });
  Assignment assignment{.num_nodes = 2, .master_address = AddressOf(0)};
  assignment.peers = {{.name = "node0", .address = AddressOf(0), .worker_ports = {kPort}},
                      {.name = "node1", .address = AddressOf(1), .worker_ports = {kPort}}};
  std::vector<absl::Duration> took;
  for (const int round : {0, 1}) {
    const absl::Time start = absl::Now();
    assignment.round = Round(round);
    network.StartRound(assignment, kPort);
    network.WhenReady([&](const RoundClearance&) { took.push_back(absl::Now() - start); });
    loop.restart();
    loop.run();
    EXPECT_THAT(network.faults(), ::testing::Contains(HasSubstr("node0")));
  }
  ASSERT_EQ(took.size(), 2u);
  EXPECT_GE(took[0], absl::Seconds(8));
  EXPECT_LT(took[1], took[0]);
}

TEST(SmallRound, IsRefusedWhereARequiredNetworkCouldNotBeJudged) {
  asio::io_context loop(1);
  FakeStore store(loop);
  RoundNetwork network(loop,
                       {.use = {.kind = NetworkUse::Kind::kRequire},
                        .node_name = "node0",
                        .patience = absl::Milliseconds(100)},
                       [&](StoreOperation operation, auto then) {
                         store.Ask(std::move(operation), std::move(then));
                       });
  Assignment assignment{.round = Round(0), .num_nodes = 2, .master_address = AddressOf(0)};
  assignment.peers = {{.name = "node0", .address = AddressOf(0), .worker_ports = {kPort}},
                      {.name = "node1", .address = AddressOf(1), .worker_ports = {kPort}}};
  network.StartRound(assignment, kPort);
  std::optional<RoundClearance> clearance;
  network.WhenReady([&](const RoundClearance& said) { clearance = said; });
  loop.run();
  store.EndOldestWait();  // for the reports
  loop.restart();
  loop.run();
  ASSERT_TRUE(clearance && clearance->forbidden);
  EXPECT_THAT(clearance->forbidden->reason,
              HasSubstr("could not be checked (--network=require): absent"));
}

// Another program has the port that node 700 would be called at.
TEST_F(LargeRound, DoesNotStartWhereARequiredPairFails) {
  asio::ip::tcp::acceptor stranger(loop_);
  stranger.open(asio::ip::tcp::v4());
  stranger.bind({asio::ip::make_address(AddressOf(700)), kPort});
  Run({.kind = NetworkUse::Kind::kRequire}, absl::Seconds(10));
  ASSERT_TRUE(ready_.contains(0));
  EXPECT_THAT(ready_[0].failed, ::testing::Contains(::testing::Field(&FailedPair::to, 700)));
}

}  // namespace
}  // namespace muster::agent
