#include "rendezvous/client/store_outbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "proto/rendezvous.pb.h"
#include "tests/support/status_matchers.h"

namespace muster::rendezvous {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

StoreRequest SetOf(uint64_t id, size_t bytes = 1) {
  return {.request_id = id,
          .round = Round(1),
          .operation = StoreSet{.key = "k", .value = std::string(bytes, 'v')}};
}

TEST(StoreOutbox, SendsInOrderAndTakesEachAnswerOnce) {
  StoreOutbox outbox;
  EXPECT_THAT(outbox.Put(SetOf(1)), IsOk());
  EXPECT_THAT(outbox.Put(SetOf(2)), IsOk());
  for (const uint64_t id : {1, 2}) {
    proto::FromAgent message;
    ASSERT_TRUE(outbox.Next(message));
    EXPECT_EQ(message.store().request_id(), id);
  }
  proto::FromAgent message;
  EXPECT_FALSE(outbox.Next(message));
  EXPECT_TRUE(outbox.TakeAnswered(2));
  EXPECT_FALSE(outbox.TakeAnswered(2));
  EXPECT_FALSE(outbox.TakeAnswered(3));
  EXPECT_THAT(outbox.GiveUp(), ElementsAre(1));
}

TEST(StoreOutbox, GivesUpWhatWasSentAndWhatWasNot) {
  StoreOutbox outbox;
  proto::FromAgent message;
  EXPECT_THAT(outbox.Put(SetOf(1)), IsOk());
  ASSERT_TRUE(outbox.Next(message));
  EXPECT_THAT(outbox.Put(SetOf(2)), IsOk());
  EXPECT_THAT(outbox.GiveUp(), ElementsAre(1, 2));
  EXPECT_FALSE(outbox.Next(message));
  EXPECT_THAT(outbox.GiveUp(), IsEmpty());
}

TEST(StoreOutbox, IsBoundedByRequestsThatWaitAndByBytesThatAreUnsent) {
  StoreOutbox many;
  for (uint64_t id = 1; id <= kMaxStoreRequestsInFlight; ++id) {
    ASSERT_THAT(many.Put(SetOf(id)), IsOk());
  }
  EXPECT_THAT(many.Put(SetOf(9999)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("4096 store requests")));
  EXPECT_TRUE(many.TakeAnswered(1));
  EXPECT_THAT(many.Put(SetOf(9999)), IsOk());

  StoreOutbox large;
  uint64_t id = 0;
  while (large.Put(SetOf(++id, kMaxStoreValueBytes)).ok()) {
  }
  EXPECT_EQ(id, kMaxUnsentStoreBytes / kMaxStoreValueBytes + 1);
  proto::FromAgent message;
  while (large.Next(message)) {
  }
  EXPECT_THAT(large.Put(SetOf(++id)), IsOk());
}

}  // namespace
}  // namespace muster::rendezvous
