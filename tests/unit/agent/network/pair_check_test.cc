// Nodes of one check, in one process, each at a loopback address of its own.
#include "agent/network/pair_check.h"

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "asio/io_context.hpp"
#include "asio/ip/tcp.hpp"
#include "asio/post.hpp"
#include "asio/steady_timer.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::agent {
namespace {

using ::testing::Each;
using ::testing::Field;

constexpr int kPort = 47011;

// Each process has addresses of its own: tests beside each other never meet.
std::string AddressOf(int node) {
  const int pid = static_cast<int>(getpid());
  return absl::StrCat("127.", 100 + pid % 100, ".", pid / 100 % 250, ".", 1 + node);
}

class PairCheckTest : public ::testing::Test {
 protected:
  // What each of `present` finds out.
  std::vector<std::vector<PairResult>> Check(int num_nodes, const std::vector<int>& present,
                                             absl::Duration patience = absl::Seconds(60)) {
    std::vector<PairCheckRun::Node> nodes;
    for (int i = 0; i < num_nodes; ++i) {
      nodes.push_back({.address = AddressOf(i), .port = kPort});
    }
    std::vector<std::vector<PairResult>> results(num_nodes);
    std::vector<std::unique_ptr<PairCheck>> checks;
    for (const int self : present) {
      checks.push_back(std::make_unique<PairCheck>(loop_));
      checks.back()->Start(
          {.nodes = nodes,
           .self = self,
           .neighbours = PlanPairs(num_nodes, self, 7),
           .instance = 7,
           .round = 3,
           .greeting = absl::StrCat("node ", self),
           .patience = patience},
          [&results, self](PairResults found) { results[self] = std::move(found.called); });
    }
    loop_.run();
    return results;
  }

  asio::io_context loop_{1};
};

TEST_F(PairCheckTest, EachNodeReachesTheOthersAndHearsTheirGreetings) {
  const auto results = Check(3, {0, 1, 2});
  for (int self = 0; self < 3; ++self) {
    ASSERT_EQ(results[self].size(), 2u);
    for (const PairResult& result : results[self]) {
      EXPECT_EQ(result.fault, PairFault::kNone);
      EXPECT_EQ(result.greeting, absl::StrCat("node ", result.peer));
    }
  }
}

TEST_F(PairCheckTest, ASlowAnswerProvesNoDifferenceOfClocks) {
  int turns = 50;
  std::function<void()> hold_up = [&] {
    absl::SleepFor(absl::Milliseconds(20));
    if (--turns > 0) asio::post(loop_, hold_up);
  };
  asio::post(loop_, hold_up);
  for (const auto& found : Check(3, {0, 1, 2})) {
    for (const PairResult& result : found) EXPECT_LT(std::abs(result.clock_offset), 0.001);
  }
}

TEST_F(PairCheckTest, ANodeThatIsNotThereRefuses) {
  const auto results = Check(3, {0, 1}, absl::Milliseconds(300));
  EXPECT_EQ(results[0][0].fault, PairFault::kNone);
  EXPECT_EQ(results[0][1].fault, PairFault::kRefused);
  EXPECT_EQ(results[0][1].greeting, "");
}

TEST_F(PairCheckTest, ADoubtfulPeerIsNotWaitedForAsLong) {
  std::optional<PairResults> found;
  PairCheck check(loop_);
  check.Start({.nodes = {{AddressOf(0), kPort}, {AddressOf(1), kPort}},
               .self = 0,
               .neighbours = PlanPairs(2, 0, 7),
               .doubtful = {1},
               .patience = absl::Hours(1)},
              [&](PairResults results) { found = std::move(results); });
  loop_.run();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->called[0].fault, PairFault::kRefused);
  EXPECT_THAT(found->absent, ::testing::ElementsAre(1));
}

