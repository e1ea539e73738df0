// The pure parts of the server's shell.
#include <gmock/gmock.h>
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

TEST(ParseMusterdCommand, ListensWhereItIsTold) {
  EXPECT_EQ(ParseMusterdCommand({}, {})->options.listen, (Endpoint{"localhost", 29400}));
  EXPECT_EQ(ParseMusterdCommand({"--listen=node1:0"}, {})->options.listen, (Endpoint{"node1", 0}));
  EXPECT_EQ(ParseMusterdCommand({"--listen", "[::1]:1"}, {})->options.listen, (Endpoint{"::1", 1}));
}

TEST(ParseMusterdCommand, RefusesWhatItCannotDo) {
  for (const char* text :
       {"", ":1", "node1", "node1:", "node1:x", "node1:65536", "node1:-1", "::1:29400", "[]:1"}) {
    const absl::Status status = ParseMusterdCommand({std::string("--listen=") + text}, {}).status();
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("expected HOST:PORT")) << text;
  }
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"--lease=0"},
                                             {"--lease=2h"},
                                             {"--tls=maybe"},
                                             {"--log_format=xml"},
                                             {"--listn=a:1"},
                                             {"x"},
                                             {"--token_dir=d", "--token_file=f"}}) {
    EXPECT_EQ(ParseMusterdCommand(args, {}).status().code(), absl::StatusCode::kInvalidArgument)
        << args.front();
  }
}

TEST(ParseMusterdCommand, ReadsItsOptions) {
  const absl::StatusOr<MusterdCommand> command = ParseMusterdCommand(
      {"--lease=2.5", "--tls=off", "--log_format=json", "--port_file=p", "--token_dir=d"}, {});
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_EQ(command->options.lease, absl::Seconds(2.5));
  EXPECT_EQ(command->options.tls, TlsMode::kOff);
  EXPECT_EQ(command->options.log_format, log::Format::kJson);
  EXPECT_EQ(command->options.port_file, "p");
  EXPECT_EQ(command->options.token_dir, "d");
  EXPECT_THAT(ParseMusterdCommand({"--help"}, {})->print,
              ::testing::HasSubstr("--token_file=FILE"));
}

}  // namespace
}  // namespace muster::rendezvous
