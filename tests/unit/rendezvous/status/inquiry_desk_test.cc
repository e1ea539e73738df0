// Tests of who is asked, what is gathered, and what a member can do to it.
#include "rendezvous/status/inquiry_desk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace muster::status {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const JobKey kJob = {"", "j7"};
const AgentKey kAsker = {kJob, Incarnation(99)};

MonoTime At(double seconds) { return MonoTime::At(absl::Seconds(seconds)); }
AgentKey Agent(int node) { return {kJob, Incarnation(node)}; }

// Nodes 1..count with two ranks each.
std::vector<InquiredNode> Nodes(int count) {
  std::vector<InquiredNode> nodes;
  for (int i = 1; i <= count; ++i) {
    nodes.push_back({.agent = Incarnation(i),
                     .name = absl::StrCat("node", i),
                     .first_rank = 2 * (i - 1),
                     .num_ranks = 2});
  }
  return nodes;
}

std::vector<AskMember> Asked(const InquiryDesk::Orders& orders) {
  std::vector<AskMember> asked;
  for (const auto& order : orders) {
    if (const auto* ask = std::get_if<AskMember>(&order)) asked.push_back(*ask);
  }
  return asked;
}
// The only answer among `orders`.
InquiryAnswer AnswerIn(const InquiryDesk::Orders& orders) {
  std::vector<InquiryAnswer> answers;
  for (const auto& order : orders) {
    const auto* tell = std::get_if<TellAsker>(&order);
    if (tell == nullptr) continue;
    EXPECT_EQ(tell->to, kAsker);
    answers.push_back(tell->answer);
  }
  EXPECT_THAT(answers, SizeIs(1));
  return answers.empty() ? InquiryAnswer{} : answers.front();
}

class InquiryDeskTest : public ::testing::Test {
 protected:
  std::vector<AskMember> Ask(int num_nodes,
                             Inquiry inquiry = {.id = 5, .kind = InquiryKind::kStacks}) {
    orders_ = desk_.OnInquiry(kAsker, std::move(inquiry), kJob, Nodes(num_nodes), At(0));
    return Asked(orders_);
  }
  InquiryDesk::Orders Reply(int node, const AskMember& asked, const std::string& body) {
    return desk_.OnReply(Agent(node), {asked.inquiry.id, {.node = "a liar", .body = body}});
  }

  InquiryDesk desk_;
  InquiryDesk::Orders orders_;
};

TEST_F(InquiryDeskTest, AsksEveryNodeAndAnswersOnceAllHaveReplied) {
  const auto asked = Ask(2);
  ASSERT_THAT(asked, SizeIs(2));
  EXPECT_EQ(asked[0].to, Agent(1));
  EXPECT_THAT(Reply(1, asked[0], "one"), IsEmpty());
  const InquiryAnswer answer = AnswerIn(Reply(2, asked[1], "two"));
  EXPECT_EQ(answer.id, 5u);
  ASSERT_THAT(answer.parts, SizeIs(2));
  EXPECT_EQ(answer.parts[1].body, "two");
  EXPECT_EQ(desk_.num_open(), 0u);
  EXPECT_TRUE(desk_.NextDeadline().is_infinite());
}

TEST_F(InquiryDeskTest, SaysOfWhomAPartIsByItself) {
  const auto asked = Ask(1);
  const InquiryAnswer answer = AnswerIn(Reply(1, asked[0], "one"));
  EXPECT_EQ(answer.parts[0].node, "node1");
  EXPECT_EQ(answer.parts[0].num_ranks, 2);
}

TEST_F(InquiryDeskTest, NamesWhoHasNotAnsweredInTime) {
  const auto asked = Ask(2);
  Reply(1, asked[0], "one");
  EXPECT_THAT(desk_.Tick(At(12)), IsEmpty());
  EXPECT_EQ(desk_.NextDeadline(), At(13));
  const InquiryAnswer answer = AnswerIn(desk_.Tick(At(13)));
  EXPECT_TRUE(answer.parts[0].status.ok());
  EXPECT_THAT(std::string(answer.parts[1].status.message()),
              HasSubstr("its agent has not answered within 13s"));
  EXPECT_THAT(Reply(2, asked[1], "late"), IsEmpty());
}

