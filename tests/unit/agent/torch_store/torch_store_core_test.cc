#include "agent/torch_store/torch_store_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/unit/agent/torch_store/store_bytes.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Effects = TorchStoreCore::Effects;

constexpr char kKey[] = "default_pg/0//cpu//0/rank_3";

// Eight ranks, four on each of two nodes; the store is on node1. Rank r connects as connection r.
class StoreCore : public ::testing::Test {
 protected:
  static TorchStoreSettings Settings() {
    return {.world_size = 8,
            .nodes = {{"node1", "10.0.0.1", Rank(0), 4}, {"node2", "10.0.0.2", Rank(4), 4}}};
  }
  void Open(int connection, StoreClient client) {
    Keep(core_->Open(StoreConnection(connection), std::move(client), now_));
  }
  void Come(int rank) {
    Open(rank, {.address = rank < 4 ? "127.0.0.1" : "10.0.0.2",
                .port = 40000 + rank,
                .is_local = rank < 4});
    Keep(core_->Receive(StoreConnection(rank), Arrival(), now_));
  }
  void Send(int rank, const std::string& bytes) {
    Keep(core_->Receive(StoreConnection(rank), bytes, now_));
  }
  void Identify(int rank) {
    Keep(core_->Identify(rank < 4 ? "127.0.0.1" : "10.0.0.2", 40000 + rank, Rank(rank), now_));
  }
  // Goes on until `seconds` after the start, ticking whenever the core asks for it.
  void Until(double seconds) {
    const MonoTime end = MonoTime::At(absl::Seconds(seconds));
    while (core_->NextDeadline() <= end) {
      now_ = core_->NextDeadline();
      Keep(core_->Tick(now_));
    }
    now_ = end;
  }
  void Keep(const Effects& effects) {
    EXPECT_EQ(core_->CheckInvariants(), "");
    for (const TorchStoreEffect& effect : effects) {
      if (const auto* tell = std::get_if<TellPeople>(&effect)) told_.push_back(tell->text);
      if (std::holds_alternative<LookUpWorkers>(effect)) ++lookups_;
      if (const auto* cut = std::get_if<CutClient>(&effect)) cuts_.push_back(cut->reason);
    }
  }
  std::optional<TorchStoreCore> core_{std::in_place, Settings()};
  MonoTime now_ = MonoTime::At(absl::ZeroDuration());
  std::vector<std::string> told_, cuts_;
  int lookups_ = 0;
};

TEST_F(StoreCore, ServesWhatComesInPieces) {
  Open(1, {.address = "127.0.0.1", .port = 1, .is_local = true});
  const std::string bytes = Validate() + SetBytes("k", "v") + Byte(kGetCode) + Text("k");
  Effects last;
  for (const char byte : bytes) {
    last = core_->Receive(StoreConnection(1), std::string(1, byte), now_);
    EXPECT_EQ(core_->CheckInvariants(), "");
  }
  EXPECT_THAT(last, ElementsAre(SendToClient{StoreConnection(1), Text("v")}));
}

TEST_F(StoreCore, CutsWhoSpeaksAnotherProtocolAndSaysWhatItSaw) {
  Open(1, {.address = "10.9.9.9", .port = 5555});
  Send(1, "GET /metrics HTTP/1.1\r\n");
  EXPECT_THAT(cuts_, ElementsAre(HasSubstr("10.9.9.9:5555: it does not speak the protocol of "
                                           "PyTorch's store: \"GET /metrics")));
  EXPECT_THAT(core_->Receive(StoreConnection(1), "more", now_), IsEmpty());
}

TEST_F(StoreCore, CutsWhoSendsMoreUnfinishedRequestsThanTheBudgetAllows) {
  TorchStoreSettings settings = Settings();
  settings.limits.bytes_max = 1000;
  core_.emplace(settings);
  Open(1, {.address = "10.9.9.9", .port = 5555});
  Send(1, Validate() + Byte(kSetCode) + Text("k") + Number<uint64_t>(100000));
  EXPECT_THAT(cuts_, IsEmpty());
  Send(1, std::string(2000, 'x'));
  EXPECT_THAT(cuts_, ElementsAre(HasSubstr("too much memory")));
}

// --- Who does not read, and who may come

