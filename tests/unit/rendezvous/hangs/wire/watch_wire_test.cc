#include "rendezvous/hangs/wire/watch_wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "proto/watch.pb.h"
#include "tests/unit/rendezvous/hangs/evidence/evidence_builder.h"

namespace muster::rendezvous {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

template <typename Value>
absl::StatusOr<hangs::NodeWord> WordThere(const Value& value) {
  proto::WatchWord message;
  Encode(hangs::NodeWord(value), &message);
  return Decode(message);
}
template <typename Value>
Value OrderThere(const Value& value) {
  proto::WatchOrder message;
  Encode(hangs::WatchOrder(value), &message);
  const auto back = Decode(message);
  EXPECT_TRUE(back.ok()) << back.status();
  return std::get<Value>(*back);
}

size_t BytesOf(const hangs::NodeWord& word) {
  proto::WatchWord message;
  Encode(word, &message);
  return message.ByteSizeLong();
}

hangs::NodeSummary FilledSummary() {
  hangs::NodeSummary summary{
      .round = Round(3),
      .hang_timeout = absl::Seconds(600),
      .ends_workers = true,
      .may_replace = true,
      .silent = {{8, 4, hangs::WatchPhase::kCheckpoint, absl::Milliseconds(5500)}}};
  summary.learned.counts = {{hangs::WatchPhase::kStep, 11, 12345}};
  summary.learned.longest[2] = absl::Seconds(7);
  summary.paces = {.window = 9, .own = {absl::Milliseconds(140), absl::ZeroDuration()}};
  summary.silence_at_start = absl::Seconds(7);
  summary.num_ended = 3;
  return summary;
}

// All that can be silent is, each for itself, and every bucket has been seen.
hangs::NodeSummary FullestSummary() {
  hangs::NodeSummary summary = FilledSummary();
  summary.silent.assign(1000, {100000, 100000, hangs::WatchPhase::kStart, absl::Hours(9999)});
  summary.paces.own.assign(1000, absl::Hours(9999));
  summary.learned.counts.clear();
  for (int phase = 0; phase < hangs::kNumWatchPhases; ++phase) {
    for (int bucket = 0; bucket < hangs::SilenceHistory::kNumBuckets; ++bucket) {
      summary.learned.counts.push_back(
          {static_cast<hangs::WatchPhase>(phase), bucket, int64_t{1} << 34});
    }
  }
  return summary;
}

hangs::RankReport FilledReport(int rank) {
  return {.rank = rank,
          .node = "node2",
          .pid = 12,
          .phase = "is in phase reduce",
          .step = 7,
          .silent_for = absl::Seconds(12),
          .told_by = hangs::ToldBy::kTorchStore,
          .doing = "asleep",
          .hold = hangs::Hold::kDisk,
          .frames = {"f", "main"},
          .no_frames = "\xff",
          .python = {"step at train.py:41", "\xff"}};
}

TEST(WatchOnTheWire, KeepsASummary) {
  const auto back = WordThere(FilledSummary());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(std::get<hangs::NodeSummary>(*back), FilledSummary());
}

TEST(WatchOnTheWire, ASummaryAtRestIsSmallAndTheFullestHasABound) {
  hangs::NodeSummary at_rest = FilledSummary();
  at_rest.silent.clear();
  EXPECT_LT(BytesOf(at_rest), 64u);
  EXPECT_LT(BytesOf(FullestSummary()), kWatchSummaryBytesMax);
  EXPECT_TRUE(WordThere(FullestSummary()).ok());
}

TEST(WatchOnTheWire, KeepsDetails) {
  hangs::EvidenceBuilder job(3);
  const int world = job.AddWorld();
  const int pair = job.AddGroup("pair", {hangs::kUnknownRank, 2});
  job.Waits(1, world, hangs::AllReduce(7)).Called(2, pair, hangs::Of(OperationKind::kSend, 4, 0));
  job.rank(2).life = hangs::Life::kStopped;
  job.rank(2).step = 9;
  job.rank(2).doing = "stopped";
  hangs::NodeDetails details{.question = 5, .summary = FilledSummary(), .is_held = true};
  details.summary.round = Round(2);
  job.rank(0).is_mute = true;
  details.evidence = job.Build();
  details.evidence.groups[1].is_on_device = true;
  details.gatherings = {{.name = "init_process_group",
                         .is_start = true,
                         .waiting = {0, 1, 2, 7},
                         .missing = {3, 5},
                         .silent_for = absl::Milliseconds(12345)},
                        {.name = "barrier '\xff'", .waiting = {1}, .missing = {0}}};
  const auto back = WordThere(details);
  ASSERT_TRUE(back.ok()) << back.status();
  const auto& there = std::get<hangs::NodeDetails>(*back);
  EXPECT_EQ(there.question, 5u);
  EXPECT_TRUE(there.is_held);
  EXPECT_EQ(there.evidence.round, Round(2));
  ASSERT_THAT(there.evidence.groups, SizeIs(2));
  EXPECT_EQ(there.evidence.groups[0].members, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(there.evidence.groups[1].members, (std::vector<int>{hangs::kUnknownRank, 2}));
  EXPECT_FALSE(there.evidence.groups[0].is_on_device);
  EXPECT_TRUE(there.evidence.groups[1].is_on_device);
  ASSERT_THAT(there.evidence.ranks, SizeIs(3));
  EXPECT_EQ(there.evidence.ranks[2].life, hangs::Life::kStopped);
  EXPECT_EQ(there.evidence.ranks[2].step, 9);
  EXPECT_TRUE(there.evidence.ranks[0].is_mute);
  EXPECT_FALSE(there.evidence.ranks[1].is_mute);
  EXPECT_EQ(there.gatherings, details.gatherings);
  EXPECT_EQ(there.evidence.ranks[1].groups[0].operations[0].chain, hangs::AllReduce(7).chain);
  EXPECT_EQ(Diagnose(there.evidence).Describe(), Diagnose(details.evidence).Describe());
}

TEST(WatchOnTheWire, LeavesOutWholeRanksWhereDetailsAreTooMany) {
  hangs::EvidenceBuilder job(200);
  const int world = job.AddWorld();
  for (int r = 0; r < 200; ++r) {
    for (int i = 0; i < (r == 0 ? 4000 : 300); ++i) job.Waits(r, world, hangs::AllReduce(i));
  }
  hangs::NodeDetails details{.summary = FilledSummary()};
  details.evidence = job.Build();
  EXPECT_LE(BytesOf(details), kWatchWordBytesMax);
  const auto back = WordThere(details);
  ASSERT_TRUE(back.ok()) << back.status();
  const auto& ranks = std::get<hangs::NodeDetails>(*back).evidence.ranks;
  ASSERT_FALSE(ranks.empty());
  EXPECT_EQ(ranks.front().rank, 1) << "rank 0 has too much for one";
  EXPECT_LT(ranks.size(), 199u);
  EXPECT_THAT(ranks.back().groups[0].operations, SizeIs(300));
}

// Half of one would say that the others have come.
TEST(WatchOnTheWire, LeavesOutAWholeGatheringWhereItIsTooLong) {
  hangs::NodeDetails details{.summary = FilledSummary()};
  hangs::Gathering scattered{.name = "barrier 'k'", .waiting = {0}};
  for (int rank = 1; rank < 2 * kRunsMax + 2; rank += 2) scattered.missing.push_back(rank);
  hangs::Gathering in_one_piece{.name = "barrier 'l'", .waiting = {0}};
  for (int rank = 1; rank < 10000; ++rank) in_one_piece.missing.push_back(rank);
  details.gatherings.assign(20, in_one_piece);
  details.gatherings.front() = scattered;
  EXPECT_LT(BytesOf(details), size_t{4} << 10);
  const auto back = WordThere(details);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(std::get<hangs::NodeDetails>(*back).gatherings,
            std::vector<hangs::Gathering>(hangs::kGatheringsMax, in_one_piece));
}

TEST(WatchOnTheWire, KeepsStacksWithinABound) {
  hangs::NodeStacks stacks{.question = 6, .round = Round(2), .has_moved = true};
  for (int r = 0; r < 3; ++r) stacks.ranks.push_back(FilledReport(r));
  const auto back = WordThere(stacks);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(std::get<hangs::NodeStacks>(*back).ranks, stacks.ranks);
  for (int r = 3; r < 30; ++r) {
    stacks.ranks.push_back(FilledReport(r));
    stacks.ranks.back().frames.assign(60, std::string(5000, 'f'));
  }
  EXPECT_LE(BytesOf(stacks), kWatchWordBytesMax);
}

TEST(WatchOnTheWire, KeepsAVerdict) {
  hangs::SayVerdict verdict{.question = 7,
                            .round = Round(2),
                            .reason = "it is late",
                            .action = "it is ended",
                            .since_detected = absl::Seconds(9),
                            .since_decided = absl::Milliseconds(1500),
                            .ranks = {FilledReport(3)},
                            .to_end = {3},
                            .replaces = true};
  verdict.diagnosis = {.finding = hangs::Finding::kNotCalled,
                       .culprits = {3},
                       .waiting = {0, 1, 2, 5, 7},
                       .words = "rank 3 has gone on",
                       .group = "world",
                       .operation = hangs::AllReduce(7),
                       .is_direct = false,
                       .path = {"one", "two"},
                       .spoke_for_it = {"this"},
                       .confidence = 0.8,
                       .can_heal = false,
                       .cause = hangs::Cause::kDataLoader};
  const hangs::SayVerdict back = OrderThere(verdict);
  EXPECT_EQ(back.question, 7u);
  EXPECT_EQ(back.diagnosis.Describe(), verdict.diagnosis.Describe());
  EXPECT_EQ(back.diagnosis.words, verdict.diagnosis.words);
  EXPECT_EQ(back.diagnosis.waiting, verdict.diagnosis.waiting);
  EXPECT_EQ(back.diagnosis.path, verdict.diagnosis.path);
  EXPECT_EQ(back.diagnosis.spoke_for_it, verdict.diagnosis.spoke_for_it);
  EXPECT_FALSE(back.diagnosis.can_heal);
  EXPECT_FALSE(back.diagnosis.is_direct);
  EXPECT_EQ(back.diagnosis.confidence, 0.8);
  EXPECT_EQ(back.diagnosis.cause, hangs::Cause::kDataLoader);
  EXPECT_EQ(back.reason, verdict.reason);
  EXPECT_EQ(back.action, verdict.action);
  EXPECT_EQ(back.since_detected, verdict.since_detected);
  EXPECT_EQ(back.since_decided, verdict.since_decided);
  EXPECT_EQ(back.ranks, verdict.ranks);
  EXPECT_EQ(back.to_end, verdict.to_end);
  EXPECT_TRUE(back.replaces);
}

TEST(WatchOnTheWire, KeepsWhenRanksCameToTheirCollectivesWithinABound) {
  EXPECT_EQ(OrderThere(hangs::AskArrivals{7, Round(2)}).question, 7u);
  hangs::NodeArrivals arrivals{.question = 7, .round = Round(2)};
  const hangs::ArrivalRow row{.sequence = 12,
                              .last_rank = 5,
                              .num_ranks = 4,
                              .last_ago = absl::Milliseconds(10),
                              .second_ago = absl::Milliseconds(210),
                              .first_ago = absl::Microseconds(213004)};
  arrivals.groups = {{.name = "0", .label = "default_pg", .is_on_device = true, .rows = {row}}};
  const auto back = std::get<hangs::NodeArrivals>(*WordThere(arrivals));
  EXPECT_EQ(back.question, 7u);
  EXPECT_EQ(back.round, Round(2));
  EXPECT_EQ(back.groups, arrivals.groups);
  arrivals.groups.assign(10, arrivals.groups[0]);
  for (auto& group : arrivals.groups) group.rows.assign(100, row);
  const auto bounded = std::get<hangs::NodeArrivals>(*WordThere(arrivals));
  EXPECT_EQ(bounded.groups.size(), hangs::kArrivalGroupsMax);
  EXPECT_EQ(bounded.groups[0].rows.size(), hangs::kArrivalRowsMax);
}

TEST(WatchOnTheWire, KeepsQuestionsNoticesAndRecoveries) {
  EXPECT_EQ(OrderThere(hangs::AskDetails{3, Round(4)}).question, 3u);
  const auto stacks = OrderThere(hangs::AskStacks{3, Round(4), {70000, 1}});
  EXPECT_EQ(stacks.round, Round(4));
  EXPECT_THAT(stacks.first, ElementsAre(70000, 1));
  const auto notice =
      OrderThere(hangs::SayNotice{Round(4), hangs::Finding::kCircle, "words", {1, 70000}});
  EXPECT_EQ(notice.finding, hangs::Finding::kCircle);
  EXPECT_THAT(notice.named, ElementsAre(1, 70000));
  EXPECT_EQ(notice.text, "words");
  EXPECT_EQ(OrderThere(hangs::SayRecovery{Round(4), "words"}).text, "words");
  const auto slow = OrderThere(hangs::SaySlow{Round(4), /*is_over=*/true, "words"});
  EXPECT_TRUE(slow.is_over);
  EXPECT_EQ(slow.text, "words");
}

hangs::RankCalls FilledCalls(int rank) {
  return {.rank = rank,
          .age = absl::Milliseconds(1300),
          .calls = {{.group = "0", .label = "default_pg", .operation = hangs::AllReduce(5)},
                    {.group = "7", .label = "tp \xff", .operation = hangs::AllReduce(6, 8192)}}};
}

TEST(WatchOnTheWire, KeepsWhatRanksCalledLastWithinABound) {
  const auto aborted = WordThere(hangs::RankAborted{Round(2), 5});
  ASSERT_TRUE(aborted.ok()) << aborted.status();
  EXPECT_EQ(std::get<hangs::RankAborted>(*aborted).round, Round(2));
  EXPECT_EQ(std::get<hangs::RankAborted>(*aborted).rank, 5);

  hangs::NodeLastCalls word{.round = Round(2), .aborted = {4, 5, 7}, .ranks = {FilledCalls(6)}};
  const auto back = WordThere(word);
  ASSERT_TRUE(back.ok()) << back.status();
  const auto& there = std::get<hangs::NodeLastCalls>(*back);
  EXPECT_EQ(there.round, Round(2));
  EXPECT_EQ(there.aborted, word.aborted);
  ASSERT_THAT(there.ranks, SizeIs(1));
  EXPECT_EQ(there.ranks[0].rank, 6);
  EXPECT_EQ(there.ranks[0].age, absl::Milliseconds(1300));
  ASSERT_THAT(there.ranks[0].calls, SizeIs(2));
  EXPECT_EQ(there.ranks[0].calls[1].group, "7");
  EXPECT_EQ(there.ranks[0].calls[1].label, "tp \xff");
  EXPECT_EQ(there.ranks[0].calls[1].operation.bytes, 8192);

  for (int rank = 7; rank < 1000; ++rank) {
    word.ranks.push_back(FilledCalls(rank));
    word.ranks.back().calls.assign(hangs::kLastCallsMax, word.ranks[0].calls[0]);
    word.ranks.back().calls[0].group = std::string(2000, 'g');
  }
  EXPECT_LE(BytesOf(word), kWatchWordBytesMax);
  EXPECT_TRUE(WordThere(word).ok());
}

TEST(WatchOnTheWire, KeepsWhatIsSaidOfAborts) {
  EXPECT_EQ(OrderThere(hangs::AskLastCalls{Round(4)}).round, Round(4));
  hangs::SayAborts say{.round = Round(4)};
  say.report = {.aborted = {3},
                .last = {{.label = "default_pg",
                          .operation = hangs::AllReduce(6),
                          .ranks = {0, 1, 2, 7},
                          .age = absl::Milliseconds(1300)}},
                .differences = {},
                .unknown = {4, 5}};
  say.report.differences.assign(
      2, {.label = "tp", .operation = hangs::AllReduce(7, 8), .ranks = {1}, .age = {}});
  const hangs::SayAborts back = OrderThere(say);
  EXPECT_EQ(back.round, Round(4));
  EXPECT_EQ(back.report.aborted, say.report.aborted);
  EXPECT_EQ(back.report.unknown, say.report.unknown);
  ASSERT_THAT(back.report.last, SizeIs(1));
  EXPECT_EQ(back.report.last[0].ranks, say.report.last[0].ranks);
  EXPECT_THAT(back.report.differences, SizeIs(2));
  EXPECT_EQ(hangs::InWords(back.report), hangs::InWords(say.report));
}

struct Damage {
  std::string field;
  std::function<void(proto::WatchWord&)> apply;
};
class DamagedWatchWord : public ::testing::TestWithParam<Damage> {};

TEST_P(DamagedWatchWord, IsRefusedByTheNameOfTheField) {
  proto::WatchWord message;
  GetParam().apply(message);
  const auto back = Decode(message);
  EXPECT_EQ(back.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(back.status().message().find(GetParam().field), absl::string_view::npos)
      << back.status();
}

INSTANTIATE_TEST_SUITE_P(
    Fields, DamagedWatchWord,
    ::testing::Values(
        Damage{"watch", [](auto&) {}},
        Damage{"watch.round", [](auto& m) { m.mutable_summary()->set_round(-1); }},
        Damage{"watch.hang_timeout", [](auto& m) { m.mutable_summary()->set_hang_timeout_ms(-1); }},
        Damage{"watch.num_ranks", [](auto& m) { m.mutable_summary()->add_silent(); }},
        Damage{"watch.silent",
               [](auto& m) {
                 for (int i = 0; i < 65; ++i) m.mutable_summary()->add_silent();
               }},
        Damage{"watch.phase",
               [](auto& m) {
                 auto* silent = m.mutable_summary()->add_silent();
                 silent->set_num_ranks(1);
                 silent->set_phase(99);
               }},
        Damage{"watch.bucket",
               [](auto& m) { m.mutable_summary()->add_learned()->set_bucket(1000); }},
        Damage{"watch.count", [](auto& m) { m.mutable_summary()->add_learned()->set_count(-5); }},
        Damage{"watch.longest",
               [](auto& m) {
                 for (int i = 0; i <= hangs::kNumWatchPhases; ++i)
                   m.mutable_summary()->add_longest_ms(1);
               }},
        Damage{"group.size", [](auto& m) { m.mutable_details()->add_groups()->set_size(1 << 30); }},
        Damage{"group.size",
               [](auto& m) {
                 for (int i = 0; i < 40; ++i) m.mutable_details()->add_groups()->set_size(1 << 17);
               }},
        Damage{"group.places",
               [](auto& m) {
                 auto* group = m.mutable_details()->add_groups();
                 group->set_size(1);
                 group->add_places(1);
                 group->add_members(0);
               }},
        Damage{"group.places", [](auto& m) { m.mutable_details()->add_groups()->add_places(0); }},
        Damage{"rank.life", [](auto& m) { m.mutable_details()->add_ranks()->set_life(99); }},
        Damage{"record.group",
               [](auto& m) { m.mutable_details()->add_ranks()->add_records()->set_group(0); }},
        Damage{"operation.kind",
               [](auto& m) {
                 m.mutable_details()->add_groups();
                 m.mutable_details()->add_ranks()->add_records()->add_operations()->set_kind(-1);
               }},
        Damage{"gatherings",
               [](auto& m) {
                 for (int i = 0; i < 9; ++i) m.mutable_details()->add_gatherings();
               }},
        Damage{"gathering.waiting",
               [](auto& m) { m.mutable_details()->add_gatherings()->add_waiting(1); }},
        Damage{"gathering.missing",
               [](auto& m) {
                 auto* gathering = m.mutable_details()->add_gatherings();
                 for (const int number : {3, 2, 4, 0}) gathering->add_missing(number);
               }},
        Damage{"gathering.silent",
               [](auto& m) { m.mutable_details()->add_gatherings()->set_silent_ms(-1); }},
        Damage{"report.rank", [](auto& m) { m.mutable_stacks()->add_ranks()->set_rank(-1); }},
        Damage{"aborted.rank", [](auto& m) { m.mutable_aborted()->set_rank(-1); }},
        Damage{"last_calls.rank",
               [](auto& m) { m.mutable_last_calls()->add_ranks()->set_rank(-1); }},
        Damage{"last_calls.calls", [](auto& m) {
                 auto* rank = m.mutable_last_calls()->add_ranks();
                 for (size_t i = 0; i <= hangs::kLastCallsMax; ++i) rank->add_calls();
               }}));

TEST(DamagedWatchOrder, IsRefused) {
  proto::WatchOrder message;
  EXPECT_FALSE(Decode(message).ok());
  message.mutable_notice()->set_finding(1000);
  EXPECT_FALSE(Decode(message).ok());
  message.mutable_verdict()->add_culprits(1);
  EXPECT_FALSE(Decode(message).ok()) << "no pair";
  message.mutable_verdict()->add_culprits(1 << 30);
  EXPECT_FALSE(Decode(message).ok()) << "too many";
  for (size_t i = 0; i <= hangs::kSameCallsMax; ++i) message.mutable_aborts()->add_last();
  EXPECT_FALSE(Decode(message).ok()) << "too many";
}

}  // namespace
}  // namespace muster::rendezvous
