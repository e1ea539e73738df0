// What the hang watch of a node does where a rank has aborted.
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
using ::testing::ElementsAre;
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
  // With `grace` nobody waits for longer than a thirtieth of it.
  explicit HangWatchAborts(absl::Duration grace = 30 * kLongEnough) : grace_(grace) {}

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
    for (const verdict::NodeWord& word : words_) {
      if (const auto* wanted = std::get_if<Word>(&word)) out.push_back(*wanted);
    }
    return out;
  }
  std::string Report() const { return testing::ReadFile(directory_.File("abort_0_1.json")); }
  static verdict::SayAborts Said() {
    verdict::SayAborts say{.round = kRound};
    say.report.aborted = {4};
    say.report.last = {{.label = "world", .operation = {}, .ranks = {0}, .age = {}}};
    return say;
  }

  const absl::Duration grace_;
  testing::TemporaryDirectory directory_;
  asio::io_context loop_;
  std::vector<verdict::NodeWord> words_;
  HangWatch watch_{loop_,
                   {.grace = grace_, .report_directory = directory_.path()},
                   [](int, const std::string&) {},
                   [this](verdict::NodeWord word) { words_.push_back(std::move(word)); }};
  bool is_signalled_ = false;
  bool is_reported_ = false;
};

TEST_F(HangWatchAborts, ElsewhereHaveTheWorkersAskedBeforeTheyAreSignalled) {
  FakeTorchServer server(directory_.File("1"), RecorderWithOneCall(8), /*is_held=*/true);
  Start(2);
  watch_.OnOrder(verdict::AskLastCalls{kRound});
  watch_.OnStopping();
  watch_.aborts().BeforeSignal([this] { is_signalled_ = true; });
  watch_.aborts().BeforeReport([this] { is_reported_ = true; });
  EXPECT_FALSE(is_signalled_);
  EXPECT_FALSE(is_reported_);
  server.Release();
  ASSERT_TRUE(RunUntil([this] { return is_signalled_ && is_reported_; }));
  const auto answers = Words<verdict::NodeLastCalls>();
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].round, kRound);
  EXPECT_THAT(answers[0].aborted, IsEmpty());
  ASSERT_THAT(answers[0].ranks, SizeIs(1));
  EXPECT_EQ(answers[0].ranks[0].rank, 5);
}

TEST_F(HangWatchAborts, CostNothingWhereNobodyServes) {
  Start(2);
  watch_.OnAborted(0);
  EXPECT_THAT(Words<verdict::RankAborted>(), IsEmpty());
  watch_.OnOrder(verdict::AskLastCalls{kRound});
  ASSERT_THAT(Words<verdict::NodeLastCalls>(), SizeIs(1));
  watch_.aborts().BeforeSignal([this] { is_signalled_ = true; });
  watch_.aborts().BeforeReport([this] { is_reported_ = true; });
  EXPECT_TRUE(is_signalled_);
  EXPECT_TRUE(is_reported_);
}

// Whom the server has not heard it asks nothing.
TEST_F(HangWatchAborts, FindANodeThatHasSaidAtOnceThatItTakesPart) {
  Start(2);
  ASSERT_THAT(Words<verdict::NodeSummary>(), SizeIs(1));
  EXPECT_EQ(Words<verdict::NodeSummary>()[0].round, kRound);
}

TEST_F(HangWatchAborts, AreToldAtOnceAndReportedOnceTheServerHasSaidWhatAllCalled) {
  FakeTorchServer server(directory_.File("1"), RecorderWithOneCall(8));
  Start(2);
  watch_.OnAborted(0);
  ASSERT_THAT(Words<verdict::RankAborted>(), SizeIs(1));
  EXPECT_EQ(Words<verdict::RankAborted>()[0].rank, 4);
  watch_.aborts().BeforeReport([this] { is_reported_ = true; });
  watch_.OnOrder(verdict::AskLastCalls{kRound});
  ASSERT_TRUE(RunUntil([this] { return !Words<verdict::NodeLastCalls>().empty(); }));
  EXPECT_THAT(Words<verdict::NodeLastCalls>()[0].aborted, ElementsAre(4));
  watch_.OnOrder(Said());
  EXPECT_TRUE(is_reported_);
  watch_.OnOrder(Said());
  EXPECT_TRUE(RunUntil([this] { return !Report().empty(); }));
  EXPECT_FALSE(testing::FileExists(directory_.File("abort_0_2.json"))) << "once";
}