class CrowdedStore : public StoreCore {
 protected:
  // There is room for replies of 1000 bytes to one client before it must read them.
  CrowdedStore() {
    TorchStoreSettings settings = Settings();
    settings.limits.unsent_bytes_pause = 1000;
    settings.limits.unsent_bytes_max = 100000;
    core_.emplace(settings);
  }
  static std::string Get(const std::string& key) { return Byte(kGetCode) + Text(key); }
  // How many pieces it is sent.
  int Ask(int connection, const std::string& bytes) {
    return Take(connection, core_->Receive(StoreConnection(connection), bytes, now_));
  }
  int Read(int connection) {
    return Take(connection, core_->Sent(StoreConnection(connection), now_));
  }
  int Take(int connection, const Effects& effects) {
    Keep(effects);
    int pieces = 0;
    for (const TorchStoreEffect& effect : effects) {
      const auto* send = std::get_if<SendToClient>(&effect);
      pieces += send != nullptr && send->to == StoreConnection(connection) ? 1 : 0;
    }
    return pieces;
  }
};

TEST_F(CrowdedStore, ServesAClientNoMoreWhileItDoesNotRead) {
  Come(4);
  Send(4, SetBytes("k", std::string(2000, 'x')));
  Read(4);  // the answer to its arrival
  std::string many;
  for (int i = 0; i < 1000; ++i) many += Get("k");
  EXPECT_EQ(Ask(4, many), 1);
  EXPECT_FALSE(core_->MayRead(StoreConnection(4)));
  int answered = 1;
  while (const int pieces = Read(4)) answered += pieces;
  EXPECT_EQ(answered, 1000);
  EXPECT_TRUE(core_->MayRead(StoreConnection(4)));
  EXPECT_THAT(cuts_, IsEmpty());
}

TEST_F(CrowdedStore, CutsWhoLeavesMostUnreadIfAllTogetherLeaveTooMuch) {
  for (const int rank : {4, 5, 6, 7}) {
    Come(rank);
    const std::string key = absl::StrCat("k", rank);
    Send(rank, SetBytes(key, std::string(rank == 6 ? 40000 : 30000, 'x')) + Get(key));
  }
  EXPECT_THAT(cuts_, ElementsAre(HasSubstr("replies that are not read take too much memory")));
  EXPECT_FALSE(core_->Receive(StoreConnection(6), Get("k6"), now_).size() > 0);  // it was that one
}

TEST_F(CrowdedStore, CountsWhatManyHaveAskedForOnce) {
  Come(0);
  Send(0, SetBytes("k", std::string(50000, 'x')));
  for (int rank = 1; rank < 8; ++rank) {
    Come(rank);
    Send(rank, Get("k"));
  }
  EXPECT_THAT(cuts_, IsEmpty());
}

TEST_F(StoreCore, NamesAStrangerOnceAndServesIt) {
  Open(50, {.address = "10.9.9.9", .port = 1});
  Open(51, {.address = "10.9.9.9", .port = 2});
  EXPECT_THAT(told_, ElementsAre(HasSubstr("10.9.9.9, which belongs to no node of this job")));
  EXPECT_THAT(core_->Receive(StoreConnection(51), Arrival(), now_),
              ElementsAre(SendToClient{StoreConnection(51), Number<int64_t>(1)}));
}

TEST_F(StoreCore, TakesEveryAddressOfANodeForTheNode) {
  TorchStoreSettings settings = Settings();
  settings.nodes[1].other_addresses = {"192.168.7.2"};
  settings.clients = StoreClients::kNodes;
  core_.emplace(settings);
  Open(50, {.address = "192.168.7.2", .port = 1});
  Open(51, {.address = "192.168.7.3", .port = 1});
  EXPECT_THAT(cuts_, ElementsAre(HasSubstr("192.168.7.3 belongs to no node of the job")));
  EXPECT_THAT(told_, IsEmpty());
}

TEST_F(StoreCore, ServesEveryAddressInARoundTooLargeToListItsNodes) {
  TorchStoreSettings settings = Settings();
  settings.nodes.clear();
  settings.clients = StoreClients::kNodes;
  core_.emplace(settings);
  Open(50, {.address = "10.9.9.9", .port = 1});
  EXPECT_THAT(cuts_, IsEmpty());
  EXPECT_THAT(told_, IsEmpty());
}

