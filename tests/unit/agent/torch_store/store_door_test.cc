#include "agent/torch_store/store_door.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"

namespace muster::agent {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Eight ranks, four on each of two nodes: 10.0.0.1 and 10.0.0.2. The table has 1536 places.
class Door : public ::testing::Test {
 protected:
  static constexpr int kHalf = 768;

  StoreDoor::Answer Open(const std::string& address, const std::string& other_user = "") {
    StoreClient client{.address = address, .port = 1, .other_user = other_user};
    const bool is_node = address == "10.0.0.1" || address == "10.0.0.2";
    StoreDoor::Answer answer = door_.Open(StoreConnection(++last_), client, is_node ? 4 : 0, now_);
    EXPECT_EQ(door_.CheckInvariants(), "");
    return answer;
  }
  void OpenMany(int count, const std::string& address) {
    for (int i = 0; i < count; ++i) ASSERT_EQ(Open(address).refusal, "") << i;
  }
  // All ranks of both nodes, with `connections` each, which they use.
  void OpenRanks(int connections) {
    for (const char* address : {"10.0.0.1", "10.0.0.2"}) {
      for (int i = 0; i < 4 * connections; ++i) {
        ASSERT_EQ(Open(address).refusal, "");
        door_.NoteIsUsed(StoreConnection(last_));
      }
    }
  }
  std::vector<ShownOut> CloseSilentAfter(absl::Duration time) {
    now_ = now_ + time;
    std::vector<ShownOut> closed = door_.CloseSilent(now_);
    EXPECT_EQ(door_.CheckInvariants(), "");
    return closed;
  }

