#include "tests/support/peer_record.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <nlohmann/json.hpp>

#include "tests/support/files.h"

namespace muster::testing {
namespace {

using Json = nlohmann::json;

TEST(IsNear, LetsOnlyNumbersDiffer) {
  const Json losses = {{"how", "ended"}, {"losses", {5.5, 0.25}}};
  EXPECT_TRUE(IsNear(losses, {{"how", "ended"}, {"losses", {5.50001, 0.250001}}}, 1e-5));
  EXPECT_FALSE(IsNear(losses, {{"how", "ended"}, {"losses", {5.6, 0.25}}}, 1e-5));
  EXPECT_FALSE(IsNear(losses, {{"how", "waits"}, {"losses", {5.5, 0.25}}}, 1e-5));
  EXPECT_FALSE(IsNear(losses, {{"how", "ended"}, {"losses", {5.5}}}, 1e-5));
  EXPECT_FALSE(IsNear(losses, {}, 1e-5));
  EXPECT_TRUE(IsNear("a", "a", 0));
}

// A peer that does `runs` one after the other.
class PeerRecordTest : public ::testing::Test {
 protected:
  void SetUp() override { setenv("MUSTER_PEER_PYTHON", "/bin/true", 1); }
  void TearDown() override {
    unsetenv("MUSTER_PEER_PYTHON");
    unsetenv("MUSTER_TEST_PEERS");
  }
  Json Outcome(const char* source, const std::vector<Json>& runs, double tolerance = 0) {
    setenv("MUSTER_TEST_PEERS", source, 1);
    num_runs_ = 0;
    return record_.Outcome(
        "part", [&] { return runs.at(num_runs_++); }, tolerance);
  }

  const TemporaryDirectory directory_;
  const PeerRecord record_{directory_.File("peers/peer-1.json")};
  size_t num_runs_ = 0;
};

TEST_F(PeerRecordTest, RunsThePeerWhereThatIsAskedForAndNotOtherwise) {
  EXPECT_EQ(Outcome("record", {7}), 7);
  EXPECT_EQ(ReadFile(directory_.File("peers/peer-1.json")),
            "{\n\"RunsThePeerWhereThatIsAskedForAndNotOtherwise.part\": 7\n}\n");
  EXPECT_EQ(Outcome("", {}), 7);
  EXPECT_EQ(Outcome("live", {7}), 7);
  EXPECT_EQ(num_runs_, 1u);
}

TEST_F(PeerRecordTest, TriesAgainWhatFailsOrIsNotAsRecorded) {
  EXPECT_EQ(Outcome("record", {Json(), 7}), 7);
  EXPECT_EQ(Outcome("live", {Json(), 8, 7}), 7);
  EXPECT_EQ(Outcome("record", {8, 7}), 7);
  EXPECT_EQ(Outcome("", {}), 7);
}

TEST_F(PeerRecordTest, FailsWhereThePeerDoesAnotherThingAndWhereNothingIsKnown) {
  EXPECT_NONFATAL_FAILURE(Outcome("", {}), "is not recorded");
  EXPECT_NONFATAL_FAILURE(Outcome("record", {Json(), Json(), Json()}), "in 3 runs");
  EXPECT_FALSE(record_.HasOutcome("part"));
  EXPECT_EQ(Outcome("record", {7}), 7);
  EXPECT_TRUE(record_.HasOutcome("part"));
  EXPECT_NONFATAL_FAILURE(Outcome("live", {8, 8, 8}), "the peer does 8");
  EXPECT_EQ(Outcome("record", {8, 8, 8}), 8);
  EXPECT_EQ(Outcome("", {}), 8);
}

TEST_F(PeerRecordTest, LeavesWhatIsNearAsItStands) {
  EXPECT_EQ(Outcome("record", {0.5}), 0.5);
  EXPECT_EQ(Outcome("record", {0.500001}, 1e-5), 0.500001);
  EXPECT_EQ(Outcome("", {}), 0.5);
}

}  // namespace
}  // namespace muster::testing
