#include "rendezvous/client/node_outbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "proto/rendezvous.pb.h"
#include "tests/support/status_matchers.h"

namespace muster::rendezvous {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Case = proto::FromAgent::MessageCase;

std::vector<Case> AllOf(NodeOutbox& outbox) {
  std::vector<Case> cases;
  proto::FromAgent message;
  while (outbox.Next(MonoNow(), ServerTerm(3), message)) {
    cases.push_back(message.message_case());
    message.Clear();
  }
  return cases;
}

TEST(NodeOutbox, SaysTheLeaseFirstAndInquiriesLast) {
  NodeOutbox outbox(Incarnation(7));
  outbox.BeginStream(/*knows_inquiries=*/true);
  EXPECT_THAT(outbox.Put(Inquiry{.id = 1}), IsOk());
  outbox.Put(InquiryReply{});
  EXPECT_THAT(outbox.store().Put({.request_id = 1, .operation = StoreGet{}}), IsOk());
  outbox.PutAnswer(hangs::NodeArrivals{});
  outbox.reports().Put({.sequence = 1});
  EXPECT_THAT(AllOf(outbox),
              ElementsAre(proto::FromAgent::kReport, proto::FromAgent::MESSAGE_NOT_SET,
                          proto::FromAgent::kStore, proto::FromAgent::kInquiry,
                          proto::FromAgent::kInquiryReply));
}

TEST(NodeOutbox, AsksOnEachStreamUntilItIsAnswered) {
  NodeOutbox outbox(Incarnation(7));
  std::optional<StopAnswer> answered;
  outbox.Ask(StopRequest{}, [&](StopAnswer answer) { answered = std::move(answer); });
  EXPECT_THAT(AllOf(outbox), IsEmpty());  // nobody is there yet
  for (int stream = 0; stream < 2; ++stream) {
    outbox.BeginStream(/*knows_inquiries=*/true);
    EXPECT_THAT(AllOf(outbox), ElementsAre(proto::FromAgent::kAsk));
    EXPECT_TRUE(outbox.awaits_answer());
    outbox.EndStream();
  }
  outbox.TakeAnswer({});
  EXPECT_TRUE(answered.has_value());
  EXPECT_FALSE(outbox.awaits_answer());
  outbox.BeginStream(/*knows_inquiries=*/true);
  EXPECT_THAT(AllOf(outbox), IsEmpty());
}

TEST(NodeOutbox, SaysTheEndOfAnAgentByTheKeyOfItsLife) {
  NodeOutbox outbox(Incarnation(7));
  outbox.Ask(AgentEnding{.life_key = {1, 2, 3}}, nullptr);
  outbox.BeginStream(/*knows_inquiries=*/false);
  proto::FromAgent message;
  ASSERT_TRUE(outbox.Next(MonoNow(), ServerTerm(3), message));
  EXPECT_EQ(message.agent_ended().life_key().substr(0, 4), std::string("\1\2\3\0", 4));
}

TEST(NodeOutbox, DropsWithAStreamWhatWasSaidToItsServerAlone) {
  NodeOutbox outbox(Incarnation(7));
  outbox.BeginStream(/*knows_inquiries=*/true);
  outbox.PutAnswer(hangs::NodeArrivals{});
  EXPECT_THAT(outbox.Put(Inquiry{.id = 1}), IsOk());
  outbox.Put(InquiryReply{});
  outbox.EndStream();
  outbox.BeginStream(/*knows_inquiries=*/false);
  EXPECT_THAT(AllOf(outbox), IsEmpty());
  EXPECT_THAT(outbox.Put(Inquiry{.id = 2}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("older muster")));
}

TEST(NodeOutbox, IsBounded) {
  NodeOutbox outbox(Incarnation(7));
  outbox.BeginStream(/*knows_inquiries=*/true);
  for (int i = 0; i < 100; ++i) {
    outbox.PutAnswer(hangs::NodeArrivals{});
    outbox.Put(InquiryReply{});
  }
  EXPECT_THAT(outbox.Put(Inquiry{.id = 1}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("too much")));
  EXPECT_EQ(AllOf(outbox).size(), kMaxUnsentWatchWords + kMaxUnsentInquiries);
}

}  // namespace
}  // namespace muster::rendezvous
