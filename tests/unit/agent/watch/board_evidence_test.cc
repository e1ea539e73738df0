#include "agent/watch/board_evidence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "rendezvous/hangs/evidence/diagnosis.h"
#include "rendezvous/hangs/evidence/merge_evidence.h"
#include "tests/support/files.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const MonoTime kNow = MonoTime::At(absl::Hours(1));

BoardSnapshot::Record Call(uint64_t ticket, uint16_t group, int64_t sequence, OperationState state,
                           bool awaited = false) {
  return {.ticket = ticket,
          .group = group,
          .kind = OperationKind::kAllReduce,
          .dtype = "f32",
          .state = state,
          .awaited = awaited,
          .sequence = sequence,
          .bytes = 64};
}

WatchedRank RankIn(int rank, const std::vector<BoardSnapshot::Group>& groups) {
  WatchedRank out{.rank = rank, .pid = 100 + rank};
  out.board.pid = out.pid;
  out.board.groups = groups;
  return out;
}

TEST(MakeEvidence, TakesAGroupOfAllRanksForTheJob) {
  const hangs::Evidence evidence =
      MakeEvidence(Round(1), 4, {RankIn(2, {{.name = "world", .rank = 2, .size = 4}})});
  ASSERT_THAT(evidence.groups, SizeIs(1));
  EXPECT_THAT(evidence.groups[0].members, ElementsAre(0, 1, 2, 3));
}

TEST(MakeEvidence, LearnsTheMembersOfASmallerGroupFromThemselves) {
  const hangs::Evidence evidence =
      MakeEvidence(Round(1), 4,
                   {RankIn(1, {{.name = "dp", .id = 9, .rank = 0, .size = 2}}),
                    RankIn(2, {{.name = "dp", .id = 8, .rank = 0, .size = 2}}),
                    RankIn(3, {{.name = "dp", .id = 9, .rank = 1, .size = 2}})});
  ASSERT_THAT(evidence.groups, SizeIs(2)) << "one name, two ids";
  EXPECT_THAT(evidence.groups[0].members, ElementsAre(1, 3));
  EXPECT_THAT(evidence.groups[1].members, ElementsAre(2, hangs::kUnknownRank));
}

TEST(MakeEvidence, KeepsWhatWaitsAndTheLastFewCalls) {
  WatchedRank rank = RankIn(0, {{.name = "world", .rank = 0, .size = 2, .num_issued = 1000}});
  rank.board.operations.push_back(Call(0, 0, 0, OperationState::kStarted));
  for (int s = 1; s < 1000; ++s)
    rank.board.operations.push_back(Call(s, 0, s, OperationState::kDone));
  const hangs::Evidence evidence = MakeEvidence(Round(1), 2, {rank});
  const auto& operations = evidence.ranks[0].groups[0].operations;
  ASSERT_THAT(operations, SizeIs(9));
  EXPECT_EQ(operations.front().sequence, 0);
  EXPECT_EQ(operations.back().sequence, 999);
}

TEST(MakeEvidence, LeadsToTheRankThatIsMissing) {
  WatchedRank waiting = RankIn(0, {{.name = "world", .rank = 0, .size = 2, .num_issued = 6}});
  waiting.board.operations = {Call(5, 0, 5, OperationState::kStarted, /*awaited=*/true)};
  const WatchedRank missing = RankIn(1, {{.name = "world", .rank = 1, .size = 2, .num_issued = 5}});
  const hangs::Diagnosis found = Diagnose(MakeEvidence(Round(1), 2, {waiting, missing}));
  EXPECT_EQ(found.finding, hangs::Finding::kNotCalled);
  EXPECT_THAT(found.culprits, ElementsAre(1));
}

TEST(MakeEvidence, DropsGroupsThatAWorkerHasSpoilt) {
  const hangs::Evidence evidence =
      MakeEvidence(Round(1), 2,
                   {RankIn(0, {{.name = "a", .rank = 5, .size = 2},
                               {.name = "b", .rank = 0, .size = 1 << 30},
                               {.name = "c", .rank = -1, .size = 2},
                               {.name = "", .rank = 0, .size = 2}})});
  EXPECT_THAT(evidence.groups, IsEmpty());
}