// Where somebody waits for nothing: for long enough that a server which is there has answered.
class HangWatchAbortsInTime : public HangWatchAborts {
 protected:
  HangWatchAbortsInTime() : HangWatchAborts(30 * absl::Seconds(5)) {}
};

TEST_F(HangWatchAbortsInTime, AreReportedWithWhatIsKnownHereWhereTheServerSaysNothing) {
  FakeTorchServer server(directory_.File("1"), RecorderWithOneCall(8));
  Start(2);
  watch_.OnAborted(0);
  watch_.aborts().BeforeReport([this] { is_reported_ = true; });
  ASSERT_TRUE(RunUntil([this] { return is_reported_; }));
  ASSERT_TRUE(RunUntil([this] { return !Report().empty(); }));
  EXPECT_THAT(Report(), HasSubstr("Last calls: rank 5 called all_reduce #6"));
}

TEST_F(HangWatchAbortsInTime, HoldNothingUpWhereAWorkerAnswersNothing) {
  FakeTorchServer server(directory_.File("1"), RecorderWithOneCall(8), /*is_held=*/true);
  Start(2);
  watch_.OnAborted(0);
  watch_.aborts().BeforeSignal([this] { is_signalled_ = true; });
  watch_.aborts().BeforeReport([this] { is_reported_ = true; });
  ASSERT_TRUE(RunUntil([this] { return is_signalled_ && is_reported_; }));
  EXPECT_THAT(Report(), IsEmpty()) << "no call is known";
}

// The time of all is that of the first: a rank that aborts behind it does not wait for a server
// that has had its time.
TEST_F(HangWatchAbortsInTime, OfALaterRankAreWaitedForNoLonger) {
  FakeTorchServer server(directory_.File("1"), RecorderWithOneCall(8));
  Start(2);
  watch_.OnAborted(0);
  watch_.aborts().BeforeReport([this] { is_reported_ = true; });
  ASSERT_TRUE(RunUntil([this] { return is_reported_; }));
  is_reported_ = false;
  watch_.OnAborted(1);
  watch_.aborts().BeforeReport([this] { is_reported_ = true; });
  EXPECT_TRUE(is_reported_);
}

// The server also hears of a rank that aborts after it has asked, and the failure waits.
TEST_F(HangWatchAborts, AfterTheServerHasAskedAreReportedOnceItHasSaidWhatAllCalled) {
  FakeTorchServer server(directory_.File("1"), RecorderWithOneCall(8));
  Start(2);
  watch_.OnOrder(verdict::AskLastCalls{kRound});
  ASSERT_TRUE(RunUntil([this] { return !Words<verdict::NodeLastCalls>().empty(); }));
  watch_.OnAborted(0);
  EXPECT_THAT(Words<verdict::RankAborted>(), SizeIs(1));
  watch_.aborts().BeforeSignal([this] { is_signalled_ = true; });
  EXPECT_TRUE(is_signalled_);
  watch_.aborts().BeforeReport([this] { is_reported_ = true; });
  EXPECT_FALSE(is_reported_);
  watch_.OnOrder(Said());
  EXPECT_TRUE(is_reported_);
}

TEST_F(HangWatchAborts, OnOneNodeAreSaidByIt) {
  FakeTorchServer server(directory_.File("1"), RecorderWithOneCall(8));
  Start(1);
  watch_.OnAborted(0);
  watch_.OnAborted(1);
  watch_.aborts().BeforeReport([this] { is_reported_ = true; });
  ASSERT_TRUE(RunUntil([this] { return is_reported_; }));
  // The server is told how far the ranks are, and asked nothing.
  EXPECT_THAT(words_, Each(VariantWith<verdict::NodeSummary>(_)));
  ASSERT_TRUE(RunUntil([this] { return !Report().empty(); }));
  EXPECT_THAT(Report(), HasSubstr("ranks 4 and 5 have aborted"));
}

TEST_F(HangWatchAborts, OfTheRoundBeforeHoldNothingUp) {
  FakeTorchServer server(directory_.File("1"), RecorderWithOneCall(8), /*is_held=*/true);
  Start(2);
  watch_.OnAborted(0);
  watch_.aborts().BeforeReport([this] { is_reported_ = true; });
  EXPECT_FALSE(is_reported_);
  Start(2);
  EXPECT_TRUE(is_reported_);
  watch_.aborts().BeforeSignal([this] { is_signalled_ = true; });
  EXPECT_TRUE(is_signalled_);
}

}  // namespace
}  // namespace muster::agent
