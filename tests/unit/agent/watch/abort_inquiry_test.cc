#include "agent/watch/abort_inquiry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "asio/io_context.hpp"
#include "rendezvous/hangs/judge/abort_watch.h"
#include "tests/support/files.h"
#include "tests/unit/agent/watch/fake_torch_server.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using testing::FakeTorchServer;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::RecorderWithOneCall;
using ::testing::SizeIs;

constexpr absl::Duration kLongEnough = absl::Seconds(60);
constexpr Round kRound(3);

// Ranks 4 and 5 are of this node, one of two. The judge says nothing by itself.
class AbortInquiryTest : public ::testing::Test {
 protected:
  // Nothing is asked or awaited for longer than a thirtieth of `grace`.
  explicit AbortInquiryTest(absl::Duration grace = 30 * kLongEnough) : grace_(grace) {}

  void Start(Round round = kRound) {
    ranks_.StartRound({.round = round,
                       .num_nodes = 2,
                       .first_rank = 4,
                       .world_size = 8,
                       .boards = std::vector<std::optional<BoardMemory>>(2),
                       .torch_servers = {directory_.File("0"), directory_.File("1")}});
    inquiry_.StartRound();
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
  hangs::LastCallsState State() const {
    return states_.empty() ? hangs::LastCallsState() : states_.back();
  }
  bool IsOver() const { return !State().asks_workers && !State().awaits_judge; }
  static hangs::AbortReport Report() {
    return {.aborted = {4}, .last = {{.label = "world", .operation = {}, .ranks = {0}, .age = {}}}};
  }

  const absl::Duration grace_;
  testing::TemporaryDirectory directory_;
  asio::io_context loop_;
  LocalRanks ranks_{loop_, "node1"};
  std::vector<hangs::NodeWord> words_;
  std::vector<std::string> said_;
  std::vector<hangs::LastCallsState> states_;
  AbortInquiry inquiry_{
      loop_,
      grace_,
      ranks_,
      {.tell_judge = [this](hangs::NodeWord word) { words_.push_back(std::move(word)); },
       .say = [this](const hangs::AbortReport& report) { said_.push_back(hangs::InWords(report)); },
       .on_state = [this](const hangs::LastCallsState& state) { states_.push_back(state); }}};
};

TEST_F(AbortInquiryTest, AsksTheWorkersForTheJudgeAndSaysThatItDoes) {
  FakeTorchServer server(directory_.File("1"), RecorderWithOneCall(8), /*is_held=*/true);
  Start();
  inquiry_.OnAsked();
  ASSERT_THAT(states_, SizeIs(1));
  EXPECT_TRUE(State().asks_workers);
  EXPECT_FALSE(State().awaits_judge);
  EXPECT_GT(State().within, kLongEnough / 2);
  EXPECT_LE(State().within, kLongEnough + absl::Seconds(1));
  server.Release();
  ASSERT_TRUE(RunUntil([this] { return IsOver(); }));
  EXPECT_THAT(states_, SizeIs(2));
  const auto answers = Words<hangs::NodeLastCalls>();
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].round, kRound);
  EXPECT_THAT(answers[0].aborted, IsEmpty());
  ASSERT_THAT(answers[0].ranks, SizeIs(1));
  EXPECT_EQ(answers[0].ranks[0].rank, 5);
  inquiry_.OnAsked();
  EXPECT_THAT(Words<hangs::NodeLastCalls>(), SizeIs(2)) << "what it knows is said again";
  EXPECT_THAT(states_, SizeIs(2)) << "and nobody is asked again";
}

TEST_F(AbortInquiryTest, AnswersAtOnceWhereNobodyServes) {
  Start();
  inquiry_.OnAsked();
  EXPECT_THAT(Words<hangs::NodeLastCalls>(), SizeIs(1));
  EXPECT_THAT(states_, IsEmpty()) << "nothing waits";
}

TEST_F(AbortInquiryTest, TellsTheJudgeAtOnceAndAwaitsWhatAllCalled) {
  FakeTorchServer server(directory_.File("1"), RecorderWithOneCall(8));
  Start();
  inquiry_.OnAborted(4);
  ASSERT_THAT(Words<hangs::RankAborted>(), SizeIs(1));
  EXPECT_EQ(Words<hangs::RankAborted>()[0].rank, 4);
  EXPECT_TRUE(State().asks_workers);
  EXPECT_TRUE(State().awaits_judge);
  inquiry_.OnAsked();
  ASSERT_TRUE(RunUntil([this] { return !State().asks_workers; }));
  EXPECT_TRUE(State().awaits_judge);
  ASSERT_THAT(Words<hangs::NodeLastCalls>(), SizeIs(1));
  EXPECT_THAT(Words<hangs::NodeLastCalls>()[0].aborted, ElementsAre(4));
  inquiry_.OnSaid(Report());
  EXPECT_TRUE(IsOver());
  EXPECT_THAT(State().said.aborted, ElementsAre(4));
  inquiry_.OnSaid(Report());
  EXPECT_THAT(said_, SizeIs(1)) << "once";
}

