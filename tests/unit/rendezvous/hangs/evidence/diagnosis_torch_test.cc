// What is said of programs of PyTorch that hang, over two, three and four ranks: PyTorch's recorder
// does not tell which of its pending operations a rank waits for, and groups are called by
// PyTorch's names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/base/words.h"
#include "rendezvous/hangs/evidence/diagnosis.h"
#include "tests/unit/rendezvous/hangs/evidence/evidence_builder.h"

namespace muster::hangs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int kCalled = 12;  // the operation that hangs

// --- Numbers of NCCL's calls, of which batches of sends and receives may have taken some

Diagnosis DiagnoseOnDevice(const EvidenceBuilder& job) {
  Evidence evidence = job.Build();
  for (Group& group : evidence.groups) group.is_on_device = true;
  return Diagnose(evidence);
}

TEST(NumbersOverNccl, TellWhoIsMissingWhereTheyAgree) {
  EvidenceBuilder job(3);
  const int world = job.AddWorld();
  for (const int r : {0, 1, 2}) job.Called(r, world, Done(AllReduce(6)));
  job.AllWaitBut({2}, world, AllReduce(7));
  const Diagnosis found = DiagnoseOnDevice(job);
  EXPECT_EQ(found.finding, Finding::kNotCalled);
  EXPECT_THAT(found.culprits, ElementsAre(2));
}

// Rank 0 has made a batch: its #8 is the others' #7, for which rank 2 is missing.
TEST(NumbersOverNccl, AccuseNobodyWhereOneIsThroughACallThatAnotherHasNotCome) {
  EvidenceBuilder job(3);
  const int world = job.AddWorld();
  job.Called(0, world, Done(AllReduce(7))).Waits(0, world, AllReduce(8));
  job.Called(1, world, Done(AllReduce(6))).Waits(1, world, AllReduce(7));
  job.Called(2, world, Done(AllReduce(6)));
  const Diagnosis found = DiagnoseOnDevice(job);
  EXPECT_EQ(found.finding, Finding::kOutOfSight);
  EXPECT_THAT(found.culprits, IsEmpty());
  EXPECT_THAT(found.Describe(),
              HasSubstr("the ranks of this group count its calls differently, so which of them is "
                        "missing cannot be told"));
}

TEST(NumbersOverNccl, AreNoMismatchWhereOneIsThroughWhatAnotherCallsOtherwise) {
  EvidenceBuilder job(2);
  const int world = job.AddWorld();
  job.Called(0, world, Done(Of(OperationKind::kBroadcast, 7))).Waits(0, world, AllReduce(8));
  job.Waits(1, world, AllReduce(7));
  EXPECT_EQ(DiagnoseOnDevice(job).finding, Finding::kOutOfSight);
  EXPECT_EQ(Diagnose(job.Build()).finding, Finding::kMismatch) << "Gloo's calls are counted alone";
}

TEST(NumbersOverNccl, AreAMismatchWhereBothStandInDifferentCalls) {
  EvidenceBuilder job(2);
  const int world = job.AddWorld();
  for (const int r : {0, 1}) job.Called(r, world, Done(AllReduce(6)));
  job.Waits(0, world, AllReduce(7)).Waits(1, world, Of(OperationKind::kBroadcast, 7));
  EXPECT_EQ(DiagnoseOnDevice(job).finding, Finding::kMismatch);
}

// --- What hangs, over groups of PyTorch's

class TorchVerdicts : public ::testing::TestWithParam<int> {
 protected:
  TorchVerdicts() : job_(size()) {
    for (int r = 0; r < size(); ++r) job_.rank(r).tells_waits = false;
    world_ = job_.AddGroup("default_pg", Everyone());
  }