TEST(PhaseInWords, NamesPhaseAndStep) {
  EXPECT_EQ(PhaseInWords(Phase::kReduce, 7), "is in phase reduce of step 7");
  EXPECT_EQ(PhaseInWords(Phase::kIdle, 8), "is between steps, before step 8");
  EXPECT_EQ(PhaseInWords(Phase::kStarting, std::nullopt), "has marked no phase");
}

// --- PyTorch's ranks

TorchGroup TorchCalls(const std::string& name, const std::string& label, int64_t num_issued,
                      OperationState last) {
  TorchGroup group{.name = name, .label = label, .num_issued = num_issued};
  group.operations.push_back({.kind = OperationKind::kAllReduce,
                              .state = last,
                              .sequence = num_issued - 1,
                              .bytes = 4,
                              .dtype = "f32"});
  return group;
}

WatchedRank TorchRankIn(int rank, const std::vector<TorchGroup>& groups) {
  WatchedRank out{.rank = rank, .pid = 100 + rank};
  out.torch = TorchRank{.pid = out.pid, .answers = true};
  out.torch->records.groups = groups;
  out.torch->waits.new_groups.label = "default_pg";
  return out;
}

TEST(MakeEvidence, FindsWhoHasNotCalledAmongTheRanksOfTheDefaultGroup) {
  const hangs::Diagnosis diagnosis = hangs::Diagnose(
      MakeEvidence(Round(0), 3,
                   {TorchRankIn(0, {TorchCalls("0", "default_pg", 7, OperationState::kIssued)}),
                    TorchRankIn(1, {TorchCalls("0", "default_pg", 6, OperationState::kDone)}),
                    TorchRankIn(2, {TorchCalls("0", "default_pg", 7, OperationState::kIssued)})}));
  EXPECT_EQ(diagnosis.finding, hangs::Finding::kNotCalled);
  EXPECT_THAT(diagnosis.culprits, ElementsAre(1));
  EXPECT_EQ(diagnosis.Describe(),
            "rank 1 has not called all_reduce #6 (group default_pg, 4 bytes f32); ranks 0 and 2 "
            "wait");
}

// What torch 2.11 has said on a GPU.
WatchedRank NcclRank(int rank, absl::string_view how) {
  const auto records = ReadTorchRecorders(TorchDumps{testing::ReadFile(
      absl::StrCat(testing::kSourceDirectory, "/tests/unit/agent/watch/recorders/nccl_", how, ".",
                   rank, ".json"))});
  WatchedRank out = TorchRankIn(rank, {});
  out.torch->records = records.value_or(TorchRecords());
  return out;
}

TEST(MakeEvidence, FindsARankThatSleepsWhileAnotherWaitsInNccl) {
  const hangs::Diagnosis diagnosis =
      hangs::Diagnose(MakeEvidence(Round(0), 2, {NcclRank(0, "sleep"), NcclRank(1, "sleep")}));
  EXPECT_EQ(diagnosis.finding, hangs::Finding::kNotCalled);
  EXPECT_THAT(diagnosis.culprits, ElementsAre(1));
  EXPECT_EQ(diagnosis.Describe(),
            "rank 1 has not called all_reduce #6 (group default_pg, 4194304 bytes f32); rank 0 "
            "waits");
}

TEST(MakeEvidence, FindsRanksThatCallDifferentOperationsOfNccl) {
  const hangs::Diagnosis diagnosis = hangs::Diagnose(
      MakeEvidence(Round(0), 2, {NcclRank(0, "mismatch"), NcclRank(1, "mismatch")}));
  EXPECT_EQ(diagnosis.finding, hangs::Finding::kMismatch);
  EXPECT_EQ(diagnosis.Describe(),
            "rank 0 called all_reduce #6 (group default_pg, 4194304 bytes f32) and rank 1 called "
            "broadcast #6 (group default_pg, 4194304 bytes f32): which of them is right cannot be "
            "told");
}

hangs::Operation NcclTransfer(OperationKind kind, int peer) {
  return {.kind = kind,
          .state = OperationState::kIssued,
          .sequence = hangs::kUnknownSequence,
          .peer = peer,
          .name = kind == OperationKind::kSend ? "send" : "recv"};
}