TEST_F(InquiryDeskTest, DropsAnAnswerThatIsLongerThanItMayBe) {
  const auto asked = Ask(1);
  const InquiryAnswer answer =
      AnswerIn(Reply(1, asked[0], std::string(asked[0].inquiry.bytes_max + 1, 'x')));
  EXPECT_EQ(answer.parts[0].status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(answer.parts[0].body, "");
}

TEST_F(InquiryDeskTest, LeavesEachNodeLessTheMoreThereAre) {
  EXPECT_EQ(Ask(1)[0].inquiry.bytes_max, kInquiryPartBytesMax);
  const size_t of_thousand = Ask(1000)[0].inquiry.bytes_max;
  EXPECT_LE(1000 * of_thousand, kInquiryAnswerBytesMax);
  EXPECT_GE(of_thousand, kInquiryPartBytesMin);
}

TEST_F(InquiryDeskTest, TakesNoReplyOfStrangersAndNoSecondOne) {
  const auto asked = Ask(2);
  EXPECT_THAT(Reply(3, asked[0], "of a stranger"), IsEmpty());
  EXPECT_THAT(desk_.OnReply({{"", "another job"}, Incarnation(1)},
                            {asked[0].inquiry.id, {.body = "of another job"}}),
              IsEmpty());
  Reply(1, asked[0], "one");
  EXPECT_THAT(Reply(1, asked[0], "again"), IsEmpty());
  EXPECT_EQ(AnswerIn(Reply(2, asked[1], "two")).parts[0].body, "one");
}

TEST_F(InquiryDeskTest, AsksTheNodeOfARankAlone) {
  const auto asked = Ask(3, {.kind = InquiryKind::kStacks, .rank = 3});
  ASSERT_THAT(asked, SizeIs(1));
  EXPECT_EQ(asked[0].to, Agent(2));
  EXPECT_EQ(asked[0].inquiry.rank, 3);
}

TEST_F(InquiryDeskTest, RefusesARankThatTheJobDoesNotHave) {
  EXPECT_THAT(Ask(3, {.kind = InquiryKind::kStacks, .rank = 6}), IsEmpty());
  EXPECT_EQ(AnswerIn(orders_).status,
            absl::NotFoundError("the job has no rank 6 now: it has 6 ranks"));
}

TEST_F(InquiryDeskTest, DoesNotWaitForWhoCannotBeAsked) {
  auto nodes = Nodes(1);
  nodes[0].why_not = "its agent is not connected";
  const InquiryAnswer answer =
      AnswerIn(desk_.OnInquiry(kAsker, {.kind = InquiryKind::kStacks}, kJob, nodes, At(0)));
  EXPECT_EQ(answer.parts[0].status, absl::UnavailableError("its agent is not connected"));
}

TEST_F(InquiryDeskTest, DoesNotWaitForAnAgentThatIsGone) {
  Ask(1);
  const InquiryAnswer answer = AnswerIn(desk_.OnGone(Agent(1)));
  EXPECT_THAT(std::string(answer.parts[0].status.message()), HasSubstr("lost its connection"));
}

TEST_F(InquiryDeskTest, ForgetsWhatAnObserverAskedWhoIsGone) {
  const auto asked = Ask(1);
  EXPECT_THAT(desk_.OnGone(kAsker), IsEmpty());
  EXPECT_EQ(desk_.num_open(), 0u);
  EXPECT_THAT(Reply(1, asked[0], "late"), IsEmpty());
}

TEST_F(InquiryDeskTest, HasRoomForSoManyInquiriesOfAJob) {
  for (size_t i = 0; i < kInquiriesPerJobMax; ++i) ASSERT_THAT(Ask(1), SizeIs(1));
  EXPECT_THAT(Ask(1), IsEmpty());
  EXPECT_EQ(AnswerIn(orders_).status.code(), absl::StatusCode::kResourceExhausted);
  const JobKey other = {"", "j8"};
  EXPECT_THAT(desk_.OnInquiry({other, Incarnation(98)}, {.kind = InquiryKind::kStacks}, other,
                              Nodes(1), At(0)),
              SizeIs(1));
}

}  // namespace
}  // namespace muster::status