  static int size() { return GetParam(); }
  static std::vector<int> Everyone() {
    std::vector<int> all;
    for (int r = 0; r < size(); ++r) all.push_back(r);
    return all;
  }
  static std::vector<int> AllBut(int one) {
    std::vector<int> others;
    for (int r = 0; r < size(); ++r) {
      if (r != one) others.push_back(r);
    }
    return others;
  }
  static std::string Others(int one) { return RanksInWords(AllBut(one)); }
  static std::string WaitInWords(int one) {
    return absl::StrCat(Others(one), size() == 2 ? " waits" : " wait");
  }

  static Operation Call(OperationKind kind, int64_t sequence = kCalled, int64_t bytes = 4096) {
    Operation op = AllReduce(sequence, bytes);
    op.kind = kind;
    op.chain = 0;
    return op;
  }
  static Operation Named(const char* name, int64_t sequence) {
    return {.state = OperationState::kStarted, .sequence = sequence, .name = name};
  }
  static Operation Transfer(OperationKind kind, int peer) {
    return {.kind = kind,
            .state = OperationState::kStarted,
            .sequence = kUnknownSequence,
            .peer = peer,
            .name = kind == OperationKind::kSend ? "send" : "recv"};
  }
  void OthersCall(int one, int group, const Operation& op) {
    for (const int r : AllBut(one)) job_.Called(r, group, op);
  }
  Diagnosis Found() const { return Diagnose(job_.Build()); }
  // Nobody can tell which of two ranks is right.
  static bool IsTie() { return size() == 2; }

  EvidenceBuilder job_;
  int world_ = 0;
};

TEST_P(TorchVerdicts, BeginWithTheRankThatCallsAnotherOperation) {
  OthersCall(1, world_, Call(OperationKind::kAllReduce));
  job_.Called(1, world_, Call(OperationKind::kAllGather));
  const Diagnosis found = Found();
  EXPECT_EQ(found.cause, Cause::kOtherOperation);
  if (IsTie()) {
    EXPECT_EQ(found.Describe(),
              "rank 0 called all_reduce #12 (group default_pg, 4096 bytes f32) and rank 1 called "
              "all_gather #12 (group default_pg, 4096 bytes f32): which of them is right cannot be "
              "told");
    EXPECT_LT(found.confidence, 0.8);
    return;
  }
  EXPECT_THAT(found.culprits, ElementsAre(1));
  EXPECT_EQ(found.Describe(),
            absl::StrCat("rank 1 called all_gather #12 (group default_pg, 4096 bytes f32) where ",
                         Others(1), " called all_reduce #12 (group default_pg, 4096 bytes f32); ",
                         WaitInWords(1)));
}

TEST_P(TorchVerdicts, BeginWithTheRankThatCallsAnotherSize) {
  OthersCall(0, world_, Call(OperationKind::kAllReduce));
  job_.Called(0, world_, Call(OperationKind::kAllReduce, kCalled, 8192));
  const Diagnosis found = Found();
  EXPECT_EQ(found.cause, Cause::kOtherSize);
  EXPECT_THAT(found.Describe(),
              StartsWith("rank 0 called all_reduce #12 (group default_pg, 8192 bytes f32)"));
  EXPECT_EQ(found.culprits, IsTie() ? std::vector<int>({0, 1}) : std::vector<int>({0}));
  if (!IsTie()) {
    EXPECT_THAT(found.Describe(), HasSubstr(absl::StrCat(" where ", Others(0))));
  }
}

TEST_P(TorchVerdicts, BeginWithTheRankThatSkipsOne) {
  OthersCall(1, world_, Call(OperationKind::kAllReduce));
  job_.Called(1, world_, Done(Call(OperationKind::kAllReduce, kCalled - 1)));
  EXPECT_EQ(
      Found().Describe(),
      absl::StrCat("rank 1 has not called all_reduce #12 (group default_pg, 4096 bytes f32); ",
                   WaitInWords(1)));
}

TEST_P(TorchVerdicts, BeginWithARankThatHasCalledNothingYet) {
  OthersCall(size() - 1, world_, Call(OperationKind::kAllReduce, 0));
  const Diagnosis found = Found();
  EXPECT_THAT(found.culprits, ElementsAre(size() - 1));
  EXPECT_THAT(found.Describe(), HasSubstr("has not called all_reduce #0"));
}