TEST_F(StoreCore, LetsRanksInThoughAnotherUserHoldsConnectionsThatSayNothing) {
  for (int i = 0; i < 2000; ++i) {
    Open(100 + i, {.address = "127.0.0.1",
                   .port = i,
                   .is_local = true,
                   .other_user = "uid 1001 of this machine"});
  }
  const size_t refused = cuts_.size();
  EXPECT_GT(refused, 1000u);
  for (int rank = 0; rank < 8; ++rank) Come(rank);
  EXPECT_EQ(cuts_.size(), refused);
}

TEST_F(StoreCore, ClosesConnectionsThatSayNothingWhileTheyAreScarce) {
  for (int i = 0; i < 700; ++i) Open(100 + i, {.address = "10.0.0.2", .port = i});
  Come(5);
  Until(9);
  EXPECT_THAT(cuts_, IsEmpty());
  Until(11);
  EXPECT_EQ(cuts_.size(), 699u);  // one could be the second connection of rank 5's store
  EXPECT_THAT(cuts_[0], HasSubstr("it has sent no request"));
}

// --- Who is missing

TEST_F(StoreCore, NamesTheRanksThatAreMissing) {
  for (const int rank : {0, 1, 2, 4, 6, 7}) Come(rank);
  for (const int rank : {0, 1, 2, 4, 6, 7}) Identify(rank);
  Send(0, WaitBytes({kKey}));
  Until(9);
  EXPECT_THAT(told_, IsEmpty());
  EXPECT_EQ(lookups_, 1);
  Until(10);
  EXPECT_THAT(told_, ElementsAre("init_process_group: 6 of 8 ranks are there; waiting for rank 3 "
                                 "(node1) and rank 5 (node2) for 10s"));
}

TEST_F(StoreCore, NamesTheRanksOfANodeFromWhichNobodyHasComeWithoutAnyLookup) {
  for (const int rank : {0, 1, 2, 3}) Come(rank);
  Send(0, WaitBytes({kKey}));
  Until(10);
  EXPECT_THAT(told_, ElementsAre(HasSubstr("4 of 8 ranks are there; waiting for ranks 4-7 "
                                           "(node2)")));
}

TEST_F(StoreCore, SaysTheNodeAloneWhereTheRanksAreNotKnown) {
  for (const int rank : {0, 1, 2, 3, 4, 5}) Come(rank);
  Send(0, WaitBytes({kKey}));
  Until(10);
  EXPECT_THAT(told_, ElementsAre(HasSubstr("waiting for 2 of the 4 ranks of node2")));
}

TEST_F(StoreCore, BelievesAWitnessOfItsOwnAddressAlone) {
  for (const int rank : {0, 1, 2, 3, 4, 5}) Come(rank);
  Open(90, {.address = "10.0.0.2", .port = 50000});
  Send(90, EncodeIdentify({{40004, 4}, {40005, 5}}));
  Open(91, {.address = "10.6.6.6", .port = 50000});
  Send(91, EncodeIdentify({{40004, 6}, {-1, 3}, {40005, 1000}, {40005, -4}}));
  Send(0, WaitBytes({kKey}));
  Until(10);
  EXPECT_THAT(told_, ElementsAre(HasSubstr("10.6.6.6, which belongs to no node"),
                                 HasSubstr("waiting for ranks 6 and 7 (node2)")));
}

TEST_F(StoreCore, RepeatsTheNoticeMoreAndMoreSeldom) {
  Come(0);
  Send(0, WaitBytes({kKey}));
  Until(600);
  EXPECT_EQ(told_.size(), 4) << "after 10, 70, 190 and 430 s";
}

TEST_F(StoreCore, NamesThoseWhoAreStillMissingSoonAfterOneHasCome) {
  for (const int rank : {0, 1, 2, 3, 4}) Come(rank);
  Send(0, WaitBytes({kKey}));
  Until(12);
  EXPECT_EQ(told_.size(), 1);
  Come(5);
  Identify(5);
  Until(15);
  Come(6);
  Identify(6);
  Identify(4);
  Until(21);
  EXPECT_EQ(told_.size(), 1);
  Until(22);
  EXPECT_EQ(told_.size(), 2);
  EXPECT_THAT(told_.back(),
              HasSubstr("7 of 8 ranks are there; waiting for rank 7 (node2) for 22s"));
  Until(81);
  EXPECT_EQ(told_.size(), 2);
}

