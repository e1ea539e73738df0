#include "agent/torch_store/torch_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "absl/strings/match.h"
#include "tests/unit/agent/torch_store/store_bytes.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using C = StoreCommand;
using Strings = std::vector<std::string>;

const std::string kStop = Byte(0);
const std::string kCancelled = Byte(1);
const StoreConnection kA(1), kB(2), kD(3);

class Store : public ::testing::Test {
 protected:
  std::vector<TorchReply> Ask(StoreConnection from, TorchRequest request) {
    std::vector<TorchReply> replies = store_.Apply(from, request);
    EXPECT_EQ(store_.CheckInvariants(), "");
    return replies;
  }
  // The one reply, to the one who asked.
  std::string Answer(StoreConnection from, TorchRequest request) {
    const std::vector<TorchReply> replies = Ask(from, std::move(request));
    if (replies.size() != 1 || !std::holds_alternative<SendToClient>(replies[0])) {
      ADD_FAILURE() << replies.size() << " replies";
      return "";
    }
    const auto& send = std::get<SendToClient>(replies[0]);
    EXPECT_EQ(send.to, from);
    return send.bytes.text();
  }
  void Set(const std::string& key, const std::string& value) {
    EXPECT_THAT(Ask(kD, {C::kSet, {key}, {value}}), IsEmpty());
  }
  // Why the client is cut.
  std::string Refusal(StoreConnection from, TorchRequest request) {
    const std::vector<TorchReply> replies = Ask(from, std::move(request));
    const auto* cut = replies.empty() ? nullptr : std::get_if<CutClient>(&replies.back());
    return cut == nullptr ? "not cut" : cut->reason;
  }
  TorchStore store_;
};

TEST_F(Store, GetsWhatWasSetAndNothingForAnAbsentKey) {
  Set("k", "v1");
  Set("k", "v2");
  EXPECT_EQ(Answer(kA, {C::kGet, {"k"}}), Text("v2"));
  EXPECT_EQ(Answer(kA, {C::kGet, {"absent"}}), Text(""));
}

TEST_F(Store, SetsAndGetsSeveralKeysAtOnce) {
  EXPECT_THAT(Ask(kA, {C::kMultiSet, {"a", "b"}, {"1", "2"}}), IsEmpty());
  EXPECT_EQ(Answer(kA, {C::kMultiGet, {"b", "a", "c"}}), Text("2") + Text("1") + Text(""));
}

TEST_F(Store, AddsToNumbersInDecimal) {
  EXPECT_EQ(Answer(kA, {C::kAdd, {"n"}, {}, {5}}), Number<int64_t>(5));
  EXPECT_EQ(Answer(kA, {C::kAdd, {"n"}, {}, {-7}}), Number<int64_t>(-2));
  EXPECT_EQ(Answer(kA, {C::kGet, {"n"}}), Text("-2"));
  Set("n", " +12 items");
  EXPECT_EQ(Answer(kA, {C::kAdd, {"n"}, {}, {1}}), Number<int64_t>(13));
}

TEST_F(Store, CutsAClientThatAddsToWhatIsNoNumberOrBeyondTheLargest) {
  Set("k", "x");
  EXPECT_THAT(Refusal(kA, {C::kAdd, {"k"}, {}, {1}}), HasSubstr("'k', which holds no number"));
  Set("k", "9223372036854775807");
  EXPECT_THAT(Refusal(kA, {C::kAdd, {"k"}, {}, {1}}), HasSubstr("overflows"));
  EXPECT_EQ(Answer(kA, {C::kGet, {"k"}}), Text("9223372036854775807"));
}

TEST_F(Store, ComparesAndSets) {
  EXPECT_EQ(Answer(kA, {C::kCompareSet, {"k"}, {"old", "new"}}), Text("old"));  // as PyTorch says
  EXPECT_EQ(Answer(kA, {C::kCheck, {"k"}}), Byte(1));
  EXPECT_EQ(Answer(kA, {C::kCompareSet, {"k"}, {"", "first"}}), Text("first"));
  EXPECT_EQ(Answer(kA, {C::kCompareSet, {"k"}, {"other", "second"}}), Text("first"));
  EXPECT_EQ(Answer(kA, {C::kCompareSet, {"k"}, {"first", "second"}}), Text("second"));
}

TEST_F(Store, AppendsToAKeyOrMakesIt) {
  EXPECT_THAT(Ask(kA, {C::kAppend, {"k"}, {"ab"}}), IsEmpty());
  EXPECT_THAT(Ask(kA, {C::kAppend, {"k"}, {"c"}}), IsEmpty());
  EXPECT_EQ(Answer(kA, {C::kGet, {"k"}}), Text("abc"));
}

