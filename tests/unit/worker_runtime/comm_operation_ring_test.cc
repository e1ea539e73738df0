#include "worker_runtime/comm/operation_ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "worker_runtime/comm/loopback/loopback_communicator.h"

namespace muster::comm {
namespace {

Operation AllReduceAt(int64_t sequence) {
  return {
      .kind = OperationKind::kAllReduce, .dtype = DType::kF32, .count = 8, .sequence = sequence};
}

TEST(OperationRing, AnOperationIsReadAsItWasWritten) {
  auto ring = std::make_unique<OperationRing>();
  const uint32_t group = ring->AddGroup("dp");
  const auto ticket = ring->Record(group, AllReduceAt(17));
  ring->SetState(ticket, OperationState::kDone);
  const auto record = ring->Read(ticket);
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(ring->GroupName(record->group), "dp");
  EXPECT_EQ(record->kind, OperationKind::kAllReduce);
  EXPECT_EQ(record->dtype, DType::kF32);
  EXPECT_EQ(record->state, OperationState::kDone);
  EXPECT_EQ(record->sequence, 17);
  EXPECT_EQ(record->bytes, 32);
}

TEST(OperationRing, KeepsTheLastRecordsAndSaysThatOlderAreGone) {
  auto ring = std::make_unique<OperationRing>();
  for (int64_t s = 0; s < kOperationRingEntries + 10; ++s) ring->Record(0, AllReduceAt(s));
  EXPECT_FALSE(ring->Read(9).has_value());
  ASSERT_TRUE(ring->Read(10).has_value());
  EXPECT_EQ(ring->Read(10)->sequence, 10);
  EXPECT_FALSE(ring->Read(kOperationRingEntries + 10).has_value());
}

TEST(OperationRing, ALateChangeOfStateDoesNotTouchTheRecordThatCameAfter) {
  auto ring = std::make_unique<OperationRing>();
  const auto old = ring->Record(0, AllReduceAt(0));
  for (int64_t s = 1; s <= kOperationRingEntries; ++s) ring->Record(0, AllReduceAt(s));
  ring->SetState(old, OperationState::kFailed);
  EXPECT_EQ(ring->Read(old + kOperationRingEntries)->state, OperationState::kIssued);
}

TEST(OperationRing, LongNamesAreCutAndTooManyGroupsShareAnEntry) {
  auto ring = std::make_unique<OperationRing>();
  const uint32_t group = ring->AddGroup(std::string(200, 'x'));
  EXPECT_EQ(ring->GroupName(group), std::string(kGroupNameBytes - 1, 'x'));
  for (int i = 0; i < 100; ++i) EXPECT_LT(ring->AddGroup("g"), kOperationRingGroups);
}

TEST(OperationRing, ConcurrentWritersAndAReaderNeverSeeATornRecord) {
  auto ring = std::make_unique<OperationRing>();
  std::vector<std::thread> writers;
  for (int w = 0; w < 3; ++w) {
    writers.emplace_back([&ring] {
      for (int64_t s = 0; s < 20000; ++s) {
        Operation op = AllReduceAt(s);
        op.count = s;
        ring->SetState(ring->Record(0, op), OperationState::kDone);
      }
    });
  }
  int num_read = 0;
  while (ring->num_records() < 60000) {
    const uint64_t next = ring->num_records();
    if (next == 0) continue;
    const auto record = ring->Read(next - 1);
    if (!record.has_value()) continue;
    ++num_read;
    EXPECT_EQ(record->bytes, record->sequence * 4);
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_GE(num_read, 0);
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
  EXPECT_EQ(ring->GroupName(ring->Read(2)->group), "solo");
}

}  // namespace
}  // namespace muster::comm