TEST_F(StoreCore, SaysSoWhenTheMissingHaveCome) {
  for (int rank = 0; rank < 7; ++rank) Come(rank);
  Send(0, WaitBytes({kKey}));
  Until(15);
  told_.clear();
  Come(7);
  EXPECT_THAT(told_, ElementsAre("all 8 ranks are there now, after 15s"));
  Until(1000);
  EXPECT_EQ(told_.size(), 1);
}

TEST_F(StoreCore, SaysNothingWhileEveryRankIsThere) {
  for (int rank = 0; rank < 8; ++rank) Come(rank);
  Send(0, WaitBytes({"a key of the user's own"}));
  EXPECT_TRUE(core_->NextDeadline().is_infinite());
}

TEST_F(StoreCore, SaysNothingOfMissingRanksWhileNobodyWaits) {
  Come(0);
  Until(1000);
  EXPECT_THAT(told_, IsEmpty());
}

TEST_F(StoreCore, CountsARankThatHasEnded) {
  for (int rank = 0; rank < 8; ++rank) {
    Come(rank);
    if (rank == 3) Identify(3);
  }
  Keep(core_->Close(StoreConnection(3), now_));
  Keep(core_->Close(StoreConnection(5), now_));
  Send(0, WaitBytes({kKey}));
  Until(100);
  EXPECT_THAT(told_, IsEmpty());
}

TEST_F(StoreCore, SaysWhoGaveUpAndWhoNeverCame) {
  for (const int rank : {0, 1, 2, 3, 4, 5, 6}) Come(rank);
  for (const int rank : {0, 4, 5, 6}) Identify(rank);
  Send(0, WaitBytes({kKey}));
  Until(300);
  told_.clear();
  Send(0, Byte(kCancelWaitCode));
  Keep(core_->Close(StoreConnection(0), now_));
  EXPECT_THAT(told_, ElementsAre("rank 0 gave up after 300s: init_process_group needs 8 ranks, of "
                                 "which 7 came; missing: rank 7 (node2)"));
}

TEST_F(StoreCore, TakesAWaitInSlicesForOne) {
  Come(0);
  for (int slice = 0; slice < 4; ++slice) {
    Send(0, WaitBytes({kKey}));
    Until(10 * (slice + 1));
    Send(0, Byte(kCancelWaitCode) + AddBytes("counter", 0));
  }
  Keep(core_->Close(StoreConnection(0), now_));
  EXPECT_THAT(told_.back(), HasSubstr("gave up after 40s"));
}

TEST_F(StoreCore, NamesTheKeyThatNobodySetIfEverybodyHadCome) {
  for (int rank = 0; rank < 8; ++rank) Come(rank);
  Identify(2);
  Send(2, WaitBytes({"uid/\x01"}));
  Until(30);
  Send(2, Byte(kCancelWaitCode));
  Keep(core_->Close(StoreConnection(2), now_));
  EXPECT_THAT(told_, ElementsAre("rank 2 gave up after 30s: the key 'uid/\\x01' of PyTorch's "
                                 "store that it waited for was never set"));
}

// --- Who has not come to a barrier

class StoreBarriers : public StoreCore {
 protected:
  StoreBarriers() {
    for (int rank = 0; rank < 8; ++rank) {
      Come(rank);
      Identify(rank);
    }
  }
  // PyTorch's barrier behind init_process_group and new_group, up to where it waits.
  void Count(int rank, const std::string& group) {
    const std::string key = "store_based_barrier_key:" + group;
    Send(rank, AddBytes(key, 1) + AddBytes(key, 0) + WaitBytes({key + ":last_worker"}));
  }
};

TEST_F(StoreBarriers, NameTheRanksThatHaveNotCome) {
  for (const int rank : {0, 1, 2, 4, 6, 7}) Send(rank, BarrierBytes("k", 8));
  Until(9);
  EXPECT_THAT(told_, IsEmpty());
  EXPECT_EQ(lookups_, 1);
  Until(10);
  EXPECT_THAT(told_,
              ElementsAre("the barrier 'k' of PyTorch's store: 6 of 8 ranks are there; waiting for "
                          "rank 3 (node1) and rank 5 (node2) for 10s"));
}

TEST_F(StoreBarriers, SaySoWhenAllHaveCome) {
  for (int rank = 0; rank < 7; ++rank) Send(rank, BarrierBytes("k", 8));
  Until(15);
  told_.clear();
  Send(7, BarrierBytes("k", 8));
  EXPECT_THAT(told_,
              ElementsAre("all ranks have reached the barrier 'k' of PyTorch's store after 15s"));
  Until(1000);
  EXPECT_EQ(told_.size(), 1);
}