TEST_F(Store, CountsListsAndDeletesKeys) {
  Set("b", "");
  Set("a", "1");
  EXPECT_EQ(Answer(kA, {C::kGetNumKeys}), Number<int64_t>(2));
  EXPECT_EQ(Answer(kA, {C::kListKeys}), Number<int64_t>(2) + Text("a") + Text("b"));
  EXPECT_EQ(Answer(kA, {C::kDeleteKey, {"a"}}), Number<int64_t>(1));
  EXPECT_EQ(Answer(kA, {C::kDeleteKey, {"a"}}), Number<int64_t>(0));
  EXPECT_EQ(Answer(kA, {C::kGetNumKeys}), Number<int64_t>(1));
}

TEST_F(Store, EchoesAPing) {
  EXPECT_EQ(Answer(kA, {C::kPing, {}, {}, {0xfffffffe}}), Number<uint32_t>(0xfffffffe));
}

TEST_F(Store, ChecksWithoutWaiting) {
  Set("k", "v");
  EXPECT_EQ(Answer(kA, {C::kCheck, {"k"}}), Byte(0));
  EXPECT_EQ(Answer(kA, {C::kCheck, {"k", "absent"}}), Byte(1));
}

TEST_F(Store, AnswersAWaitAtOnceIfEveryKeyIsThere) {
  Set("k", "v");
  EXPECT_EQ(Answer(kA, {C::kWait, {"k"}}), kStop);
}

TEST_F(Store, AnswersAWaitWhenTheLastOfItsKeysComes) {
  EXPECT_THAT(Ask(kA, {C::kWait, {"k", "l", "k"}}), IsEmpty());
  EXPECT_THAT(Ask(kB, {C::kSet, {"k"}, {"v"}}), IsEmpty());
  EXPECT_THAT(Ask(kB, {C::kDeleteKey, {"k"}}), ElementsAre(SendToClient{kB, Number<int64_t>(1)}));
  EXPECT_THAT(Ask(kB, {C::kSet, {"l"}, {"v"}}), ElementsAre(SendToClient{kA, kStop}));
  EXPECT_THAT(Ask(kB, {C::kSet, {"l"}, {"w"}}), IsEmpty());
}

TEST_F(Store, WakesEveryoneWhoWaitsForAKey) {
  Ask(kA, {C::kWait, {"k"}});
  Ask(kB, {C::kWait, {"k"}});
  EXPECT_THAT(Ask(kD, {C::kAdd, {"k"}, {}, {1}}),
              ElementsAre(SendToClient{kA, kStop}, SendToClient{kB, kStop},
                          SendToClient{kD, Number<int64_t>(1)}));
}

TEST_F(Store, CancelsAWait) {
  Ask(kA, {C::kWait, {"k"}});
  EXPECT_EQ(Answer(kA, {C::kCancelWait}), kCancelled);
  EXPECT_THAT(Ask(kB, {C::kSet, {"k"}, {"v"}}), IsEmpty());
  EXPECT_EQ(Answer(kA, {C::kCancelWait}), kCancelled);
}

TEST_F(Store, DoesNotWakeWhoIsGone) {
  Ask(kA, {C::kWait, {"k"}});
  store_.Forget(kA);
  EXPECT_THAT(Ask(kB, {C::kSet, {"k"}, {"v"}}), IsEmpty());
}

TEST_F(Store, HandsOutAQueueInOrder) {
  EXPECT_THAT(Ask(kA, {C::kQueuePush, {"q"}, {"1"}}), IsEmpty());
  EXPECT_THAT(Ask(kA, {C::kQueuePush, {"q"}, {"2"}}), IsEmpty());
  EXPECT_EQ(Answer(kA, {C::kQueueLen, {"q"}}), Number<int64_t>(2));
  EXPECT_EQ(Answer(kB, {C::kQueuePop, {"q"}}), Number<int64_t>(2) + Text("1"));
  EXPECT_EQ(Answer(kB, {C::kQueuePop, {"q"}}), Number<int64_t>(1) + Text("2"));
  EXPECT_EQ(Answer(kB, {C::kQueuePop, {"q"}}), Number<int64_t>(0));
  EXPECT_EQ(Answer(kA, {C::kGetNumKeys}), Number<int64_t>(0));
}

TEST_F(Store, WakesOneWaiterForEachPushTheFirstFirst) {
  Ask(kB, {C::kWait, {"q"}});
  Ask(kA, {C::kWait, {"q"}});
  EXPECT_THAT(Ask(kD, {C::kQueuePush, {"q"}, {"1"}}), ElementsAre(SendToClient{kB, kStop}));
  EXPECT_THAT(Ask(kD, {C::kQueuePush, {"q"}, {"2"}}), ElementsAre(SendToClient{kA, kStop}));
  EXPECT_EQ(Answer(kD, {C::kWait, {"q"}}), kStop);
}