// It has gone on, and its wait closes a circle that is not its fault alone to see.
TEST_P(TorchVerdicts, BeginWithTheRankThatNeverEntersNewGroup) {
  const int new_groups = job_.AddGroup("default_pg", Everyone());
  OthersCall(1, new_groups, Named(kNewGroup, 2));
  OthersCall(1, world_, Done(Call(OperationKind::kAllReduce, kCalled - 1)));
  job_.Called(1, new_groups, Done(Named(kNewGroup, 1)));
  job_.Called(1, world_, Call(OperationKind::kAllReduce));
  const Diagnosis found = Found();
  EXPECT_EQ(found.finding, Finding::kNotCalled);
  EXPECT_THAT(found.culprits, ElementsAre(1));
  EXPECT_EQ(
      found.Describe(),
      absl::StrCat("rank 1 has not called new_group #2 (group default_pg), and has gone on to "
                   "all_reduce #12 (group default_pg, 4096 bytes f32); ",
                   WaitInWords(1)));
}

TEST_P(TorchVerdicts, BeginWithTheRankThatDropsAReceive) {
  const int sender = 0;
  const int receiver = 1;
  OthersCall(sender, world_, Call(OperationKind::kAllReduce));
  job_.Called(sender, world_, Done(Call(OperationKind::kAllReduce, kCalled - 1)));
  job_.Called(sender, world_, Transfer(OperationKind::kSend, receiver));
  job_.Record(sender, world_).num_issued = kCalled;
  const Diagnosis found = Found();
  EXPECT_THAT(found.culprits, ElementsAre(receiver));
  EXPECT_LT(found.confidence, 0.8) << "the sender may send one too many";
  EXPECT_THAT(found.Describe(),
              StartsWith("rank 1 has gone on to all_reduce #12 (group default_pg, 4096 bytes f32) "
                         "without the recv for which rank 0 waits in send to rank 1 (group "
                         "default_pg); rank"));
}

TEST_P(TorchVerdicts, BeginWithARankOfWhichAReceiveWaits) {
  const int sender = size() - 1;
  job_.Called(0, world_, Transfer(OperationKind::kRecv, sender));
  const Diagnosis found = Found();
  EXPECT_THAT(found.culprits, ElementsAre(sender));
  EXPECT_EQ(found.Describe(),
            absl::StrCat("rank ", sender,
                         " has not called the send for which rank 0 waits in recv "
                         "from rank ",
                         sender, " (group default_pg); rank 0 waits"));
}

TEST_P(TorchVerdicts, SayOfAReceiveFromNobodyKnowsWhoStandsInItAndWhoHasGoneOn) {
  OthersCall(1, world_, Call(OperationKind::kAllReduce));
  Operation wait = Transfer(OperationKind::kRecv, -1);
  wait.name = "a send or receive";
  job_.Called(1, world_, wait);
  const Diagnosis found = Found();
  EXPECT_THAT(found.culprits, IsEmpty());
  EXPECT_EQ(found.Describe(),
            absl::StrCat("rank 1 waits in a send or receive (group default_pg), with whom is not "
                         "known; ",
                         Others(1), size() == 2 ? " has" : " have",
                         " gone on to all_reduce #12 (group default_pg, 4096 bytes f32)"));
}

TEST_P(TorchVerdicts, BeginWithTheOneThatIsIdleWhereAReceiveIsFromNobodyKnows) {
  for (const int r : AllBut(1)) job_.Called(r, world_, Transfer(OperationKind::kRecv, -1));
  const Diagnosis found = Found();
  EXPECT_THAT(found.culprits, ElementsAre(1));
  EXPECT_THAT(found.Describe(), StartsWith("rank 1 is in no operation while rank 0 waits in recv"));
  EXPECT_TRUE(found.is_inferred);
  job_.rank(1).life = Life::kEnded;
  EXPECT_THAT(Found().culprits, IsEmpty()) << "who has ended may have ended well";
}

