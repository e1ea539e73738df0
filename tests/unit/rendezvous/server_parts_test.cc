// The pure parts of the server's shell.
#include <gtest/gtest.h>

#include "rendezvous/server/musterd_options.h"
#include "rendezvous/server/outbox.h"
#include "rendezvous/server/stall_clock.h"

namespace muster::rendezvous {
namespace {

MonoTime At(double seconds) { return MonoTime::At(absl::Seconds(seconds)); }

TEST(StallClock, GoesWithTheMachinesClock) {
  StallClock clock;
  clock.Expect(At(10));
  EXPECT_EQ(clock.Now(At(3)), At(3));
}

TEST(StallClock, LeavesOutWhatTheLoopWasLate) {
  StallClock clock;
  clock.Expect(At(10));
  EXPECT_EQ(clock.Now(At(15)), At(10));
  EXPECT_EQ(clock.Now(At(16)), At(11));
}

TEST(StallClock, CountsAShortDelay) {
  StallClock clock;
  clock.Expect(At(10));
  EXPECT_EQ(clock.Now(At(10.05)), At(10.05));
}

TEST(StallClock, TellsWhenAnInstantComes) {
  StallClock clock;
  clock.Expect(At(10));
  clock.Now(At(15));
  EXPECT_EQ(clock.ToReal(At(20)), At(25));
  EXPECT_TRUE(clock.ToReal(MonoTime::InfiniteFuture()).is_infinite());
}

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

TEST(ParseListen, TakesNamesAndAddresses) {
  EXPECT_EQ(*ParseListen("node1:0"), std::make_pair(std::string("node1"), 0));
  EXPECT_EQ(*ParseListen("[::1]:29400"), std::make_pair(std::string("::1"), 29400));
}

TEST(ParseListen, RefusesWhatIsNoHostAndPort) {
  for (const char* text :
       {"", ":1", "node1", "node1:", "node1:x", "node1:65536", "node1:-1", "::1:29400", "[]:1"}) {
    EXPECT_EQ(ParseListen(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace muster::rendezvous
