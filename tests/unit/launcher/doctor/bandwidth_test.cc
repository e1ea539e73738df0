#include "launcher/doctor/bandwidth.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(PlanTurns, BringsEveryPairTogetherOnce) {
  for (const int num_nodes : {2, 3, 4, 5, 8, 17, 32}) {
    std::set<std::pair<int, int>> pairs;
    for (int self = 0; self < num_nodes; ++self) {
      const std::vector<int> turns = PlanTurns(num_nodes, self);
      for (size_t turn = 0; turn < turns.size(); ++turn) {
        if (turns[turn] < 0) continue;
        ASSERT_EQ(PlanTurns(num_nodes, turns[turn])[turn], self) << num_nodes;
        pairs.insert({self, turns[turn]});
      }
    }
    EXPECT_EQ(pairs.size(), static_cast<size_t>(num_nodes * (num_nodes - 1)));
  }
}

TEST(PlanTurns, AreNoMoreThanAManagebleNumber) {
  EXPECT_THAT(PlanTurns(500, 3), SizeIs(kMeasuringTurnsMax));
  EXPECT_THAT(PlanTurns(1, 0), ElementsAre(-1));
}

std::vector<Rate> AllPairs(int num_nodes, int slow_node) {
  std::vector<Rate> rates;
  for (int a = 0; a < num_nodes; ++a) {
    for (int b = 0; b < num_nodes; ++b) {
      if (a != b) rates.push_back({a, b, a == slow_node || b == slow_node ? 1e8 : 1e10});
    }
  }
  return rates;
}

TEST(JudgeRates, NamesTheNodeAllOfWhosePairsAreSlow) {
  const std::vector<Finding> findings = JudgeRates({"a", "b", "c", "d", "e"}, AllPairs(5, 3));
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].severity, Severity::kFault);
  EXPECT_THAT(findings[0].text,
              HasSubstr("d has at most 0.80 Gbit/s with any other node; usual is 80.00 Gbit/s"));
}

TEST(JudgeRates, NamesTheNodeThatIsSlowInOneDirection) {
  std::vector<Rate> rates = AllPairs(3, -1);
  for (Rate& rate : rates) {
    if (rate.from == 2) rate.bytes_per_second = 1e8;
  }
  EXPECT_THAT(JudgeRates({"a", "b", "c"}, rates)[0].text,
              HasSubstr("c sends at most 0.80 Gbit/s to any other node"));
  for (Rate& rate : rates) rate.bytes_per_second = rate.to == 0 ? 1e8 : 1e10;
  EXPECT_THAT(JudgeRates({"a", "b", "c"}, rates)[0].text,
              HasSubstr("a receives at most 0.80 Gbit/s from any other node"));
}

TEST(JudgeRates, SaysOnceThatNobodyHasAConnection) {
  std::vector<Rate> rates = AllPairs(3, -1);
  for (Rate& rate : rates) rate.bytes_per_second = 0;
  const std::vector<Finding> findings = JudgeRates({"a", "b", "c"}, rates);
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].severity, Severity::kWarning);
  EXPECT_EQ(findings[0].text, "a and b have no connection, nor has any other pair that was tried");
}

TEST(JudgeRates, NamesAPairWhoseNodesAreQuickElsewhere) {
  std::vector<Rate> rates = AllPairs(4, -1);
  rates[0].bytes_per_second = 0;
  const std::vector<Finding> findings = JudgeRates({"a", "b", "c", "d"}, rates);
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].severity, Severity::kWarning);
  EXPECT_THAT(findings[0].text, HasSubstr("a to b: no connection; usual is 80.00 Gbit/s"));
}

TEST(JudgeRates, IsContentWhereAllAreAlike) {
  EXPECT_EQ(JudgeRates({"a", "b"}, AllPairs(2, -1))[0].severity, Severity::kOk);
}

TEST(Rates, AreReadBack) {
  const std::vector<Rate> read = DecodeRates(Encode({{1, 2, 5.5}}));
  ASSERT_THAT(read, SizeIs(1));
  EXPECT_EQ(read[0].to, 2);
  EXPECT_EQ(read[0].bytes_per_second, 5.5);
  EXPECT_THAT(DecodeRates("{}"), IsEmpty());
  EXPECT_THAT(DecodeRates("[[1],[1,\"2\",3],7]"), IsEmpty());
}

}  // namespace
}  // namespace muster::launcher