TEST_P(TorchVerdicts, GiveAFactWayBeforeAGuess) {
  if (size() < 3) return;
  job_.Called(0, world_, Transfer(OperationKind::kRecv, -1));
  const int pair = job_.AddGroup("pair 1", {0, 1});
  job_.Called(0, pair, Call(OperationKind::kAllReduce));
  const Diagnosis found = Found();
  EXPECT_THAT(found.culprits, ElementsAre(1)) << "the others are in no operation, either";
  EXPECT_FALSE(found.is_inferred);
}

TEST_P(TorchVerdicts, BeginWithTheFewerThatNameAnotherRoot) {
  for (const int r : Everyone()) {
    Operation op = Call(OperationKind::kBroadcast);
    op.peer = r == 1 ? 1 : 0;
    job_.Called(r, world_, op);
  }
  const Diagnosis found = Found();
  EXPECT_EQ(found.finding, Finding::kMismatch);
  if (IsTie()) {
    EXPECT_THAT(found.culprits, ElementsAre(0, 1));
    EXPECT_THAT(found.Describe(), HasSubstr("which of them is right cannot be told"));
    return;
  }
  EXPECT_THAT(found.culprits, ElementsAre(1));
  EXPECT_EQ(found.Describe(),
            absl::StrCat("rank 1 called broadcast #12 (group default_pg, 4096 bytes f32) with root "
                         "1 where ",
                         Others(1),
                         " called broadcast #12 (group default_pg, 4096 bytes f32) with root 0; ",
                         WaitInWords(1)));
}

// Who is past it, or whose stack has not been read, may have named any.
TEST_P(TorchVerdicts, AccuseNobodyOfARootThatIsNotKnown) {
  for (const int r : Everyone()) {
    Operation op = Call(OperationKind::kBroadcast);
    op.peer = r == 1 ? 0 : -1;
    job_.Called(r, world_, r == 0 ? Done(op) : op);
  }
  job_.Called(0, world_, Call(OperationKind::kAllReduce, kCalled + 1));
  const Diagnosis found = Found();
  EXPECT_EQ(found.finding, Finding::kInside);
  EXPECT_THAT(found.Describe(), HasSubstr(absl::StrCat("; ", RanksInWords(AllBut(0)), " wait")))
      << "rank 0 waits in another";
}

TEST_P(TorchVerdicts, NameTheFewerThatUseTwoGroupsInTheOppositeOrder) {
  const int a = job_.AddGroup("dp 1", Everyone());
  const int b = job_.AddGroup("dp 2", Everyone());
  for (const int r : Everyone()) {
    for (const int group : {a, b}) job_.Called(r, group, Done(Call(OperationKind::kAllReduce, 0)));
  }
  OthersCall(1, a, Call(OperationKind::kAllReduce, 1));
  job_.Called(1, b, Call(OperationKind::kAllReduce, 1));
  const Diagnosis found = Found();
  EXPECT_EQ(found.finding, Finding::kCircle);
  if (IsTie()) {
    EXPECT_THAT(found.culprits, ElementsAre(0, 1));
    EXPECT_THAT(found.Describe(), HasSubstr("which of them is right cannot be told"));
    return;
  }
  EXPECT_THAT(found.culprits, ElementsAre(1));
  EXPECT_EQ(
      found.Describe(),
      absl::StrCat("rank 1 waits in all_reduce #1 (group dp 2, 4096 bytes f32) where ", Others(1),
                   " wait in all_reduce #1 (group dp 1, 4096 bytes f32): it uses "
                   "the two groups in the opposite order; ",
                   WaitInWords(1)));
}

