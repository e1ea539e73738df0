// The hang watch of a node, which does what the judge orders.
#include "agent/watch/hang_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "asio/io_context.hpp"
#include "tests/support/files.h"
#include "tests/support/subprocess.h"

namespace muster::agent {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr Round kRound(3);

// Ranks 2 and 3 are of this node; 3 is a program in Python that sleeps.
class HangWatchTest : public ::testing::Test {
 protected:
  HangWatchTest() {
    testing::WriteFile(script_,
                       "import time\ndef fetch():\n  print('runs', flush=True)\n"
                       "  time.sleep(1000)\nfetch()\n");
    Start(/*num_nodes=*/2);
  }
  void Start(int num_nodes) {
    WatchedRound round{.round = kRound,
                       .num_nodes = num_nodes,
                       .first_rank = 2,
                       .world_size = 4,
                       .torch_servers = {"", ""}};
    for (int i = 0; i < 2; ++i) round.boards.emplace_back(*BoardMemory::Create());
    watch_.StartRound(std::move(round));
  }
  void StartPython() {
    worker_.emplace(testing::SubprocessOptions{.argv = {"/usr/bin/python3", "-S", script_}});
    ASSERT_TRUE(worker_->WaitForOutput("runs"));
    watch_.OnSpawned(1, worker_->pid());
  }
  template <typename Condition>
  bool RunUntil(Condition condition) {
    return testing::WaitUntil([&] {
      loop_.restart();
      loop_.run_for(std::chrono::milliseconds(5));
      return condition();
    });
  }
  template <typename Word>
  std::vector<Word> Words() const {
    std::vector<Word> out;
    for (const hangs::NodeWord& word : words_) {
      if (const auto* wanted = std::get_if<Word>(&word)) out.push_back(*wanted);
    }
    return out;
  }
  static hangs::SayVerdict Verdict(uint64_t question) {
    hangs::SayVerdict say{.question = question, .round = kRound, .reason = "it is a test"};
    say.diagnosis = {.finding = hangs::Finding::kSilent, .culprits = {3}};
    say.to_end = {3};
    return say;
  }

  testing::TemporaryDirectory directory_;
  const std::string script_ = directory_.File("train.py");
  std::optional<testing::Subprocess> worker_;
  asio::io_context loop_;
  std::vector<hangs::NodeWord> words_;
  std::vector<std::string> said_;
  std::vector<std::pair<int, std::string>> ended_;
  HangWatch watch_{
      loop_,
      {.ends_workers = true,
       .node = "node1",
       .report_directory = directory_.path(),
       .on_said = [this](WatchEvent, const std::string& text) { said_.push_back(text); }},
      [this](int pid, const std::string& why) { ended_.emplace_back(pid, why); },
      [this](hangs::NodeWord word) { words_.push_back(std::move(word)); }};
};

TEST_F(HangWatchTest, AddsToANoticeWhereThePythonOfItsOwnRanksIs) {
  StartPython();
  watch_.OnOrder(hangs::SayNotice{kRound, hangs::Finding::kNotCalled, "rank 3 is late", {0, 3}});
  ASSERT_TRUE(RunUntil([&] { return !said_.empty(); }));
  EXPECT_THAT(said_, ElementsAre(AllOf(StartsWith("rank 3 is late; rank 3 in "),
                                       HasSubstr("fetch at train.py:"))));
}

TEST_F(HangWatchTest, GivesNoticeAtOnceOfRanksOfOtherNodes) {
  watch_.OnOrder(hangs::SayNotice{kRound, hangs::Finding::kNotCalled, "rank 0 is late", {0}});
  EXPECT_THAT(said_, ElementsAre("rank 0 is late"));
}

TEST_F(HangWatchTest, DoesNotGiveNoticeAnyMoreOfWhatGoesOn) {
  StartPython();
  watch_.OnOrder(hangs::SayNotice{kRound, hangs::Finding::kNotCalled, "rank 3 is late", {3}});
  watch_.OnOrder(hangs::SayRecovery{kRound, "it goes on"});
  bool is_looked_at = false;  // on the lane of the look for the notice, after it
  watch_.LookAtRanks(3, [&](const auto&) { is_looked_at = true; });
  ASSERT_TRUE(RunUntil([&] { return is_looked_at; }));
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(HangWatchTest, EndsAWorkerThatHasNotMovedSinceItsStacksWereRead) {
  StartPython();
  watch_.OnOrder(hangs::AskStacks{7, kRound, {3}});
  ASSERT_TRUE(RunUntil([&] { return !Words<hangs::NodeStacks>().empty(); }));
  const hangs::NodeStacks stacks = Words<hangs::NodeStacks>()[0];
  EXPECT_EQ(stacks.question, 7u);
  EXPECT_FALSE(stacks.has_moved);
  ASSERT_THAT(stacks.ranks, SizeIs(1));
  EXPECT_THAT(stacks.ranks[0].python, ::testing::Contains(HasSubstr("fetch at ")));
  watch_.OnOrder(Verdict(6));
  EXPECT_THAT(ended_, IsEmpty()) << "the verdict is of other stacks";
  watch_.OnOrder(Verdict(7));
  watch_.OnOrder(Verdict(7));
  ASSERT_THAT(ended_, SizeIs(2)) << "again, in case that it was lost";
  EXPECT_EQ(ended_[0].first, worker_->pid());
  EXPECT_THAT(ended_[0].second, AllOf(StartsWith("hang: "), HasSubstr("; see ")));
  EXPECT_THAT(said_, SizeIs(2)) << "one of each verdict";
}

TEST_F(HangWatchTest, OnOneNodeAsksTheServerNothingAndSaysThatItJudges) {
  words_.clear();
  Start(/*num_nodes=*/1);
  ASSERT_THAT(Words<hangs::NodeSummary>(), SizeIs(1));
  EXPECT_TRUE(Words<hangs::NodeSummary>()[0].standing.is_told);
  EXPECT_EQ(words_.size(), 1u);
}

}  // namespace
}  // namespace muster::agent
