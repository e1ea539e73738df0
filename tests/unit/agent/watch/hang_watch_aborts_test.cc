// How the hang watch of a node takes part where a rank has aborted (abort_inquiry_test.cc has the
// rest).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "agent/watch/hang_watch.h"
#include "asio/io_context.hpp"
#include "tests/support/files.h"
#include "tests/unit/agent/watch/fake_torch_server.h"

namespace muster::agent {
namespace {

using ::testing::_;
using ::testing::Each;
using testing::FakeTorchServer;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::RecorderWithOneCall;
using ::testing::SizeIs;
using ::testing::VariantWith;

constexpr absl::Duration kLongEnough = absl::Seconds(60);
constexpr Round kRound(3);

// Ranks 4 and 5 are of this node.
class HangWatchAborts : public ::testing::Test {
 protected:
  void Start(int num_nodes) {
    watch_.StartRound({.round = kRound,
                       .num_nodes = num_nodes,
                       .first_rank = 4,
                       .world_size = 2 * num_nodes + 4,
                       .boards = std::vector<std::optional<BoardMemory>>(2),
                       .torch_servers = {directory_.File("0"), directory_.File("1")}});
  }
  bool RunUntil(const std::function<bool()>& condition) {
    const MonoTime end = MonoNow() + kLongEnough;
    while (!condition() && MonoNow() < end) {
      loop_.restart();
      loop_.run_for(std::chrono::milliseconds(5));
    }
    return condition();
  }
  template <typename Word>
  std::vector<Word> Words() const {
    std::vector<Word> out;
    for (const hangs::NodeWord& word : words_) {
      if (const auto* wanted = std::get_if<Word>(&word)) out.push_back(*wanted);
    }
    return out;
  }
  bool IsOver() const {
    return !states_.empty() && !states_.back().asks_workers && !states_.back().awaits_judge;
  }
  std::string Report() const { return testing::ReadFile(directory_.File("abort_0_1.json")); }
  static hangs::SayAborts Said() {
    hangs::SayAborts say{.round = kRound};
    say.report.aborted = {4};
    say.report.last = {{.label = "world", .operation = {}, .ranks = {0}, .age = {}}};
    return say;
  }

  testing::TemporaryDirectory directory_;
  asio::io_context loop_;
  std::vector<hangs::NodeWord> words_;
  std::vector<hangs::LastCallsState> states_;
  HangWatch watch_{loop_,
                   {.grace = 30 * kLongEnough,
                    .report_directory = directory_.path(),
                    .on_last_calls =
                        [this](Round round, const hangs::LastCallsState& state) {
                          EXPECT_EQ(round, kRound);
                          states_.push_back(state);
                        }},
                   [](int, const std::string&) {},
                   [this](hangs::NodeWord word) { words_.push_back(std::move(word)); }};
};

TEST_F(HangWatchAborts, CostNothingWhereNobodyServes) {
  Start(2);
  watch_.OnAborted(0);
  EXPECT_THAT(Words<hangs::RankAborted>(), IsEmpty());
  EXPECT_THAT(states_, IsEmpty());
}

// Whom the server has not heard it asks nothing.
TEST_F(HangWatchAborts, FindANodeThatHasSaidAtOnceThatItTakesPart) {
  Start(2);
  ASSERT_THAT(Words<hangs::NodeSummary>(), SizeIs(1));
  EXPECT_EQ(Words<hangs::NodeSummary>()[0].round, kRound);
}

TEST_F(HangWatchAborts, AreAskedAboutAndSaidAlsoWhileTheWorkersAreBeingStopped) {
  FakeTorchServer server(directory_.File("1"), RecorderWithOneCall(8));
  Start(2);
  watch_.OnAborted(0);
  watch_.OnStopping();
  EXPECT_THAT(Words<hangs::RankAborted>(), SizeIs(1));
  watch_.OnOrder(hangs::AskLastCalls{kRound});
  ASSERT_TRUE(RunUntil([this] { return !Words<hangs::NodeLastCalls>().empty(); }));
  EXPECT_FALSE(IsOver());
  watch_.OnOrder(Said());
  EXPECT_TRUE(IsOver());
  watch_.OnOrder(Said());
  EXPECT_TRUE(RunUntil([this] { return !Report().empty(); }));
  EXPECT_FALSE(testing::FileExists(directory_.File("abort_0_2.json"))) << "once";
}

TEST_F(HangWatchAborts, OnOneNodeAreSaidByIt) {
  FakeTorchServer server(directory_.File("1"), RecorderWithOneCall(8));
  Start(1);
  watch_.OnAborted(0);
  watch_.OnAborted(1);
  ASSERT_TRUE(RunUntil([this] { return IsOver(); }));
  // The server is told how far the ranks are, and asked nothing.
  EXPECT_THAT(words_, Each(VariantWith<hangs::NodeSummary>(_)));
  ASSERT_TRUE(RunUntil([this] { return !Report().empty(); }));
  EXPECT_THAT(Report(), HasSubstr("ranks 4 and 5 have aborted"));
}

}  // namespace
}  // namespace muster::agent