TEST_P(TorchVerdicts, SpeakOfNoOrderWhereARankHasCalledOneOfTwoGroupsAlone) {
  const int a = job_.AddGroup("dp 1", Everyone());
  const int b = job_.AddGroup("dp 2", Everyone());
  OthersCall(1, a, Call(OperationKind::kAllReduce, 0));
  job_.Called(1, b, Call(OperationKind::kAllReduce, 0));
  const std::string words = Found().Describe();
  EXPECT_THAT(words, Not(HasSubstr("opposite order")));
  if (IsTie()) return;
  EXPECT_THAT(words,
              HasSubstr(absl::StrCat(
                  "rank 1 waits in all_reduce #0 (group dp 2, 4096 bytes f32) where ", Others(1),
                  " wait in all_reduce #0 (group dp 1, 4096 bytes f32): it has "
                  "called nothing in group dp 1; ")));
}

TEST_P(TorchVerdicts, BeginWithARankThatIsStopped) {
  OthersCall(1, world_, Call(OperationKind::kAllReduce));
  job_.rank(1).life = Life::kStopped;
  EXPECT_THAT(Found().Describe(), StartsWith("rank 1 is stopped by a signal and cannot take part"));
}

// A busy machine may not let PyTorch's recorder be read again before the rank stops.
TEST_P(TorchVerdicts, NameWhatIsWaitedForWhereTheRecordsOfAStoppedRankAreOld) {
  OthersCall(1, world_, Call(OperationKind::kAllReduce));
  job_.Called(1, world_, Call(OperationKind::kAllReduce, kCalled - 3));
  job_.rank(1).life = Life::kStopped;
  EXPECT_THAT(Found().Describe(),
              StartsWith("rank 1 is stopped by a signal and cannot take part in all_reduce #12"));
}

TEST_P(TorchVerdicts, BeginWithARankThatHasLeftItsLoopAndEnded) {
  OthersCall(1, world_, Call(OperationKind::kAllReduce));
  job_.Called(1, world_, Done(Call(OperationKind::kAllReduce, kCalled - 1)));
  job_.rank(1).life = Life::kEnded;
  EXPECT_THAT(Found().Describe(), StartsWith("rank 1 has ended without calling all_reduce #12"));
}

// Accelerate and others call a barrier behind the loop.
TEST_P(TorchVerdicts, BeginWithARankThatHasLeftItsLoopForTheBarrierBehindIt) {
  OthersCall(1, world_, Call(OperationKind::kAllReduce));
  job_.Called(1, world_, Named("barrier", kCalled));
  const Diagnosis found = Found();
  EXPECT_EQ(found.culprits, IsTie() ? std::vector<int>({0, 1}) : std::vector<int>({1}));
  if (!IsTie()) {
    EXPECT_THAT(found.Describe(),
                StartsWith("rank 1 called barrier #12 (group default_pg) where "));
  }
}

TEST_P(TorchVerdicts, SayThatWhoIsWaitedForIsBusyOnlyWhereAllOfThemAre) {
  OthersCall(0, world_, Call(OperationKind::kAllReduce));
  EXPECT_FALSE(Found().is_busy);
  job_.rank(0).is_busy = true;
  EXPECT_TRUE(Found().is_busy);
  job_.rank(1).is_busy = true;
  job_.rank(0).is_busy = false;
  EXPECT_FALSE(Found().is_busy) << "a rank that waits may spin";
}

INSTANTIATE_TEST_SUITE_P(Ranks, TorchVerdicts, ::testing::Values(2, 3, 4));