TEST_F(Store, HoldsABarrierUntilTheLastHasCome) {
  EXPECT_THAT(Ask(kA, {C::kBarrier, {"b"}, {}, {3}}), IsEmpty());
  EXPECT_THAT(Ask(kB, {C::kBarrier, {"b"}, {}, {3}}), IsEmpty());
  EXPECT_THAT(
      Ask(kD, {C::kBarrier, {"b"}, {}, {3}}),
      ElementsAre(SendToClient{kD, kStop}, SendToClient{kA, kStop}, SendToClient{kB, kStop}));
  EXPECT_EQ(Answer(kA, {C::kGet, {"b"}}), Text("3"));
  EXPECT_EQ(Answer(kA, {C::kBarrier, {"b"}, {}, {3}}), kStop);  // a counter is not reset
}

TEST_F(Store, LetsGoOfABarrierWhenItIsCancelled) {
  Ask(kA, {C::kBarrier, {"b"}, {}, {2}});
  EXPECT_EQ(Answer(kA, {C::kCancelWait}), kCancelled);
  EXPECT_EQ(Answer(kB, {C::kBarrier, {"b"}, {}, {2}}), kStop);
}

TEST_F(Store, SharesALargeValueWithAllItsReaders) {
  const std::string large(100000, 'x');
  Ask(kB, {C::kSet, {"k"}, {large}});
  std::map<StoreConnection, std::string> got;
  std::map<const std::string*, size_t> pieces;
  for (const StoreConnection reader : {kA, kB, kD}) {
    for (const TorchReply& reply : Ask(reader, {C::kGet, {"k"}})) {
      const auto& send = std::get<SendToClient>(reply);
      got[send.to] += send.bytes.text();
      pieces[send.bytes.identity()] = send.bytes.size();
    }
    EXPECT_EQ(got[reader], Text(large));
  }
  size_t bytes = 0;
  for (const auto& [identity, size] : pieces) bytes += size;
  EXPECT_LT(bytes, large.size() + 1000);
}

TEST_F(Store, CutsAClientThatFillsItBeyondItsBudget) {
  store_ = TorchStore({.bytes_max = 1000, .reply_bytes_max = 100});
  const std::string value(600, 'x');
  Set("a", value);
  EXPECT_THAT(Refusal(kA, {C::kSet, {"b"}, {value}}), HasSubstr("exceed the limit of 1000"));
  EXPECT_THAT(Refusal(kA, {C::kQueuePush, {"b"}, {value}}), HasSubstr("exceed the limit"));
  EXPECT_THAT(Refusal(kA, {C::kAppend, {"a"}, {value}}), HasSubstr("exceed the limit"));
  EXPECT_THAT(Refusal(kA, {C::kWait, Strings{std::string(400, 'k')}}), HasSubstr("exceed"));
  Set("a", "small again");
  Set("b", value);
}

TEST_F(Store, CutsAClientThatAsksForMoreThanAReplyMayHold) {
  store_ = TorchStore({.bytes_max = 100000, .reply_bytes_max = 100});
  Set("a", std::string(60, 'x'));
  EXPECT_THAT(Refusal(kA, {C::kMultiGet, {"a", "a"}}), HasSubstr("MULTI_GET asks for 136 bytes"));
  for (int i = 0; i < 10; ++i) Set(absl::StrCat("key", i), "");
  EXPECT_THAT(Refusal(kA, {C::kListKeys}), HasSubstr("a list of 11 keys"));
}

TEST_F(Store, KeepsItsInvariantsUnderAnyRequests) {
  store_ = TorchStore({.bytes_max = 4000, .reply_bytes_max = 1000});
  std::mt19937 random(11);
  const auto key = [&] { return std::string(1, static_cast<char>('a' + random() % 4)); };
  for (int i = 0; i < 20000; ++i) {
    TorchRequest request{.command = static_cast<C>(random() % 18)};
    const int count = request.command == C::kWait || request.command == C::kMultiGet ||
                              request.command == C::kMultiSet || request.command == C::kCheck
                          ? random() % 4
                          : 1;
    for (int k = 0; k < count; ++k) {
      request.keys.push_back(key());
      request.values.push_back(std::string(random() % 200, '1'));
    }
    request.values.push_back("1");
    request.numbers = {static_cast<int64_t>(random() % 5)};
    const StoreConnection from(1 + random() % 5);
    for (const TorchReply& reply : store_.Apply(from, request)) {
      if (const auto* cut = std::get_if<CutClient>(&reply)) store_.Forget(cut->client);
    }
    ASSERT_EQ(store_.CheckInvariants(), "") << "request " << i << ": " << NameOf(request.command);
  }
}

}  // namespace
}  // namespace muster::agent
