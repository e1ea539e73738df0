#include "rendezvous/server/outbox.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <variant>

namespace muster::rendezvous {
namespace {

TEST(Outbox, KeepsTheNewestDirectiveOnly) {
  Outbox outbox;
  outbox.Push(Directive{.revision = 1});
  outbox.Push(Directive{.revision = 2});
  EXPECT_EQ(std::get<Directive>(*outbox.Pop()).revision, 2u);
  EXPECT_FALSE(outbox.Pop().has_value());
}

TEST(Outbox, GivesDirectivesBeforeReplies) {
  Outbox outbox;
  EXPECT_TRUE(outbox.Push(StoreReply{.request_id = 1}));
  outbox.Push(Directive{.revision = 1});
  EXPECT_TRUE(std::holds_alternative<Directive>(*outbox.Pop()));
  EXPECT_TRUE(std::holds_alternative<StoreReply>(*outbox.Pop()));
}

StoreReply Answer(size_t bytes) { return {.request_id = 1, .values = {std::string(bytes, 'v')}}; }

TEST(Outbox, LetsNothingMoreBeReadOnceItHoldsManyBytes) {
  Outbox outbox;
  EXPECT_TRUE(outbox.has_room());
  ASSERT_TRUE(outbox.Push(Answer(Outbox::kPauseBytes)));
  EXPECT_FALSE(outbox.has_room());
  outbox.Pop();
  EXPECT_TRUE(outbox.has_room());
  EXPECT_EQ(outbox.bytes(), 0u);
}

TEST(Outbox, IsFullAtItsBoundOfBytes) {
  Outbox outbox;
  const size_t half = Outbox::kMaxBytes / 2 - Outbox::kReplyBytes;
  EXPECT_TRUE(outbox.Push(Answer(half)));
  EXPECT_TRUE(outbox.Push(Answer(half)));
  EXPECT_FALSE(outbox.Push(StoreReply{}));
}

TEST(Outbox, CountsRepliesWithoutValuesToo) {
  Outbox outbox;
  size_t taken = 0;
  while (outbox.Push(StoreReply{})) ++taken;
  EXPECT_EQ(taken, Outbox::kMaxBytes / Outbox::kReplyBytes);
}

InquiryAnswer AnswerOf(size_t bytes) { return {.parts = {{.body = std::string(bytes, 'b')}}}; }

// They have a bound of their own: no observer keeps an agent from being read.
TEST(Outbox, HoldsAnswersToObserversUpToTheirBoundOfBytes) {
  Outbox outbox;
  const size_t half = Outbox::kMaxAnswerBytes / 2 - 2 * Outbox::kReplyBytes;
  EXPECT_TRUE(outbox.Push(AnswerOf(half)));
  EXPECT_TRUE(outbox.Push(AnswerOf(half)));
  EXPECT_FALSE(outbox.Push(AnswerOf(0)));
  EXPECT_TRUE(outbox.has_room());
  EXPECT_TRUE(outbox.Push(Answer(1)));
  outbox.Pop();  // the reply
  outbox.Pop();
  EXPECT_TRUE(outbox.Push(AnswerOf(half)));
}

TEST(Outbox, TakesOneAnswerOfAnySize) {
  Outbox outbox;
  EXPECT_TRUE(outbox.Push(AnswerOf(Outbox::kMaxAnswerBytes + 1)));
  EXPECT_FALSE(outbox.Push(AnswerOf(1)));
}

}  // namespace
}  // namespace muster::rendezvous
