#include "worker_runtime/comm/operation_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <thread>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/comm/loopback/loopback_communicator.h"

namespace muster::comm {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr MonoTime kNow{};

Operation AllReduceAt(int64_t sequence) {
  return {
      .kind = OperationKind::kAllReduce, .dtype = DType::kF32, .count = 8, .sequence = sequence};
}

TEST(OperationRing, AnOperationIsReadAsItWasWritten) {
  OperationRing ring;
  const uint16_t group = ring.AddGroup({.name = "dp", .id = 7, .rank = 1, .size = 4});
  const auto ticket = ring.Record(group, AllReduceAt(17), 99, MonoTime::At(absl::Seconds(3)));
  ring.SetState(ticket, OperationState::kDone);
  const auto record = ring.Read(ticket);
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(record->kind, OperationKind::kAllReduce);
  EXPECT_EQ(record->dtype, "f32");
  EXPECT_EQ(record->state, OperationState::kDone);
  EXPECT_EQ(record->sequence, 17);
  EXPECT_EQ(record->bytes, 32);
  EXPECT_EQ(record->peer, -1);
  EXPECT_EQ(record->chain, 99u);
  EXPECT_EQ(record->issued_at, MonoTime::At(absl::Seconds(3)));
  const BoardSnapshot snapshot = ring.Snapshot();
  ASSERT_EQ(snapshot.groups.size(), 1u);
  EXPECT_EQ(snapshot.groups[0].name, "dp");
  EXPECT_EQ(snapshot.groups[0].id, 7u);
  EXPECT_EQ(snapshot.groups[0].rank, 1);
  EXPECT_EQ(snapshot.groups[0].size, 4);
  EXPECT_EQ(snapshot.groups[0].num_issued, 18);
  EXPECT_EQ(Describe(snapshot, *record), "all_reduce #17 (group dp, 32 bytes f32), done");
}

TEST(OperationRing, SaysWhichOperationIsWaitedForUntilItHasEnded) {
  OperationRing ring;
  const auto ticket = ring.Record(0, AllReduceAt(0), 0, kNow);
  EXPECT_FALSE(ring.Read(ticket)->awaited);
  ring.SetAwaited(ticket, true);
  ring.SetState(ticket, OperationState::kStarted);
  EXPECT_TRUE(ring.Read(ticket)->awaited);
  EXPECT_EQ(ring.Read(ticket)->state, OperationState::kStarted);
  ring.SetAwaited(ticket, false);
  EXPECT_FALSE(ring.Read(ticket)->awaited);
  ring.SetAwaited(ticket, true);
  ring.SetState(ticket, OperationState::kDone);
  EXPECT_FALSE(ring.Read(ticket)->awaited);
  ring.SetAwaited(ticket, true);
  EXPECT_FALSE(ring.Read(ticket)->awaited) << "it has ended";
}

TEST(OperationRing, KeepsTheLastRecordsAndSaysThatOlderAreGone) {
  OperationRing ring;
  for (int64_t s = 0; s < kBoardOperations + 10; ++s) ring.Record(0, AllReduceAt(s), 0, kNow);
  EXPECT_FALSE(ring.Read(9).has_value());
  ASSERT_TRUE(ring.Read(10).has_value());
  EXPECT_EQ(ring.Read(10)->sequence, 10);
  EXPECT_FALSE(ring.Read(kBoardOperations + 10).has_value());
}

TEST(OperationRing, ALateChangeOfStateDoesNotTouchTheRecordThatCameAfter) {
  OperationRing ring;
  const auto old = ring.Record(0, AllReduceAt(0), 0, kNow);
  for (int64_t s = 1; s <= kBoardOperations; ++s) ring.Record(0, AllReduceAt(s), 0, kNow);
  ring.SetState(old, OperationState::kFailed);
  EXPECT_EQ(ring.Read(old + kBoardOperations)->state, OperationState::kIssued);
}

TEST(OperationRing, LongNamesAreCutAndGroupsBeyondTheTableAreUnlisted) {
  OperationRing ring;
  EXPECT_EQ(ring.AddGroup({.name = std::string(200, 'x')}), 0);
  for (int i = 1; i < kBoardGroups; ++i) EXPECT_EQ(ring.AddGroup({.name = "g"}), i);
  EXPECT_EQ(ring.AddGroup({.name = "one too many"}), kUnlistedGroup);
  const auto ticket = ring.Record(kUnlistedGroup, AllReduceAt(0), 0, kNow);
  const BoardSnapshot snapshot = ring.Snapshot();
  ASSERT_EQ(snapshot.groups.size(), static_cast<size_t>(kBoardGroups));
  EXPECT_EQ(snapshot.groups[0].name, std::string(kBoardGroupNameBytes - 1, 'x'));
  EXPECT_THAT(Describe(snapshot, *ring.Read(ticket)), HasSubstr("group unlisted"));
}

TEST(OperationRing, StepAndPhaseAreReadTogether) {
  OperationRing ring;
  EXPECT_FALSE(ring.Snapshot().step.has_value());
  ring.MarkProgress(-1, Phase::kLoad);
  EXPECT_FALSE(ring.Snapshot().step.has_value());
  EXPECT_EQ(ring.Snapshot().phase, Phase::kLoad);
  const MonoTime before = MonoNow();
  ring.MarkProgress(int64_t{1} << 40, Phase::kBackward);
  EXPECT_EQ(ring.Snapshot().step, int64_t{1} << 40);
  EXPECT_EQ(ring.Snapshot().phase, Phase::kBackward);
  EXPECT_GE(ring.Snapshot().marked_at, before);
}

TEST(OperationRing, ConcurrentWritersAndAReaderNeverSeeATornRecord) {
  constexpr int kWriters = 3;
  // One that sleeps within a record is not overtaken by a whole ring, as nobody is in a program.
  constexpr int64_t kLead = kBoardOperations / (kWriters + 1);
  OperationRing ring;
  std::barrier together(kWriters);
  std::vector<std::thread> writers;
  for (int w = 0; w < kWriters; ++w) {
    writers.emplace_back([&ring, &together] {
      for (int64_t s = 0; s < 20000; ++s) {
        if (s % kLead == 0) together.arrive_and_wait();
        Operation op = AllReduceAt(s);
        op.count = s;
        ring.SetState(ring.Record(0, op, 7 * s, kNow), OperationState::kDone);
      }
    });
  }
  const auto expect_whole = [](const BoardSnapshot::Record& record) {
    EXPECT_EQ(record.bytes, record.sequence * 4);
    EXPECT_EQ(record.chain, static_cast<uint64_t>(record.sequence) * 7);
  };
  while (ring.num_records() < 60000) {
    const uint64_t next = ring.num_records();
    if (next == 0) continue;
    if (const auto record = ring.Read(next - 1)) expect_whole(*record);
  }
  for (std::thread& writer : writers) writer.join();
  const BoardSnapshot snapshot = ring.Snapshot();
  EXPECT_EQ(snapshot.operations.size(), static_cast<size_t>(kBoardOperations));
  for (const auto& record : snapshot.operations) expect_whole(record);
}

TEST(OperationRing, EveryOperationOfACommunicatorIsRecorded) {
  auto ring = std::make_shared<OperationRing>();
  auto ranks = MakeLoopbackCommunicators({.group = "solo", .size = 1, .ring = ring});
  std::vector<float> data(4);
  ASSERT_TRUE(ranks[0]->AllReduce(BufferOf(data)).Wait().ok());
  ASSERT_TRUE(ranks[0]->Barrier().Wait().ok());
  ranks[0]->Abort("test");
  EXPECT_FALSE(ranks[0]->Barrier().Wait().ok());
  ASSERT_EQ(ring->num_records(), 3u);
  EXPECT_EQ(ring->Read(0)->kind, OperationKind::kAllReduce);
  EXPECT_EQ(ring->Read(0)->bytes, 16);
  EXPECT_EQ(ring->Read(1)->state, OperationState::kDone);
  EXPECT_EQ(ring->Read(2)->state, OperationState::kFailed);
  EXPECT_EQ(ring->Snapshot().groups[ring->Read(2)->group].name, "solo");
}

TEST(OperationRing, RecordsTransfersAndTheOperationInsideASplit) {
  auto ring = std::make_shared<OperationRing>();
  auto ranks = MakeLoopbackCommunicators({.group = "pp", .size = 2, .ring = ring});
  std::vector<float> data(4);
  const Work send = ranks[0]->Send(ConstBufferOf(data), 1);
  ASSERT_THAT(ranks[1]->Recv(BufferOf(data), 0).Wait(), IsOk());
  ASSERT_THAT(send.Wait(), IsOk());
  EXPECT_EQ(ring->Read(0)->kind, OperationKind::kSend);
  EXPECT_EQ(ring->Read(0)->peer, 1);
  EXPECT_EQ(ring->Read(1)->kind, OperationKind::kRecv);
  std::thread other([&] { EXPECT_THAT(ranks[1]->Split(0, 0), IsOk()); });
  EXPECT_THAT(ranks[0]->Split(0, 0, "half"), IsOk());
  other.join();
  EXPECT_EQ(ring->Read(2)->kind, OperationKind::kAllGather);
  EXPECT_EQ(ring->num_records(), 4u);
}

// The chain hashes of rank `rank` after calls of the given sizes.
std::vector<uint64_t> ChainsOf(const std::vector<int64_t>& counts) {
  auto ring = std::make_shared<OperationRing>();
  auto ranks = MakeLoopbackCommunicators({.size = 1, .ring = ring});
  std::vector<uint64_t> chains;
  for (const int64_t count : counts) {
    std::vector<float> data(count);
    EXPECT_THAT(ranks[0]->AllReduce(BufferOf(data)).Wait(), IsOk());
    chains.push_back(ring->Read(ring->num_records() - 1)->chain);
  }
  return chains;
}

TEST(ChainHash, IsTheSameUntilTwoRanksCallSomethingElseAndNeverAgain) {
  const auto a = ChainsOf({1, 2, 3, 4}), b = ChainsOf({1, 2, 5, 4});
  EXPECT_EQ(a, ChainsOf({1, 2, 3, 4}));
  EXPECT_EQ(a[0], b[0]);
  EXPECT_EQ(a[1], b[1]);
  EXPECT_NE(a[2], b[2]);
  EXPECT_NE(a[3], b[3]);
}

TEST(ChainHash, DependsOnEveryField) {
  const Operation op = AllReduceAt(3);
  const auto differs = [&](auto change) {
    Operation other = op;
    change(other);
    return ChainHash(1, other) != ChainHash(1, op);
  };
  EXPECT_NE(ChainHash(2, op), ChainHash(1, op));
  EXPECT_TRUE(differs([](Operation& o) { o.kind = OperationKind::kBroadcast; }));
  EXPECT_TRUE(differs([](Operation& o) { o.dtype = DType::kBf16; }));
  EXPECT_TRUE(differs([](Operation& o) { o.reduce = ReduceOp::kMax; }));
  EXPECT_TRUE(differs([](Operation& o) { o.order = SumOrder::kOrdered; }));
  EXPECT_TRUE(differs([](Operation& o) { o.peer = 0; }));
  EXPECT_TRUE(differs([](Operation& o) { o.count = 9; }));
  EXPECT_TRUE(differs([](Operation& o) { o.leaves_per_rank = 2; }));
  EXPECT_TRUE(differs([](Operation& o) { o.sequence = 4; }));
}

}  // namespace
}  // namespace muster::comm