TEST_F(StoreBarriers, AreToldOfAgainSoonAfterARankHasCome) {
  for (int rank = 0; rank < 6; ++rank) Send(rank, BarrierBytes("k", 8));
  Until(12);
  Send(6, BarrierBytes("k", 8));
  Until(21);
  EXPECT_EQ(told_.size(), 1);
  Until(22);
  EXPECT_EQ(told_.size(), 2);
  EXPECT_THAT(told_.back(), HasSubstr("7 of 8 ranks are there; waiting for rank 7 (node2)"));
  Until(600);
  EXPECT_EQ(told_.size(), 5) << "after 82, 202 and 442 s";
}

TEST_F(StoreBarriers, OfEachOneIsToldByItself) {
  for (int rank = 0; rank < 7; ++rank) Send(rank, BarrierBytes("k", 8));
  Until(15);
  Send(7, BarrierBytes("k", 8));
  for (int rank = 1; rank < 8; ++rank) Send(rank, BarrierBytes("l", 8));
  told_.clear();
  Until(25);
  EXPECT_THAT(told_,
              ElementsAre(HasSubstr("the barrier 'l' of PyTorch's store: 7 of 8 ranks are there; "
                                    "waiting for rank 0 (node1)")));
}

TEST_F(StoreBarriers, ThatCountWithAKeyAreToldOfToo) {
  for (const int rank : {0, 1, 2, 3, 4, 5, 7}) Count(rank, "12");
  for (int slice = 1; slice <= 2; ++slice) {
    Until(10.01 * slice);
    for (const int rank : {0, 1, 2, 3, 4, 5, 7}) {
      Send(rank, Byte(kCancelWaitCode) + AddBytes("store_based_barrier_key:12", 0) +
                     WaitBytes({"store_based_barrier_key:12:last_worker"}));
    }
  }
  EXPECT_THAT(told_,
              ElementsAre("the barrier 'store_based_barrier_key:12' of PyTorch's store: 7 of "
                          "8 ranks are there; waiting for rank 6 (node2) for 10s"));
  told_.clear();
  Send(6, AddBytes("store_based_barrier_key:12", 1) +
              SetBytes("store_based_barrier_key:12:last_worker", "1"));
  EXPECT_THAT(told_, ElementsAre(HasSubstr("all ranks have reached the barrier")));
}

// Source: seen of PyTorch 2.15's PrefixStore, and of torch.distributed.elastic.utils.store.barrier.
TEST_F(StoreBarriers, ThatDoNotSayHowManyTheyAreForMayBeForAll) {
  for (const int rank : {0, 1, 2, 3, 4, 5, 7}) {
    Send(rank, AddBytes("k/num_members", 1) + WaitBytes({"k/last_member"}));
  }
  Until(10);
  EXPECT_THAT(told_, ElementsAre("the barrier 'k' of PyTorch's store: 7 ranks are there; if it is "
                                 "for all, waiting for rank 6 (node2) for 10s"));
  Until(30);
  told_.clear();
  Send(0, Byte(kCancelWaitCode));
  Keep(core_->Close(StoreConnection(0), now_));
  EXPECT_THAT(told_,
              ElementsAre("rank 0 gave up after 30s: the barrier 'k' was not opened; if it is "
                          "for all, missing: rank 6 (node2)"));
  told_.clear();
  Send(1, SetBytes("k/last_member", "1"));
  EXPECT_THAT(told_, ElementsAre(HasSubstr("all ranks have reached the barrier 'k'")));
}

TEST_F(StoreBarriers, OfSomeRanksAreToldOfWithoutGuessingTheOthers) {
  Send(3, BarrierBytes("k", 2));
  Count(5, "hash_of_some_ranks");
  Until(10);
  EXPECT_THAT(told_, ElementsAre("the barrier 'k' of PyTorch's store: 1 of 2 is there (rank 3); "
                                 "waiting for 10s"));
}

TEST_F(StoreBarriers, CountThoseWhoHaveGone) {
  for (int rank = 0; rank < 6; ++rank) Send(rank, BarrierBytes("k", 8));
  Keep(core_->Close(StoreConnection(2), now_));
  Until(10);
  EXPECT_THAT(told_, ElementsAre(HasSubstr("6 of 8 ranks are there; waiting for 2 ranks")));
}

