#include "rendezvous/server/record_wire.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/core/round_restore.h"
#include "tests/unit/rendezvous/core/core_builders.h"
#include "tests/unit/rendezvous/link/filled_values.h"

namespace muster::rendezvous {
namespace {

using testing::HasSubstr;

// Every field differs from its default; one that is added fails to compile here until it is filled.
JobRecord FilledRecord() {
  const Incarnation one(1), two(2);
  Assignment first = FilledAssignment(), second = FilledAssignment();
  first.peers = Peers();
  second.peers = Peers();
  second.node_rank = NodeRank(4);
  JobRecord record;
  static_cast<RoundRecord&>(record) = {Round(1),
                                       2,
                                       Round(3),
                                       {two, one},
                                       {{one, FilledNode()}, {two, FilledNode()}},
                                       {{one, first}, {two, second}},
                                       {{"node1", "10.0.0.1", 2, {41, 42}}},
                                       {{"node1", "10.0.0.1", 2, {41, 42}, {"10.1.0.1"}}}};
  static_cast<ProgressRecord&>(record) = {
      FilledSettings(),
      "node1",
      JobPhase::kEnding,
      StopRound{Round(1), StopCause::kJobFailed, "a reason", true, 7},
      {{two, "node2"}},
      {one},
      3,
      4,
      5,
      6,
      7,
      {{"node2", {8, At(90), At(130)}}},
      900,
      10,
      StopStep{"maintenance", false, 12, 13},
      {{two, {"node2 was drained", 14}}},
      JobOutcome{11, "why", FilledFailure(), {FilledFailure()}}};
  const auto& [a, b, c, d, e, f, x, peers_for_node_0] = static_cast<const RoundRecord&>(record);
  const auto& [g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w] =
      static_cast<const ProgressRecord&>(record);
  (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h, (void)i, (void)j, (void)k;
  (void)l, (void)m, (void)n, (void)o, (void)p, (void)q, (void)r, (void)s, (void)t, (void)u;
  (void)v, (void)w, (void)x, (void)peers_for_node_0;
  return record;
}

absl::StatusOr<JobRecord> Again(const JobRecord& record, MonoTime kept, MonoTime read) {
  return DecodeRecord(EncodeRound(record), EncodeProgress(record, kept), read);
}

TEST(RecordOnDisk, KeepsEveryField) {
  const JobRecord record = FilledRecord();
  const auto back = Again(record, At(100), At(100));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(EncodeRound(*back), EncodeRound(record));
  EXPECT_EQ(EncodeProgress(*back, At(100)), EncodeProgress(record, At(100)));
  EXPECT_EQ(back->members, record.members);
  EXPECT_EQ(back->assignments, record.assignments);
  EXPECT_EQ(back->descriptions, record.descriptions);
  EXPECT_EQ(back->peers, record.peers);
  EXPECT_EQ(back->peers_for_node_0, record.peers_for_node_0);
  EXPECT_EQ(back->settings, record.settings);
  EXPECT_EQ(back->stop, record.stop);
  EXPECT_EQ(back->lost, record.lost);
  EXPECT_EQ(back->succeeded, record.succeeded);
  EXPECT_EQ(back->stop_step, record.stop_step);
  EXPECT_EQ(back->drained, record.drained);
  EXPECT_EQ(back->outcome, record.outcome);
  EXPECT_EQ(back->phase, record.phase);
  EXPECT_EQ(back->rounds_completed, record.rounds_completed);
  EXPECT_EQ(back->first_unused, record.first_unused);
  EXPECT_EQ(MarkOf(*back), MarkOf(record));
}

TEST(RecordOnDisk, CarriesInstantsToTheClockOfTheReader) {
  const auto back = Again(FilledRecord(), At(100), At(5000));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->histories.at("node2").last_change, At(4990));
  EXPECT_EQ(back->histories.at("node2").held_until, At(5030));
}

TEST(RecordOnDisk, IsRefusedWhereItContradictsItself) {
  JobRecord record = FilledRecord();
  record.outcome.reset();
  const auto back = Again(record, At(100), At(100));
  EXPECT_EQ(back.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(back.status().message()), HasSubstr("outcome is missing"));
}

TEST(RecordOnDisk, IsRefusedWithoutAPhase) {
  EXPECT_EQ(DecodeRecord("", "", At(0)).status().code(), absl::StatusCode::kDataLoss);
}

TEST(RecordOnDisk, IsRefusedIfItIsNoMessage) {
  EXPECT_EQ(DecodeRecord("\xff\xff\xff", "\xff", At(0)).status().code(),
            absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace muster::rendezvous
