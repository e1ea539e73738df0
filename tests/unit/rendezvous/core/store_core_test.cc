#include "rendezvous/core/store_core.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::rendezvous {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr Round kRound{3};

class StoreCoreTest : public testing::Test {
 protected:
  StoreCoreTest() { store_.StartRound(kRound, now_); }
  void TearDown() override { EXPECT_EQ(broken_, ""); }

  std::vector<SendStoreReply> Ask(uint64_t from, StoreOperation operation) {
    return AskAs(from, ++next_id_, std::move(operation));
  }
  std::vector<SendStoreReply> AskAs(uint64_t from, uint64_t id, StoreOperation operation,
                                    Round round = kRound) {
    std::vector<SendStoreReply> replies =
        store_.Step(Incarnation(from), {id, round, std::move(operation)}, now_);
    broken_ += store_.CheckInvariants();
    return replies;
  }
  // The only reply to one request.
  StoreReply One(uint64_t from, StoreOperation operation) {
    const std::vector<SendStoreReply> replies = Ask(from, std::move(operation));
    if (replies.size() != 1) return {.status = absl::InternalError("not one reply")};
    return replies.front().reply;
  }
  std::vector<SendStoreReply> TickAt(double seconds) {
    now_ = MonoTime::At(absl::Seconds(seconds));
    std::vector<SendStoreReply> replies = store_.Tick(now_);
    broken_ += store_.CheckInvariants();
    return replies;
  }

  StoreCore store_;
  MonoTime now_ = MonoTime::At(absl::ZeroDuration());
  uint64_t next_id_ = 0;
  std::string broken_;
};

UniqueIdExchange Exchange(int rank, int size, std::string id = "", uint64_t nonce = 0) {
  return {.group = "tp",
          .nonce = nonce,
          .group_rank = rank,
          .group_size = size,
          .unique_id = std::move(id),
          .timeout = absl::Seconds(30)};
}

TEST_F(StoreCoreTest, GivesBackWhatWasSet) {
  Ask(1, StoreSet{"k", "v"});
  EXPECT_THAT(One(2, StoreGet{"k"}).values, ElementsAre("v"));
}

TEST_F(StoreCoreTest, AnswersGetOfAnAbsentKeyWithNotFound) {
  EXPECT_EQ(One(1, StoreGet{"k"}).status.code(), absl::StatusCode::kNotFound);
}

TEST_F(StoreCoreTest, AddsToAnAbsentKeyAsIfItWereZero) {
  EXPECT_THAT(One(1, StoreAdd{"k", 5}).values, ElementsAre("5"));
  EXPECT_THAT(One(1, StoreAdd{"k", -7}).values, ElementsAre("-2"));
}

TEST_F(StoreCoreTest, RefusesToAddToWhatIsNoInteger) {
  Ask(1, StoreSet{"k", "five"});
  EXPECT_EQ(One(1, StoreAdd{"k", 1}).status.code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(StoreCoreTest, RefusesASumThatOverflows) {
  Ask(1, StoreSet{"k", "9223372036854775807"});
  EXPECT_EQ(One(1, StoreAdd{"k", 1}).status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(One(1, StoreGet{"k"}).values, ElementsAre("9223372036854775807"));
}

TEST_F(StoreCoreTest, ComparesAndSetsOnlyAnExpectedValue) {
  EXPECT_THAT(One(1, StoreCompareAndSet{"k", "", "a"}).values, ElementsAre("a"));
  EXPECT_THAT(One(1, StoreCompareAndSet{"k", "x", "b"}).values, ElementsAre("a"));
  EXPECT_THAT(One(1, StoreCompareAndSet{"k", "a", "b"}).values, ElementsAre("b"));
}

TEST_F(StoreCoreTest, AnswersCompareAndSetOfAnAbsentKeyWithNotFound) {
  EXPECT_EQ(One(1, StoreCompareAndSet{"k", "x", "b"}).status.code(), absl::StatusCode::kNotFound);
}

TEST_F(StoreCoreTest, SaysWhetherADeletedKeyExisted) {
  Ask(1, StoreSet{"k", "v"});
  EXPECT_THAT(One(1, StoreDelete{"k"}).values, ElementsAre("1"));
  EXPECT_THAT(One(1, StoreDelete{"k"}).values, ElementsAre("0"));
}

TEST_F(StoreCoreTest, AnswersAWaitOnceEveryKeyExists) {
  EXPECT_THAT(Ask(1, StoreWait{{"a", "b"}, absl::Seconds(30)}), IsEmpty());
  EXPECT_EQ(Ask(2, StoreSet{"b", "2"}).size(), 1u);
  const std::vector<SendStoreReply> replies = Ask(2, StoreSet{"a", "1"});
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[0].to, Incarnation(1));
  EXPECT_THAT(replies[0].reply.values, ElementsAre("1", "2"));
}

TEST_F(StoreCoreTest, WaitsAgainForAKeyThatWasDeletedMeanwhile) {
  Ask(1, StoreWait{{"a", "b"}, absl::Seconds(30)});
  Ask(2, StoreSet{"a", "1"});
  Ask(2, StoreDelete{"a"});
  EXPECT_EQ(Ask(2, StoreSet{"b", "2"}).size(), 1u);
  EXPECT_EQ(Ask(2, StoreSet{"a", "3"}).size(), 2u);
}

TEST_F(StoreCoreTest, EndsAWaitAtItsDeadlineNamingThreeOfTheAbsentKeys) {
  Ask(2, StoreSet{"b", "1"});
  Ask(1, StoreWait{{"a", "b", "c", "d", "e"}, absl::Seconds(30)});
  EXPECT_EQ(store_.NextDeadline(), MonoTime::At(absl::Seconds(30)));
  const std::vector<SendStoreReply> replies = TickAt(30);
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].reply.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(replies[0].reply.status.message()),
              HasSubstr("store keys 'a', 'c', 'd' and 1 more did not appear within 30s"));
  EXPECT_TRUE(store_.NextDeadline().is_infinite());
}