// A stage of a pipeline: its batches have taken numbers of its collectives.
WatchedRank StageOverNccl(int rank, int64_t num_issued, OperationState last,
                          std::vector<hangs::Operation> transfers) {
  TorchGroup group = TorchCalls("0", "default_pg", num_issued, last);
  group.is_on_device = true;
  group.has_batches = true;
  group.transfers = std::move(transfers);
  return TorchRankIn(rank, {group});
}

TEST(MakeEvidence, FollowsSendsAndReceivesOfNcclToTheStageThatStandsStill) {
  const hangs::Diagnosis diagnosis = hangs::Diagnose(MakeEvidence(
      Round(0), 3,
      {StageOverNccl(0, 50, OperationState::kDone, {NcclTransfer(OperationKind::kRecv, 1)}),
       StageOverNccl(
           1, 90, OperationState::kDone,
           {NcclTransfer(OperationKind::kSend, 0), NcclTransfer(OperationKind::kRecv, 2)}),
       StageOverNccl(2, 50, OperationState::kDone, {})}));
  EXPECT_EQ(diagnosis.finding, hangs::Finding::kNotCalled);
  EXPECT_THAT(diagnosis.culprits, ElementsAre(2));
  EXPECT_EQ(diagnosis.Describe(),
            "rank 2 has not called the send for which rank 1 waits in recv from rank 2 (group "
            "default_pg); rank 1 waits")
      << "what goes between ranks 0 and 1 is under way";
}

// Rank 1 has made a batch more than the others, so its all_reduce #8 is their #7.
TEST(MakeEvidence, ComparesNoNumbersWhereBatchesHaveTakenSome) {
  const hangs::Diagnosis diagnosis =
      hangs::Diagnose(MakeEvidence(Round(0), 3,
                                   {StageOverNccl(0, 8, OperationState::kIssued, {}),
                                    StageOverNccl(1, 9, OperationState::kIssued, {}),
                                    StageOverNccl(2, 8, OperationState::kDone, {})}));
  EXPECT_EQ(diagnosis.finding, hangs::Finding::kNotCalled);
  EXPECT_THAT(diagnosis.culprits, ElementsAre(2));
  EXPECT_THAT(diagnosis.Describe(),
              ::testing::HasSubstr("rank 2 is in no operation while rank 0 waits in all_reduce "
                                   "(group default_pg), with whom is not known"));
}

TEST(MakePulse, IsOfPyTorchWhereNothingIsOnTheBoard) {
  const auto board = std::make_unique<ProgressBoard>();
  EXPECT_FALSE(MakePulse(0, *board, nullptr, kNow).is_told);
  TorchRank torch =
      *TorchRankIn(0, {TorchCalls("0", "default_pg", 7, OperationState::kDone)}).torch;
  const hangs::Pulse done = MakePulse(0, *board, &torch, kNow);
  EXPECT_TRUE(done.is_told);
  EXPECT_TRUE(done.has_operations);
  EXPECT_FALSE(done.is_waiting);
  torch.token = 7;
  torch.records.has_pending = true;
  EXPECT_NE(MakePulse(0, *board, &torch, kNow).token, done.token);
  EXPECT_TRUE(MakePulse(0, *board, &torch, kNow).is_waiting);
}

TEST(MakePulse, IsAsOldAsTheQuestionThatPyTorchHasAnswered) {
  const auto board = std::make_unique<ProgressBoard>();
  TorchRank torch = *TorchRankIn(0, {}).torch;
  torch.asked_at = kNow - absl::Seconds(3);
  torch.answers = true;
  EXPECT_EQ(MakePulse(0, *board, &torch, kNow).age, absl::Seconds(3));
  torch.answers = false;
  EXPECT_EQ(MakePulse(0, *board, &torch, kNow).age, absl::ZeroDuration());
}

