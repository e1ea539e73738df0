#include "rendezvous/client/directive_inbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/rendezvous.pb.h"
#include "rendezvous/link/wire.h"
#include "tests/support/status_matchers.h"

namespace muster::rendezvous {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

proto::Directive DirectiveOf(int64_t term, uint64_t revision) {
  proto::Directive message;
  Encode(Directive{.term = ServerTerm(term), .revision = revision}, &message);
  return message;
}

proto::Repeat RepeatOf(uint64_t revision, uint64_t sequence) {
  proto::Repeat message;
  message.set_revision(revision);
  message.set_report_sequence(sequence);
  return message;
}

TEST(DirectiveInbox, FillsARepeatFromTheLastDirectiveOfItsStream) {
  DirectiveInbox inbox;
  EXPECT_THAT(inbox.BeginStream(ServerTerm(5), "there:1"), IsOk());
  EXPECT_FALSE(inbox.Take(RepeatOf(1, 1)).has_value());
  const auto first = inbox.Take(DirectiveOf(5, 8));
  ASSERT_THAT(first, IsOk());
  ASSERT_TRUE(first->has_value());
  const std::optional<Directive> repeated = inbox.Take(RepeatOf(9, 77));
  ASSERT_TRUE(repeated.has_value());
  EXPECT_EQ(repeated->revision, 9u);
  EXPECT_EQ(repeated->report_sequence, 77u);
  EXPECT_EQ(repeated->body, (*first)->body);

  EXPECT_THAT(inbox.BeginStream(ServerTerm(5), "there:1"), IsOk());
  EXPECT_FALSE(inbox.Take(RepeatOf(10, 78)).has_value());
}

TEST(DirectiveInbox, HearsNoOlderServerThanItHasHeard) {
  DirectiveInbox inbox;
  EXPECT_THAT(inbox.BeginStream(ServerTerm(5), "there:1"), IsOk());
  ASSERT_THAT(inbox.Take(DirectiveOf(6, 1)), IsOk());
  EXPECT_EQ(inbox.term(), ServerTerm(6));
  const auto older = inbox.Take(DirectiveOf(5, 2));
  ASSERT_THAT(older, IsOk());
  EXPECT_FALSE(older->has_value());
  EXPECT_THAT(inbox.BeginStream(ServerTerm(5), "there:1"),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("there:1"), HasSubstr("older than term"))));
  EXPECT_EQ(inbox.term(), ServerTerm(6));
}

TEST(DirectiveInbox, RefusesWhatIsNoDirective) {
  DirectiveInbox inbox;
  EXPECT_THAT(inbox.Take(proto::Directive()).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, ::testing::_));
}

}  // namespace
}  // namespace muster::rendezvous