// Ranks 0 and 1 wait in the world for 2 and 3, and 2 in its subgroup for 3, which sleeps.
TEST(InnermostReason, IsTheOperationOfTheGroupWhoseMemberIsMissing) {
  EvidenceBuilder job(4);
  for (int r = 0; r < 4; ++r) job.rank(r).tells_waits = false;
  const int world = job.AddGroup("default_pg", {0, 1, 2, 3});
  const int tp = job.AddGroup("tp1", {2, 3});
  for (const int r : {0, 1}) job.Called(r, world, AllReduce(9));
  for (const int r : {2, 3}) job.Called(r, world, Done(AllReduce(8)));
  job.Called(2, tp, AllReduce(4));
  job.Called(3, tp, Done(AllReduce(3)));
  const Diagnosis found = Diagnose(job.Build());
  EXPECT_THAT(found.culprits, ElementsAre(3));
  EXPECT_EQ(found.group, "tp1");
  EXPECT_EQ(found.Describe(),
            "rank 3 has not called all_reduce #4 (group tp1, 4096 bytes f32); ranks 0-2 wait (rank "
            "0 waits in all_reduce #9 (group default_pg, 4096 bytes f32) for rank 2, rank 2 waits "
            "in all_reduce #4 (group tp1, 4096 bytes f32) for rank 3)");
}

// Both of two pairs of equal size are named.
TEST(EqualSides, AreBothNamedAndItIsSaidThatNobodyCanTell) {
  EvidenceBuilder job(4);
  const int world = job.AddGroup("default_pg", {0, 1, 2, 3});
  for (const int r : {0, 2}) job.Called(r, world, AllReduce(12, 4096, 0));
  for (const int r : {1, 3}) job.Called(r, world, AllReduce(12, 8192, 0));
  for (int r = 0; r < 4; ++r) job.Record(r, world).operations[0].chain = 0;
  const Diagnosis found = Diagnose(job.Build());
  EXPECT_EQ(
      found.Describe(),
      "ranks 0 and 2 called all_reduce #12 (group default_pg, 4096 bytes f32) and ranks 1 and "
      "3 called all_reduce #12 (group default_pg, 8192 bytes f32): which of them is right "
      "cannot be told");
}

// An earlier difference is no less clear where another group has a tie.
TEST(EqualSides, GiveWayToAMinorityOfAnotherGroup) {
  EvidenceBuilder job(4);
  const int pair = job.AddGroup("pair", {0, 1});
  const int world = job.AddGroup("world", {0, 1, 2, 3});
  job.Called(0, pair, AllReduce(3)).Called(1, pair, AllReduce(3, 8));
  for (const int r : {0, 1, 3}) job.Called(r, world, AllReduce(5));
  job.Called(2, world, AllReduce(5, 8));
  EXPECT_THAT(Diagnose(job.Build()).culprits, ElementsAre(2));
}

TEST(NewGroup, ThatOneRankAloneCallsIsThatRanks) {
  EvidenceBuilder job(3);
  const int new_groups = job.AddGroup("default_pg", {0, 1, 2});
  const int world = job.AddGroup("default_pg", {0, 1, 2});
  for (int r = 0; r < 3; ++r) job.rank(r).tells_waits = false;
  job.Called(0, new_groups, {.state = OperationState::kStarted, .name = kNewGroup});
  for (const int r : {1, 2}) job.Called(r, world, AllReduce(0));
  EXPECT_THAT(Diagnose(job.Build()).culprits, ElementsAre(0));
}

TEST(SendsInACircle, NameAllOfThem) {
  EvidenceBuilder job(3);
  const int world = job.AddGroup("default_pg", {0, 1, 2});
  for (int r = 0; r < 3; ++r) {
    job.rank(r).tells_waits = false;
    job.Called(r, world,
               {.kind = OperationKind::kSend,
                .state = OperationState::kStarted,
                .sequence = kUnknownSequence,
                .peer = (r + 1) % 3,
                .name = "send"});
  }
  const Diagnosis found = Diagnose(job.Build());
  EXPECT_EQ(found.finding, Finding::kCircle);
  EXPECT_THAT(found.culprits, ElementsAre(0, 1, 2));
  EXPECT_THAT(found.Describe(), HasSubstr("rank 0 waits in send to rank 1 (group default_pg) for "
                                          "rank 1, rank 1 waits in send to rank 2"));
}

}  // namespace
}  // namespace muster::hangs