TEST(MakeEvidence, AccusesNobodyInAGroupWhoseRanksNobodyHasTold) {
  const std::vector<WatchedRank> watched = {
      TorchRankIn(0, {TorchCalls("5", "tp", 3, OperationState::kIssued)}), TorchRankIn(1, {}),
      TorchRankIn(2, {})};
  EXPECT_EQ(hangs::Diagnose(MakeEvidence(Round(0), 3, watched)).finding,
            hangs::Finding::kOutOfSight);
  const hangs::Diagnosis told =
      hangs::Diagnose(MakeEvidence(Round(0), 3, watched, {{"5", {0, 2}}}));
  EXPECT_EQ(told.finding, hangs::Finding::kNotCalled);
  EXPECT_THAT(told.culprits, ElementsAre(2));
}

TEST(MakeEvidence, OfSeveralNodesHasTheRanksOfAGroupOnceOneNodeTellsThem) {
  const std::vector<TorchGroup> waits = {TorchCalls("5", "tp", 3, OperationState::kIssued)};
  const std::vector<TorchGroup> done = {TorchCalls("5", "tp", 2, OperationState::kDone)};
  hangs::EvidenceMerger merger(Round(0));
  merger.Add(MakeEvidence(Round(0), 3, {TorchRankIn(1, {}), TorchRankIn(2, waits)}));
  merger.Add(MakeEvidence(Round(0), 3, {TorchRankIn(0, done)}, {{"5", {0, 2}}}));
  const hangs::Diagnosis diagnosis = hangs::Diagnose(merger.merged());
  EXPECT_EQ(diagnosis.finding, hangs::Finding::kNotCalled);
  EXPECT_THAT(diagnosis.culprits, ElementsAre(0));
}

// Rank 0 waits for rank 1, which waits for a send: whose, its stack does not tell.
TEST(MakeEvidence, AccusesNobodyWhereTheWaitingEndsInAReceiveFromNobodyKnows) {
  WatchedRank receives = TorchRankIn(1, {TorchCalls("0", "default_pg", 6, OperationState::kDone)});
  receives.torch->python.call = {.kind = TorchCall::Kind::kTransfer, .name = "recv"};
  const hangs::Diagnosis diagnosis = hangs::Diagnose(MakeEvidence(
      Round(0), 2,
      {TorchRankIn(0, {TorchCalls("0", "default_pg", 7, OperationState::kIssued)}), receives}));
  EXPECT_EQ(diagnosis.finding, hangs::Finding::kOutOfSight);
  EXPECT_THAT(diagnosis.waiting, ElementsAre(0, 1));
  EXPECT_EQ(diagnosis.Describe(),
            "rank 1 waits in recv (group default_pg), with whom is not known; rank 0 has gone on "
            "to all_reduce #6 (group default_pg, 4 bytes f32)");
}

TEST(MakeEvidence, NamesWhoHasGoneOnWithoutTheReceiveThatASendWaitsFor) {
  WatchedRank sends = TorchRankIn(1, {TorchCalls("0", "default_pg", 6, OperationState::kDone)});
  sends.torch->python.call = {.kind = TorchCall::Kind::kTransfer, .name = "send", .peer = 2};
  const auto waits = [](int rank) {
    return TorchRankIn(rank, {TorchCalls("0", "default_pg", 7, OperationState::kIssued)});
  };
  const hangs::Diagnosis diagnosis =
      hangs::Diagnose(MakeEvidence(Round(0), 4, {waits(0), sends, waits(2), waits(3)}));
  EXPECT_THAT(diagnosis.culprits, ElementsAre(2));
  EXPECT_EQ(diagnosis.Describe(),
            "rank 2 has gone on to all_reduce #6 (group default_pg, 4 bytes f32) without the recv "
            "for which rank 1 waits in send to rank 2 (group default_pg); ranks 0, 1 and 3 wait");
}

TEST(MakeEvidence, TakesAWaitForNothingThatIsRecordedForASendOrReceive) {
  WatchedRank waits = TorchRankIn(1, {TorchCalls("0", "default_pg", 6, OperationState::kDone)});
  waits.torch->python.call = {.kind = TorchCall::Kind::kTransfer, .name = "wait"};
  WatchedRank other = TorchRankIn(0, {TorchCalls("0", "default_pg", 7, OperationState::kIssued)});
  other.torch->python = waits.torch->python;
  const hangs::Diagnosis diagnosis = hangs::Diagnose(MakeEvidence(Round(0), 2, {other, waits}));
  EXPECT_EQ(diagnosis.finding, hangs::Finding::kOutOfSight);
  EXPECT_EQ(diagnosis.path.back(), "rank 1 waits for ranks of which nothing is known");
}