TEST_F(StoreBarriers, NameWhoIsMissingToThoseWhoGiveUp) {
  for (int rank = 0; rank < 7; ++rank) Send(rank, BarrierBytes("k", 8));
  Until(30);
  told_.clear();
  Send(0, Byte(kCancelWaitCode));
  Keep(core_->Close(StoreConnection(0), now_));
  EXPECT_THAT(told_, ElementsAre("rank 0 gave up after 30s: the barrier 'k' needs 8 ranks, of "
                                 "which 7 came; missing: rank 7 (node2)"));
}

TEST_F(StoreBarriers, WhoseKeyIsSpoiltAreNoLongerToldOf) {
  Send(0, BarrierBytes("k", 8));
  Send(1, SetBytes("k", "not a number"));
  Send(2, BarrierBytes("k", 8));
  EXPECT_EQ(cuts_.size(), 1);
  Until(100);
  EXPECT_THAT(told_, IsEmpty());
}

// --- What the hang watch is told

TEST_F(StoreCore, TellsTheWatchWhoHasNotComeToInitProcessGroup) {
  for (const int rank : {0, 1, 2, 4, 6, 7}) Come(rank);
  for (const int rank : {0, 1, 2, 4, 6, 7}) Identify(rank);
  EXPECT_THAT(core_->Gatherings(now_), IsEmpty()) << "nobody waits";
  Send(0, WaitBytes({kKey}));
  Send(4, WaitBytes({kKey}));
  Send(6, WaitBytes({"a key of the user's own"}));
  EXPECT_THAT(
      core_->Gatherings(now_),
      ElementsAre(hangs::Gathering{
          .name = "init_process_group", .is_start = true, .waiting = {0, 4}, .missing = {3, 5}}));
  Come(3);
  Come(5);
  EXPECT_THAT(core_->Gatherings(now_), IsEmpty());
}

TEST_F(StoreCore, TellsTheWatchNothingWhileOneThatHasComeIsNotKnownByItsRank) {
  for (const int rank : {0, 1, 2, 3, 4}) Come(rank);
  for (const int rank : {0, 1, 2, 3}) Identify(rank);
  Send(0, WaitBytes({kKey}));
  EXPECT_THAT(core_->Gatherings(now_), IsEmpty()) << "it may be any of those that are missing";
  Identify(4);
  ASSERT_EQ(core_->Gatherings(now_).size(), 1);
  EXPECT_THAT(core_->Gatherings(now_)[0].missing, ElementsAre(5, 6, 7));
}

TEST_F(StoreCore, TellsTheWatchNothingAfterOneHasGoneWhoseRankWasNotKnown) {
  for (const int rank : {0, 1, 2}) Come(rank);
  for (const int rank : {0, 1}) Identify(rank);
  Keep(core_->Close(StoreConnection(2), now_));
  Send(0, WaitBytes({kKey}));
  EXPECT_THAT(core_->Gatherings(now_), IsEmpty());
}

TEST_F(StoreCore, TellsTheWatchOfAWaitInSlicesWithoutAPause) {
  Come(0);
  Identify(0);
  Send(0, WaitBytes({kKey}));
  Until(10);
  Send(0, Byte(kCancelWaitCode));
  EXPECT_EQ(core_->Gatherings(now_).size(), 1);
  Until(16);
  EXPECT_THAT(core_->Gatherings(now_), IsEmpty()) << "it has not come back";
}

TEST_F(StoreBarriers, TellTheWatchWhichOfAllRanksHaveNotCome) {
  for (const int rank : {0, 1, 2, 3, 4, 6, 7}) Send(rank, BarrierBytes("k", 8));
  EXPECT_THAT(core_->Gatherings(now_),
              ElementsAre(hangs::Gathering{.name = "barrier 'k' of PyTorch's store",
                                           .waiting = {0, 1, 2, 3, 4, 6, 7},
                                           .missing = {5}}));
  Send(5, BarrierBytes("k", 8));
  EXPECT_THAT(core_->Gatherings(now_), IsEmpty());
  for (const int rank : {3, 5}) Count(rank, "12");
  EXPECT_THAT(core_->Gatherings(now_),
              ElementsAre(hangs::Gathering{
                  .name = "barrier 'store_based_barrier_key:12' of PyTorch's store",
                  .waiting = {3, 5},
                  .missing = {0, 1, 2, 4, 6, 7}}));
}

