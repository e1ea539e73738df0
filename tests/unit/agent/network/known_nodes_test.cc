// Each answer of the store comes when a test gives it.
#include "agent/network/known_nodes.h"

#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Key;

Peer MakePeer(const std::string& name, const std::string& address) {
  return {.name = name, .address = address, .worker_ports = {4000}};
}

std::string EncodedNode(int node) {
  return Encode(Introduction{
      .name = absl::StrCat("node", node), .address = absl::StrCat("10.0.0.", node), .port = 4000});
}

class KnownNodesTest : public ::testing::Test {
 protected:
  struct Question {
    StoreOperation operation;
    std::function<void(const StoreReply&)> then;
  };

  void Meet(int round, absl::Duration patience) {
    nodes_.Meet({.round = Round(round),
                 .self = 0,
                 .own = {.name = "node0", .address = "10.0.0.9", .port = 4000},
                 .others = {3, 7},
                 .patience = patience},
                [this] { ++num_met_; });
    ASSERT_TRUE(std::holds_alternative<StoreSet>(Next().operation));
  }
  Question Next() {
    Question question = std::move(asked_.front());
    asked_.pop_front();
    return question;
  }

  asio::io_context loop_{1};
  std::deque<Question> asked_;
  int num_met_ = 0;
  KnownNodes nodes_{loop_, [this](StoreOperation operation, auto then) {
                      asked_.push_back({std::move(operation), std::move(then)});
                    }};
};

TEST_F(KnownNodesTest, AreThoseOfAList) {
  nodes_.TakeList({MakePeer("a", "10.0.0.1"), MakePeer("b", "10.0.0.2")});
  EXPECT_THAT(nodes_.known(), ElementsAre(Key(0), Key(1)));
  EXPECT_EQ(nodes_.EndOf(1).address, "10.0.0.2");
  EXPECT_EQ(nodes_.EndOf(2).name, "node rank 2");
}

TEST_F(KnownNodesTest, MeetOnceAllHaveIntroducedThemselves) {
  Meet(1, absl::Hours(1));
  Next().then({.values = {EncodedNode(3), EncodedNode(7)}});
  EXPECT_EQ(num_met_, 1);
  EXPECT_THAT(nodes_.known(), ElementsAre(Key(0), Key(3), Key(7)));
  loop_.run();  // its timer has been cancelled
}

TEST_F(KnownNodesTest, MeetWithoutAnotherThatSaysNothing) {
  Meet(1, absl::Hours(1));
  Next().then({.status = absl::DeadlineExceededError("absent")});
  Next().then({.values = {EncodedNode(3)}});
  Next().then({.status = absl::NotFoundError("absent")});
  EXPECT_EQ(num_met_, 1);
  EXPECT_THAT(nodes_.known(), ElementsAre(Key(0), Key(3)));
}

TEST_F(KnownNodesTest, MeetAloneWhereTheStoreNeverAnswers) {
  Meet(1, absl::Milliseconds(1));
  loop_.run();
  EXPECT_EQ(num_met_, 1);
  EXPECT_THAT(nodes_.known(), ElementsAre(Key(0)));
}

TEST_F(KnownNodesTest, DoNotHearAnswersOfAnEarlierRound) {
  Meet(1, absl::Hours(1));
  const Question earlier = Next();
  nodes_.Cancel();
  Meet(2, absl::Hours(1));
  earlier.then({.values = {EncodedNode(3), EncodedNode(7)}});
  EXPECT_EQ(num_met_, 0);
  EXPECT_THAT(nodes_.known(), ElementsAre(Key(0)));
}

TEST_F(KnownNodesTest, AreDoubtfulByTheirNamesWhenTheirRanksHaveChanged) {
  nodes_.TakeList({MakePeer("a", "10.0.0.1"), MakePeer("b", "10.0.0.2")});
  nodes_.Doubt({1});
  nodes_.TakeList({MakePeer("b", "10.0.0.2"), MakePeer("c", "10.0.0.3")});
  EXPECT_THAT(nodes_.Doubtful(), ElementsAre(0));
  nodes_.Doubt({});
  EXPECT_THAT(nodes_.Doubtful(), IsEmpty());
}

}  // namespace
}  // namespace muster::agent
