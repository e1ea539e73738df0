// The bytes and the bounds of what is kept of a job are those of record_wire_form.txt.
// `record_wire_form_test --rewrite` writes what is found.
#include <gtest/gtest.h>

#include "proto/record.pb.h"
#include "rendezvous/server/record_wire.h"
#include "tests/unit/rendezvous/core/core_builders.h"
#include "tests/unit/rendezvous/link/filled_values.h"
#include "tests/unit/rendezvous/link/message_form.h"

namespace muster::rendezvous {
namespace {

JobRecord FilledRecord() {
  const Incarnation one(1), two(2);
  Assignment assignment = FilledAssignment();
  assignment.peers = Peers();
  JobRecord record;
  static_cast<RoundRecord&>(record) = {
      Round(1),
      2,
      Round(3),
      {two, one},
      {{one, FilledNode()}, {two, FilledNode()}},
      {{one, assignment}, {two, assignment}},
      {},
      {{"node1", "10.0.0.1", 2, {41, 42}, {"10.1.0.1"}}, {"node2", "10.0.0.2", 3}}};
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
      {{"node2", {8, At(90), At(130)}}, {"node3", {9, At(110), At(20)}}},
      900,
      10,
      StopStep{"maintenance", true, 12, 13},
      {{two, {"node2 was drained", 14}}},
      JobOutcome{11, "why", FilledFailure(), {FilledFailure()}}};
  return record;
}

std::string RoundBytes() { return EncodeRound(FilledRecord()); }
std::string ProgressBytes() { return EncodeProgress(FilledRecord(), At(100)); }

std::string AllForms() {
  proto::RoundRecord round;
  proto::ProgressRecord progress;
  EXPECT_TRUE(round.ParseFromString(RoundBytes()) && progress.ParseFromString(ProgressBytes()));
  const auto round_again = [](const auto& in) -> absl::StatusOr<std::string> {
    const auto record = DecodeRecord(in.SerializeAsString(), ProgressBytes(), At(100));
    if (!record.ok()) return record.status();
    return EncodeRound(*record);
  };
  const auto progress_again = [](const auto& in) -> absl::StatusOr<std::string> {
    const auto record = DecodeRecord(RoundBytes(), in.SerializeAsString(), At(100));
    if (!record.ok()) return record.status();
    return EncodeProgress(*record, At(100));
  };
  return absl::StrCat(FormOf("round", round, round_again),
                      FormOf("progress", progress, progress_again));
}

constexpr char kFile[] = "server/record_wire_form.txt";

TEST(RecordOnDisk, HasTheFormThatIsWrittenDown) {
  EXPECT_EQ(AllForms(), testing::ReadFile(FormFile(kFile)))
      << "if this is meant, run record_wire_form_test --rewrite";
}

}  // namespace
}  // namespace muster::rendezvous

int main(int argc, char** argv) {
  using namespace muster::rendezvous;
  return RunFormTest(argc, argv, kFile, AllForms);
}
