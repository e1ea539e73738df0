#include "rendezvous/client/report_outbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "proto/rendezvous.pb.h"

namespace muster::rendezvous {
namespace {

constexpr Incarnation kOwn(7);
constexpr ServerTerm kTerm(3);

class ReportOutboxTest : public ::testing::Test {
 protected:
  void Put(uint64_t sequence, AgentPhase phase = AgentPhase::kJoining) {
    outbox_.Put({.sequence = sequence, .phase = phase});
  }
  std::optional<proto::FromAgent> Next() {
    proto::FromAgent message;
    if (!outbox_.Next(now_, kOwn, kTerm, message)) return std::nullopt;
    return message;
  }
  static hangs::NodeWord SummaryOf(int round, absl::Duration hang_timeout) {
    return hangs::NodeSummary{.round = Round(round), .hang_timeout = hang_timeout};
  }

  ReportOutbox outbox_;
  MonoTime now_ = MonoNow();
};

TEST_F(ReportOutboxTest, SaysTheNewestReportInFullAndThenThatNothingHasChanged) {
  EXPECT_FALSE(Next());
  Put(1);
  Put(2);
  const auto first = Next();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->report().sequence(), 2u);
  EXPECT_FALSE(Next());
  Put(3);
  const auto renewal = Next();
  ASSERT_TRUE(renewal);
  EXPECT_TRUE(renewal->has_renewal());
  EXPECT_EQ(renewal->renewal().sequence(), 3u);
  Put(4, AgentPhase::kLeaving);
  const auto changed = Next();
  ASSERT_TRUE(changed);
  EXPECT_TRUE(changed->has_report());
}

TEST_F(ReportOutboxTest, RenewsAsOftenAsTheServerWantsAndSaysChangesAtOnce) {
  Put(1);
  ASSERT_TRUE(Next());
  outbox_.RenewEvery(absl::Seconds(10));
  now_ = now_ + absl::Seconds(8);
  Put(2);
  EXPECT_FALSE(Next());
  now_ = now_ + absl::Seconds(1);
  Put(3);
  EXPECT_TRUE(Next());
  Put(4, AgentPhase::kLeaving);
  EXPECT_TRUE(Next());
}

TEST_F(ReportOutboxTest, SaysAllInFullToTheServerOfANewStream) {
  Put(1);
  ASSERT_TRUE(Next());
  outbox_.RenewEvery(absl::Hours(1));
  outbox_.EndStream();
  outbox_.BeginStream();
  const auto again = Next();
  ASSERT_TRUE(again);
  EXPECT_TRUE(again->has_report());
  Put(2);
  EXPECT_TRUE(Next());  // it has not said yet how often
}

TEST_F(ReportOutboxTest, SendsTheFirstSummaryOfARoundAtOnceAndOfOthersTheNewestWithAReport) {
  Put(1);
  ASSERT_TRUE(Next());
  outbox_.RenewEvery(absl::Hours(1));
  outbox_.PutWord(SummaryOf(4, absl::Seconds(1)), /*has_stream=*/true);
  const auto first = Next();
  ASSERT_TRUE(first);
  EXPECT_TRUE(first->has_renewal());
  EXPECT_TRUE(first->has_watch());

  outbox_.PutWord(SummaryOf(4, absl::Seconds(2)), /*has_stream=*/true);
  outbox_.PutWord(SummaryOf(4, absl::Seconds(3)), /*has_stream=*/true);
  EXPECT_FALSE(Next());
  Put(2, AgentPhase::kLeaving);
  const auto later = Next();
  ASSERT_TRUE(later);
  EXPECT_TRUE(later->has_watch());
  Put(3);
  outbox_.RenewEvery(absl::ZeroDuration());
  const auto after = Next();
  ASSERT_TRUE(after);
  EXPECT_FALSE(after->has_watch());
}

TEST_F(ReportOutboxTest, SendsAbortsEachWithAReportAndKeepsNoneForAnotherStream) {
  Put(1);
  ASSERT_TRUE(Next());
  const auto abort = [&](bool has_stream) {
    outbox_.PutWord(hangs::RankAborted{.round = Round(4), .rank = 1}, has_stream);
  };
  abort(true);
  abort(true);
  EXPECT_TRUE(Next());
  EXPECT_TRUE(Next());
  EXPECT_FALSE(Next());

  abort(true);
  outbox_.EndStream();
  abort(false);
  outbox_.BeginStream();
  const auto report = Next();
  ASSERT_TRUE(report);
  EXPECT_FALSE(report->has_watch());
  EXPECT_FALSE(Next());

  for (int i = 0; i < 100; ++i) abort(true);
  int sent = 0;
  while (Next()) ++sent;
  EXPECT_EQ(sent, static_cast<int>(kMaxUnsentWatchWords));
}

}  // namespace
}  // namespace muster::rendezvous