// It answers the greeting at once, and takes no full packet. A machine that stalls for half of the
// time that a doubtful peer gets is given another try.
TEST_F(PairCheckTest, ASmallMtuIsSeenInTheShortTimeOfADoubtfulPeer) {
  std::optional<PairResults> found;
  for (int tries = 0; tries < 20; ++tries) {
    asio::io_context silent(1);
    PairCheckRun run{.nodes = {{AddressOf(0), kPort}, {AddressOf(1), kPort}},
                     .self = 1,
                     .neighbours = PlanPairs(2, 1, 7),
                     .doubtful = {1},
                     .patience = absl::Hours(1)};
    PairCheck check(loop_), of_silent(silent);
    of_silent.Start(run, [](const PairResults&) {});
    run.self = 0;
    run.neighbours = PlanPairs(2, 0, 7);
    check.Start(run, [&](PairResults results) { found = std::move(results); });
    asio::steady_timer soon(loop_, std::chrono::milliseconds(10));
    soon.async_wait([&](const asio::error_code&) {
      while (silent.poll() > 0) silent.restart();
    });
    loop_.restart();
    loop_.run();
    ASSERT_TRUE(found.has_value());
    if (found->called[0].fault == PairFault::kMtu) break;
  }
  EXPECT_EQ(found->called[0].fault, PairFault::kMtu);
}

// The other node is so busy that it answers at three quarters of the patience, and then not again.
TEST_F(PairCheckTest, FullPacketsThatHadLittleTimeProveNoSmallMtu) {
  constexpr absl::Duration kPatienceOfCheck = absl::Seconds(2);
  asio::io_context busy(1);
  PairCheckRun run{.nodes = {{AddressOf(0), kPort}, {AddressOf(1), kPort}},
                   .neighbours = PlanPairs(2, 0, 7),
                   .patience = kPatienceOfCheck};
  std::optional<PairResults> found;
  PairCheck check(loop_), of_busy(busy);
  check.Start(run, [&](PairResults results) { found = std::move(results); });
  run.self = 1;
  run.neighbours = PlanPairs(2, 1, 7);
  run.greeting = "node 1";
  of_busy.Start(run, [](const PairResults&) {});
  asio::steady_timer late(loop_, absl::ToChronoNanoseconds(0.75 * kPatienceOfCheck));
  late.async_wait([&](const asio::error_code&) {
    while (busy.poll() > 0) busy.restart();
  });
  loop_.run();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->called[0].greeting, "node 1");
  EXPECT_EQ(found->called[0].fault, PairFault::kTimeOut);
}

// Another program's listener says something else, or nothing.
TEST_F(PairCheckTest, AStrangerIsNoPeer) {
  asio::ip::tcp::acceptor stranger(loop_, {asio::ip::make_address(AddressOf(1)), kPort});
  const auto results = Check(2, {0}, absl::Milliseconds(300));
  EXPECT_NE(results[0][0].fault, PairFault::kNone);
}

TEST_F(PairCheckTest, ListensNoMoreOnceItIsOver) {
  Check(2, {0, 1});
  asio::ip::tcp::acceptor again(loop_, {asio::ip::make_address(AddressOf(0)), kPort}, false);
  EXPECT_TRUE(again.is_open());
}

TEST_F(PairCheckTest, ACancelledOneSaysNothing) {
  PairCheck check(loop_);
  bool was_called = false;
  check.Start({.nodes = {{AddressOf(0), kPort}, {AddressOf(1), kPort}},
               .self = 0,
               .neighbours = PlanPairs(2, 0, 7),
               .patience = absl::Seconds(60)},
              [&](auto) { was_called = true; });
  check.Cancel();
  loop_.run();
  EXPECT_FALSE(was_called);
}

TEST_F(PairCheckTest, SixtyFourNodesOfOneMachineAreThroughSoon) {
  std::vector<int> all(64);
  for (int i = 0; i < 64; ++i) all[i] = i;
  const absl::Time start = absl::Now();
  for (const auto& results : Check(64, all)) {
    ASSERT_EQ(results.size(), 63u);
    EXPECT_THAT(results, Each(Field(&PairResult::fault, PairFault::kNone)));
  }
  RecordProperty("milliseconds", absl::ToInt64Milliseconds(absl::Now() - start));
}

}  // namespace
}  // namespace muster::agent