TEST_F(StoreBarriers, OfWhichItIsNotSaidThatTheyAreForAllAreNotToldToTheWatch) {
  Send(3, BarrierBytes("k", 2));
  Send(4, AddBytes("l/num_members", 1) + WaitBytes({"l/last_member"}));
  EXPECT_THAT(core_->Gatherings(now_), IsEmpty());
}

TEST_F(StoreBarriers, OfSeveralProcessesOfOneRankAreNotToldToTheWatch) {
  Send(3, BarrierBytes("k", 8));
  Open(103, {.address = "127.0.0.1", .port = 40103, .is_local = true});
  Keep(core_->Identify("127.0.0.1", 40103, Rank(3), now_));
  EXPECT_EQ(core_->Gatherings(now_).size(), 1);
  Send(103, Validate() + BarrierBytes("k", 8));
  EXPECT_THAT(core_->Gatherings(now_), IsEmpty());
}

TEST_F(StoreBarriers, AreNotToldToTheWatchOnceTheRoundIsBeingStopped) {
  Send(3, BarrierBytes("k", 8));
  core_->StopTelling();
  EXPECT_THAT(core_->Gatherings(now_), IsEmpty());
}

TEST_F(StoreCore, DoesNotCallItGivingUpWhenAClientOnlyLooksForAMoment) {
  Come(0);
  Send(0, WaitBytes({kKey}));
  Until(1);
  Send(0, Byte(kCancelWaitCode));
  Keep(core_->Close(StoreConnection(0), now_));
  EXPECT_THAT(told_, IsEmpty());
}

TEST_F(StoreCore, IsQuietOnceTheRoundIsBeingStopped) {
  Come(0);
  Send(0, WaitBytes({kKey}));
  core_->StopTelling();
  Until(100);
  Send(0, Byte(kCancelWaitCode));
  Keep(core_->Close(StoreConnection(0), now_));
  EXPECT_THAT(told_, IsEmpty());
}

TEST_F(StoreCore, SurvivesAnyBytesFromAnyone) {
  std::mt19937 random(3);
  for (int i = 0; i < 5000; ++i) {
    const StoreConnection from(random() % 6);
    switch (random() % 8) {
      case 0:
        core_->Open(StoreConnection(1000 + i), {.address = "10.0.0.2", .port = i}, now_);
        core_->Receive(StoreConnection(1000 + i), Validate(), now_);
        break;
      case 1:
        core_->Close(from, now_);
        core_->Open(from, {.address = "10.0.0.1", .port = 7}, now_);
        core_->Receive(from, Validate(), now_);
        break;
      case 2:
        now_ = now_ + absl::Seconds(random() % 20);
        core_->Tick(now_);
        break;
      default: {
        std::string bytes(random() % 40, '\0');
        for (char& byte : bytes) byte = static_cast<char>(random() % 4 ? random() % 3 : random());
        core_->Receive(from, bytes, now_);
      }
    }
    ASSERT_EQ(core_->CheckInvariants(), "") << i;
  }
}

TEST_F(StoreBarriers, SurviveAnyOrderOfRequests) {
  std::mt19937 random(5);
  const std::vector<std::string> keys = {"k", "store_based_barrier_key:1",
                                         "store_based_barrier_key:1:last_worker", "k/num_members",
                                         "k/last_member"};
  for (int i = 0; i < 20000; ++i) {
    const int rank = static_cast<int>(random() % 8);
    const std::string& key = keys[random() % keys.size()];
    const std::vector<std::string> requests = {BarrierBytes(key, random() % 9),
                                               AddBytes(key, random() % 2),
                                               SetBytes(key, random() % 4 ? "1" : "x"),
                                               WaitBytes({key}),
                                               WaitBytes(keys),
                                               Byte(kCancelWaitCode),
                                               Byte(kDeleteKeyCode) + Text(key),
                                               BarrierBytes("k", 1000)};
    core_->Receive(StoreConnection(rank), requests[random() % requests.size()], now_);
    if (random() % 20 == 0) {
      core_->Close(StoreConnection(rank), now_);
      Come(rank);
    }
    now_ = now_ + absl::Milliseconds(random() % 9000);
    if (core_->NextDeadline() <= now_) core_->Tick(now_);
    ASSERT_EQ(core_->CheckInvariants(), "") << i;
  }
}

}  // namespace
}  // namespace muster::agent