TEST_F(StoreCoreTest, AnswersARepeatedRequestWithoutDoingItAgain) {
  EXPECT_THAT(AskAs(1, 9, StoreAdd{"k", 1})[0].reply.values, ElementsAre("1"));
  EXPECT_THAT(AskAs(1, 9, StoreAdd{"k", 1})[0].reply.values, ElementsAre("1"));
  EXPECT_THAT(AskAs(2, 9, StoreAdd{"k", 1})[0].reply.values, ElementsAre("2"));
}

TEST_F(StoreCoreTest, RefusesToRepeatARequestWhoseAnswerItNoLongerHas) {
  for (size_t i = 0; i <= kMaxRememberedReplies; ++i) Ask(1, StoreAdd{"k", 1});
  EXPECT_EQ(AskAs(1, 1, StoreAdd{"k", 1})[0].reply.status.code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(StoreCoreTest, WaitsOnceForARequestThatIsRepeatedWhilePending) {
  AskAs(1, 9, StoreWait{{"a"}, absl::Seconds(30)});
  AskAs(1, 9, StoreWait{{"a"}, absl::Seconds(30)});
  EXPECT_EQ(Ask(2, StoreSet{"a", "1"}).size(), 2u);
}

TEST_F(StoreCoreTest, RefusesARequestOfAnotherRound) {
  const std::vector<SendStoreReply> replies = AskAs(1, 1, StoreSet{"k", "v"}, Round(2));
  EXPECT_EQ(replies[0].reply.status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(One(1, StoreGet{"k"}).status.code(), absl::StatusCode::kNotFound);
}

TEST_F(StoreCoreTest, DropsKeysAndAbortsWaitsWhenARoundBegins) {
  Ask(1, StoreSet{"k", "v"});
  Ask(1, StoreWait{{"a"}, absl::Seconds(30)});
  Ask(1, Exchange(1, 2));
  const std::vector<SendStoreReply> replies = store_.StartRound(Round(4), now_);
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[0].reply.status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(AskAs(1, 90, StoreGet{"k"}, Round(4))[0].reply.status.code(),
            absl::StatusCode::kNotFound);
  EXPECT_TRUE(store_.NextDeadline().is_infinite());
}

TEST_F(StoreCoreTest, RefusesKeysAndValuesBeyondTheLimits) {
  EXPECT_EQ(One(1, StoreSet{std::string(kMaxStoreKeyBytes + 1, 'k'), ""}).status.code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(One(1, StoreSet{"k", std::string(kMaxStoreValueBytes + 1, 'v')}).status.code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(One(1, StoreSet{"", "v"}).status.code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(StoreCoreTest, RefusesToGrowBeyondTheLimitOfAJob) {
  const std::string value(kMaxStoreValueBytes, 'v');
  const size_t fitting = kMaxStoreBytesPerJob / (kMaxStoreValueBytes + 3);
  for (size_t i = 0; i < fitting; ++i) {
    store_.Step(Incarnation(1), {++next_id_, kRound, StoreSet{absl::StrCat(100 + i), value}}, now_);
  }
  EXPECT_EQ(One(1, StoreSet{"one more", value}).status.code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(One(1, StoreSet{"100", "less"}).status.ok());
  EXPECT_TRUE(One(1, StoreSet{"one more", value}).status.ok());
}

TEST_F(StoreCoreTest, HandsAUniqueIdToEveryRankThatWaits) {
  EXPECT_THAT(Ask(1, Exchange(1, 3)), IsEmpty());
  EXPECT_THAT(Ask(2, Exchange(2, 3)), IsEmpty());
  const std::vector<SendStoreReply> replies = Ask(1, Exchange(0, 3, "ID"));
  ASSERT_EQ(replies.size(), 3u);
  for (const SendStoreReply& reply : replies) EXPECT_THAT(reply.reply.values, ElementsAre("ID"));
}

TEST_F(StoreCoreTest, HandsAUniqueIdToARankThatAsksAfterIt) {
  EXPECT_THAT(One(1, Exchange(0, 2, "ID")).values, ElementsAre("ID"));
  EXPECT_THAT(One(2, Exchange(1, 2)).values, ElementsAre("ID"));
}

TEST_F(StoreCoreTest, HandsAUniqueIdToEachRankOnce) {
  Ask(1, Exchange(0, 3, "ID"));
  Ask(2, Exchange(1, 3));
  const StoreReply again = One(2, Exchange(1, 3));
  EXPECT_EQ(again.status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(again.status.message()), HasSubstr("new nonce"));
  EXPECT_EQ(One(1, Exchange(0, 3, "ID2")).status.code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(StoreCoreTest, KeepsExchangesOfAGroupApartByNonce) {
  EXPECT_THAT(One(1, Exchange(0, 2, "A", 1)).values, ElementsAre("A"));
  EXPECT_THAT(One(1, Exchange(0, 2, "B", 2)).values, ElementsAre("B"));
  EXPECT_THAT(One(2, Exchange(1, 2, "", 2)).values, ElementsAre("B"));
  EXPECT_THAT(One(2, Exchange(1, 2, "", 1)).values, ElementsAre("A"));
}

TEST_F(StoreCoreTest, RefusesRanksThatDisagreeAboutTheGroup) {
  Ask(1, Exchange(0, 2, "ID"));
  EXPECT_EQ(One(2, Exchange(1, 4)).status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(One(2, Exchange(2, 2)).status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(One(2, Exchange(-1, 2)).status.code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(StoreCoreTest, TakesAUniqueIdFromRankZeroAndNoOther) {
  EXPECT_EQ(One(1, Exchange(0, 2)).status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(One(1, Exchange(1, 2, "ID")).status.code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(StoreCoreTest, SaysThatRankZeroHasNotPublishedInTime) {
  Ask(1, Exchange(1, 2, "", 7));
  const std::vector<SendStoreReply> replies = TickAt(30);
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].reply.status,
            absl::DeadlineExceededError("rank 1 of group 'tp' (nonce 7) waited 30s for the unique "
                                        "id; rank 0 has not published it"));
}

TEST_F(StoreCoreTest, ForgetsTheWaitsOfAnAgentThatIsGone) {
  Ask(1, StoreWait{{"a"}, absl::Seconds(30)});
  Ask(1, Exchange(1, 2));
  store_.Forget(Incarnation(1));
  EXPECT_TRUE(store_.NextDeadline().is_infinite());
  EXPECT_EQ(Ask(2, StoreSet{"a", "1"}).size(), 1u);
}

TEST_F(StoreCoreTest, AnswersAWaitForSeveralOfTheLargestValues) {
  for (const char* key : {"a", "b", "c", "d"}) {
    Ask(1, StoreSet{key, std::string(kMaxStoreValueBytes, 'v')});
  }
  const StoreReply reply = One(2, StoreWait{{"a", "b", "c", "d"}, absl::Seconds(30)});
  EXPECT_EQ(reply.status, absl::OkStatus());
  EXPECT_EQ(reply.values.size(), 4u);
}

TEST_F(StoreCoreTest, RefusesAWaitThatNamesALargeKeyThousandsOfTimes) {
  Ask(1, StoreSet{"large", std::string(kMaxStoreValueBytes, 'v')});
  const StoreWait wait{std::vector<std::string>(4096, "large"), absl::Seconds(30)};
  const StoreReply reply = One(2, wait);
  EXPECT_EQ(reply.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(reply.status.message()), HasSubstr("fewer keys at a time"));
  // The same for one that had to wait.
  Ask(2, StoreWait{std::vector<std::string>(4096, "later"), absl::Seconds(30)});
  const auto replies = Ask(1, StoreSet{"later", std::string(kMaxStoreValueBytes, 'v')});
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[0].reply.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(replies[0].reply.values, IsEmpty());
}

TEST_F(StoreCoreTest, ParksNoMoreThanItsBudgetOfKeys) {
  const StoreWait wait{std::vector<std::string>(4096, std::string(kMaxStoreKeyBytes, 'k')),
                       absl::Seconds(30)};
  constexpr size_t kFit = kMaxPendingBytes / (4096 * kMaxStoreKeyBytes);
  for (size_t i = 0; i < kFit; ++i) EXPECT_THAT(Ask(1, wait), IsEmpty());
  EXPECT_EQ(One(1, wait).status.code(), absl::StatusCode::kResourceExhausted);
  TickAt(31);
  EXPECT_THAT(Ask(1, wait), IsEmpty()) << "what timed out is given back";
}

TEST_F(StoreCoreTest, AnswersNoMoreThanItsBudgetWhenALargeKeyAppears) {
  constexpr size_t kFit = kMaxAnswerBytesPerStep / kMaxStoreValueBytes;
  for (size_t i = 0; i < kFit + 5; ++i) Ask(i + 1, StoreWait{{"large"}, absl::Seconds(30)});
  const auto replies = Ask(1, StoreSet{"large", std::string(kMaxStoreValueBytes, 'v')});
  size_t served = 0, refused = 0;
  for (const SendStoreReply& reply : replies) {
    served += reply.reply.values.size();
    refused += absl::IsResourceExhausted(reply.reply.status) ? 1 : 0;
  }
  EXPECT_EQ(served, kFit);
  EXPECT_EQ(refused, 5u);
}

}  // namespace
}  // namespace muster::rendezvous