// Rank 0 may wait for something of its own; ranks 1 and 2 idle by intention.
TEST(MakeEvidence, AccusesNobodyOfAWaitThatMayBeForSomethingElse) {
  std::vector<WatchedRank> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(TorchRankIn(rank, {TorchCalls("0", "default_pg", 6, OperationState::kDone)}));
  }
  ranks[0].torch->python.call = {.kind = TorchCall::Kind::kTransfer, .name = "something"};
  const hangs::Diagnosis guess = hangs::Diagnose(MakeEvidence(Round(0), 3, ranks));
  EXPECT_THAT(guess.culprits, ElementsAre(1, 2));
  EXPECT_TRUE(guess.is_inferred);
  EXPECT_EQ(guess.operation->name, "something");
  ranks[0].torch->python.call = {};
  EXPECT_EQ(hangs::Diagnose(MakeEvidence(Round(0), 3, ranks)).finding,
            hangs::Finding::kNobodyWaits);
}

TEST(MakeEvidence, ComparesRootsThatTheStacksTell) {
  std::vector<WatchedRank> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    TorchGroup group = TorchCalls("5", "dp 5", 7, OperationState::kIssued);
    group.operations[0].kind = OperationKind::kBroadcast;
    group.operations[0].name = "broadcast";
    if (rank == 3) group = TorchCalls("5", "dp 5", 6, OperationState::kDone);
    ranks.push_back(TorchRankIn(rank, {group}));
    ranks.back().torch->python.call = {
        .kind = TorchCall::Kind::kRooted, .name = "broadcast", .group = "5", .peer = 10 + rank / 2};
  }
  const hangs::Evidence evidence = MakeEvidence(Round(0), 20, ranks, {{"5", {10, 11, 0, 1, 2, 3}}});
  EXPECT_EQ(evidence.ranks[1].groups[0].operations[0].peer, 0) << "a rank of the group";
  EXPECT_EQ(evidence.ranks[2].groups[0].operations[0].peer, 1);
  EXPECT_EQ(evidence.ranks[3].groups[0].operations[0].peer, -1) << "it waits for nothing";
}

TEST(MakeEvidence, NamesWhoHasNotComeToAMeetingThatNoRecorderHas) {
  std::vector<WatchedRank> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.push_back(TorchRankIn(rank, {TorchCalls("0", "default_pg", 6, OperationState::kDone)}));
    if (rank == 2) continue;
    ranks.back().torch->python.call = {
        .kind = TorchCall::Kind::kMeeting, .name = "monitored_barrier", .group = "0"};
  }
  const hangs::Diagnosis found = hangs::Diagnose(MakeEvidence(Round(0), 4, ranks));
  EXPECT_EQ(found.Describe(),
            "rank 2 has not called monitored_barrier (group default_pg); ranks 0, 1 and 3 wait");
  EXPECT_FALSE(found.is_inferred);
}

// A group of which rank 2 is not in the call; whether it is waited for depends on what carries it.
TEST(MakeEvidence, NoticesWhoHasNotCalledDestroyProcessGroup) {
  std::vector<WatchedRank> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(TorchRankIn(rank, {TorchCalls("0", "default_pg", 6, OperationState::kDone)}));
    ranks.back().torch->python.has_groups = true;
    if (rank == 2) continue;
    ranks.back().torch->python.call = {.kind = TorchCall::Kind::kMeeting, .name = hangs::kDestroy};
  }
  const auto find = [&] {
    hangs::EvidenceMerger merger(Round(0));  // of two nodes
    merger.Add(MakeEvidence(Round(0), 3, {ranks[0]}));
    merger.Add(MakeEvidence(Round(0), 3, {ranks[1], ranks[2]}));
    return hangs::Diagnose(merger.merged());
  };
  const hangs::Diagnosis found = find();
  EXPECT_EQ(found.Describe(), "rank 2 has not called destroy_process_group; ranks 0 and 1 wait");
  EXPECT_TRUE(found.is_inferred);
  ranks[2].torch->python.call = ranks[1].torch->python.call;
  EXPECT_EQ(find().finding, hangs::Finding::kInside) << "all of them are in it";
  ranks[2].torch->python = {};
  EXPECT_EQ(find().finding, hangs::Finding::kNobodyWaits) << "it may have come through it";
  ranks[2].torch.reset();
  ranks[2].life = hangs::Life::kEnded;
  EXPECT_EQ(find().finding, hangs::Finding::kNobodyWaits);
}