  StoreDoor door_{8, StoreClients::kAll};
  MonoTime now_ = MonoTime::At(absl::ZeroDuration());
  uint64_t last_ = 0;
};

TEST_F(Door, ServesStrangersAndNamesEachOnce) {
  EXPECT_THAT(Open("10.0.0.1").notice, IsEmpty());
  const StoreDoor::Answer first = Open("10.9.9.9");
  EXPECT_THAT(first.refusal, IsEmpty());
  EXPECT_THAT(first.notice, AllOf(HasSubstr("10.9.9.9, which belongs to no node of this job"),
                                  HasSubstr("--store_clients=nodes")));
  EXPECT_THAT(Open("10.9.9.9").notice, IsEmpty());
  EXPECT_THAT(Open("10.9.9.8").notice, HasSubstr("10.9.9.8"));
}

TEST_F(Door, TakesAnotherUserOfANodesMachineForAStranger) {
  const StoreDoor::Answer answer = Open("10.0.0.1", "uid 1001 of this machine");
  EXPECT_THAT(answer.refusal, IsEmpty());
  EXPECT_THAT(answer.notice, HasSubstr("serves uid 1001 of this machine"));
}

TEST_F(Door, RefusesStrangersWhereNodesAloneAreServed) {
  door_ = StoreDoor(8, StoreClients::kNodes);
  EXPECT_THAT(Open("10.0.0.2").refusal, IsEmpty());
  EXPECT_THAT(Open("10.9.9.9").refusal, HasSubstr("10.9.9.9 belongs to no node of the job"));
  EXPECT_THAT(Open("10.0.0.1", "uid 1001 of this machine").refusal, HasSubstr("uid 1001"));
  EXPECT_EQ(door_.size(), 1u);
}

TEST_F(Door, LetsOneStrangerTakeAQuarterOfThePlaces) {
  OpenMany(1536 / 4, "10.9.9.9");
  EXPECT_THAT(Open("10.9.9.9").refusal, HasSubstr("10.9.9.9 already has 384 connections"));
}

TEST_F(Door, KeepsHalfOfThePlacesForTheNodes) {
  OpenMany(384, "10.9.9.7");
  OpenMany(384, "10.9.9.8");
  EXPECT_THAT(Open("10.9.9.9").refusal, HasSubstr("768 of 1536 connections are taken already"));
  OpenRanks(10);
}

TEST_F(Door, ClosesStrangersInFavourOfNodes) {
  OpenMany(300, "10.9.9.7");
  OpenMany(384, "10.9.9.8");
  OpenMany(84, "10.0.0.1");
  const StoreDoor::Answer answer = Open("10.0.0.1");
  EXPECT_THAT(answer.refusal, IsEmpty());
  ASSERT_THAT(answer.closed, SizeIs(1));  // the newest of the address that has most
  EXPECT_EQ(answer.closed[0].connection, StoreConnection(684));
  EXPECT_THAT(answer.closed[0].reason, HasSubstr("it belongs to no node of the job"));
  EXPECT_EQ(door_.size(), static_cast<size_t>(kHalf));
}

TEST_F(Door, LetsNoNodeTakeThePlacesOfTheOthers) {
  OpenMany(512 + 4 * 64, "10.0.0.1");
  EXPECT_THAT(Open("10.0.0.1").refusal, HasSubstr("10.0.0.1 already has 768 connections"));
  OpenMany(100, "10.0.0.2");
}

TEST_F(Door, LeavesSilentConnectionsAloneWhileThereIsRoom) {
  OpenMany(300, "10.0.0.1");
  EXPECT_TRUE(door_.NextDeadline().is_infinite());
  EXPECT_THAT(CloseSilentAfter(absl::Hours(1)), IsEmpty());
}

TEST_F(Door, ClosesSilentConnectionsOfANodeThatHasMoreThanHalfOfItsOwn) {
  OpenRanks(2);
  OpenMany(768 - 8, "10.0.0.1");
  EXPECT_THAT(Open("10.0.0.1").refusal, HasSubstr(" connections, the limit"));
  ASSERT_EQ(door_.NextDeadline(), now_ + StoreDoor::kSilence);
  EXPECT_THAT(CloseSilentAfter(absl::Seconds(9)), IsEmpty());
  // Eight others may have a second connection that is silent for good (PyTorch 1 and 2.0).
  EXPECT_THAT(CloseSilentAfter(absl::Seconds(1)), SizeIs(768 - 16));
  EXPECT_THAT(Open("10.0.0.1").refusal, IsEmpty());
}

TEST_F(Door, GivesEachSilentConnectionItsTime) {
  OpenMany(400, "10.0.0.1");
  now_ = now_ + absl::Seconds(5);
  OpenMany(100, "10.0.0.1");
  EXPECT_THAT(CloseSilentAfter(absl::Seconds(5)), SizeIs(400));
  EXPECT_THAT(CloseSilentAfter(absl::Seconds(5)), IsEmpty());  // there is room again
}

TEST_F(Door, NeverClosesAConnectionThatIsUsed) {
  OpenRanks(90);  // 720
  OpenMany(60, "10.0.0.2");
  EXPECT_THAT(CloseSilentAfter(absl::Minutes(1)), IsEmpty());  // each may be somebody's second
  EXPECT_EQ(door_.size(), 780u);
}

TEST_F(Door, TakesAWorkersConnectionForTheJobsOwnUnderAnyUser) {
  Open("10.0.0.1", "uid 1001 of this machine");
  door_.NoteIsOurs(StoreConnection(last_));
  EXPECT_THAT(Open("10.0.0.1", "uid 1001 of this machine").notice, IsEmpty());
  OpenMany(766, "10.0.0.1");
  EXPECT_THAT(Open("10.0.0.2").closed, IsEmpty());
}

TEST_F(Door, KeepsItsInvariantsWhateverComesAndGoes) {
  std::mt19937 random(7);
  for (int i = 0; i < 30000; ++i) {
    const StoreConnection some(1 + random() % (last_ + 1));
    switch (random() % 8) {
      case 0:
        door_.Close(some);
        break;
      case 1:
        door_.NoteIsUsed(some);
        break;
      case 2:
        if (random() % 100 == 0) CloseSilentAfter(absl::Seconds(random() % 8));
        break;
      default: {
        StoreClient client{.address = absl::StrCat("10.0.0.", random() % 6), .port = 1};
        door_.Open(StoreConnection(++last_), client, client.address < "10.0.0.3" ? 4 : 0, now_);
      }
    }
    ASSERT_LE(door_.size(), door_.capacity());
    if (i % 50 == 0) {
      ASSERT_EQ(door_.CheckInvariants(), "") << i;
    }
  }
}

}  // namespace
}  // namespace muster::agent