TEST_F(AbortInquiryTest, GoesOnAskingTheWorkersWhereTheJudgeIsQuicker) {
  FakeTorchServer server(directory_.File("1"), RecorderWithOneCall(8), /*is_held=*/true);
  Start();
  inquiry_.OnAborted(4);
  inquiry_.OnSaid(Report());
  EXPECT_TRUE(State().asks_workers);
  EXPECT_FALSE(State().awaits_judge);
  EXPECT_THAT(State().said.aborted, ElementsAre(4));
  server.Release();
  EXPECT_TRUE(RunUntil([this] { return IsOver(); }));
}

// The judge also hears of a rank that aborts after it has asked.
TEST_F(AbortInquiryTest, AwaitsTheJudgeForARankThatAbortsAfterTheWorkersHaveAnswered) {
  FakeTorchServer server(directory_.File("1"), RecorderWithOneCall(8));
  Start();
  inquiry_.OnAsked();
  ASSERT_TRUE(RunUntil([this] { return IsOver(); }));
  inquiry_.OnAborted(4);
  EXPECT_THAT(Words<hangs::RankAborted>(), SizeIs(1));
  EXPECT_FALSE(State().asks_workers);
  EXPECT_TRUE(State().awaits_judge);
  inquiry_.OnSaid(Report());
  EXPECT_TRUE(IsOver());
}

TEST_F(AbortInquiryTest, AwaitsNothingForARankThatAbortsAfterAllHasBeenSaid) {
  FakeTorchServer server(directory_.File("1"), RecorderWithOneCall(8));
  Start();
  inquiry_.OnAsked();
  ASSERT_TRUE(RunUntil([this] { return IsOver(); }));
  inquiry_.OnSaid(Report());
  ASSERT_THAT(said_, SizeIs(1));
  const size_t before = states_.size();
  inquiry_.OnAborted(5);
  EXPECT_THAT(states_, SizeIs(before));
}

TEST_F(AbortInquiryTest, IsForgottenWithItsRound) {
  FakeTorchServer server(directory_.File("1"), RecorderWithOneCall(8), /*is_held=*/true);
  Start();
  inquiry_.OnAborted(4);
  Start(Round(4));
  states_.clear();
  inquiry_.OnAsked();
  EXPECT_TRUE(State().asks_workers);
  EXPECT_FALSE(State().awaits_judge);
}

// The limit that a test waits out in vain: long enough that a server which is there has answered.
class AbortInquiryInTime : public AbortInquiryTest {
 protected:
  static constexpr absl::Duration kLimit = absl::Seconds(5);
  AbortInquiryInTime() : AbortInquiryTest(30 * kLimit) {}
};

TEST_F(AbortInquiryInTime, SaysWhatIsKnownHereWhereTheJudgeSaysNothing) {
  FakeTorchServer server(directory_.File("1"), RecorderWithOneCall(8));
  Start();
  const MonoTime begin = MonoNow();
  inquiry_.OnAborted(4);
  ASSERT_TRUE(RunUntil([this] { return IsOver(); }));
  EXPECT_GE(MonoNow() - begin, kLimit);
  ASSERT_THAT(said_, SizeIs(1));
  EXPECT_THAT(said_[0], HasSubstr("Last calls: rank 5 called all_reduce #6"));
  EXPECT_THAT(State().said.aborted, ElementsAre(4));
}

TEST_F(AbortInquiryInTime, EndsWhereNobodyAnswersAnything) {
  FakeTorchServer server(directory_.File("1"), RecorderWithOneCall(8), /*is_held=*/true);
  Start();
  inquiry_.OnAborted(4);
  ASSERT_TRUE(RunUntil([this] { return IsOver(); }));
  EXPECT_THAT(said_, IsEmpty()) << "no call is known";
}

// The time of all is that of the first: a rank that aborts behind it does not wait for a judge that
// has had its time.
TEST_F(AbortInquiryInTime, AwaitsNothingForALaterRank) {
  FakeTorchServer server(directory_.File("1"), RecorderWithOneCall(8));
  Start();
  inquiry_.OnAborted(4);
  ASSERT_TRUE(RunUntil([this] { return IsOver(); }));
  inquiry_.OnAborted(5);
  EXPECT_TRUE(IsOver());
}

}  // namespace
}  // namespace muster::agent