// Any rank may be the one that is to set it.
TEST(MakeEvidence, SaysForWhichKeyOfAStoreARankWaitsAndAccusesNobody) {
  WatchedRank waits = TorchRankIn(1, {TorchCalls("0", "default_pg", 6, OperationState::kDone)});
  waits.torch->python = {.frames = {"load at /a/train.py:12", "main at /a/train.py:40"},
                         .call = {.kind = TorchCall::Kind::kKey, .name = "'done'"}};
  WatchedRank other = TorchRankIn(0, {TorchCalls("0", "default_pg", 7, OperationState::kIssued)});
  const std::string said =
      "rank 1 waits for the key 'done' of a store (load at train.py:12), which "
      "has not been set";
  const hangs::Diagnosis found = hangs::Diagnose(MakeEvidence(Round(0), 2, {other, waits}));
  EXPECT_EQ(found.finding, hangs::Finding::kOutOfSight) << "which is never judged";
  EXPECT_THAT(found.waiting, ElementsAre(0, 1));
  EXPECT_EQ(found.Describe(),
            said + "; rank 0 has gone on to all_reduce #6 (group default_pg, 4 bytes f32)");
  other = TorchRankIn(0, {TorchCalls("0", "default_pg", 6, OperationState::kDone)});
  EXPECT_EQ(hangs::Diagnose(MakeEvidence(Round(0), 2, {other, waits})).Describe(), said);
  EXPECT_FALSE(hangs::Diagnose(MakeEvidence(Round(0), 2, {other, waits})).is_busy);
  other.is_busy = true;
  EXPECT_TRUE(hangs::Diagnose(MakeEvidence(Round(0), 2, {other, waits})).is_busy)
      << "it may set the key yet";
}

// A thread of rank 1 is to answer: that its main thread waits for rank 0 is no circle.
TEST(MakeEvidence, LeadsFromACallOfRpcToTheRankThatHasNotAnswered) {
  WatchedRank calls = TorchRankIn(0, {TorchCalls("0", "default_pg", 6, OperationState::kDone)});
  calls.torch->python.call = {
      .kind = TorchCall::Kind::kAnswer, .name = "rpc_sync of load", .peer = 1};
  const WatchedRank called =
      TorchRankIn(1, {TorchCalls("0", "default_pg", 7, OperationState::kIssued)});
  const hangs::Diagnosis found = hangs::Diagnose(MakeEvidence(Round(0), 2, {calls, called}));
  EXPECT_EQ(found.finding, hangs::Finding::kNotCalled);
  EXPECT_THAT(found.culprits, ElementsAre(1));
  EXPECT_EQ(found.Describe(),
            "rank 1 has not answered rpc_sync of load, for which rank 0 waits; rank 0 waits");
  EXPECT_TRUE(found.is_inferred) << "what serves it may wait for somebody";
  calls.torch->python.call.peer = -1;
  EXPECT_THAT(hangs::Diagnose(MakeEvidence(Round(0), 2, {calls, called})).culprits, IsEmpty());
}

// It has made its group, and nothing since.
TEST(MakePulse, OfARankWithoutAnOperationIsOfAStepOnceItHasBegun) {
  const auto board = std::make_unique<ProgressBoard>();
  TorchRank torch = *TorchRankIn(0, {}).torch;
  EXPECT_FALSE(MakePulse(0, *board, &torch, kNow).has_operations);
  torch.waits.has_begun = true;
  EXPECT_TRUE(MakePulse(0, *board, &torch, kNow).has_operations);
}

}  // namespace
}  // namespace muster::agent
