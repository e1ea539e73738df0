#include "launcher/schedulers/node_list.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::vector<std::string> Expand(const std::string& text) {
  const absl::StatusOr<std::vector<std::string>> nodes = ExpandNodeList(text);
  EXPECT_TRUE(nodes.ok()) << text << ": " << nodes.status();
  return nodes.value_or(std::vector<std::string>{});
}

std::string WhyNot(const std::string& text) {
  const absl::Status status = ExpandNodeList(text).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(status.message());
}

TEST(ExpandNodeList, KeepsPlainNamesInTheirOrder) {
  EXPECT_THAT(Expand("n1"), ElementsAre("n1"));
  EXPECT_THAT(Expand("b,a.cluster,c-1"), ElementsAre("b", "a.cluster", "c-1"));
}

TEST(ExpandNodeList, ExpandsRangesWithTheWidthOfTheirFirstNumber) {
  EXPECT_THAT(Expand("gpu[001-003,7],x"), ElementsAre("gpu001", "gpu002", "gpu003", "gpu7", "x"));
  EXPECT_THAT(Expand("n[8-11]"), ElementsAre("n8", "n9", "n10", "n11"));
  EXPECT_THAT(Expand("n[08-11]"), ElementsAre("n08", "n09", "n10", "n11"));
  EXPECT_THAT(Expand("n[0]"), ElementsAre("n0"));
}

TEST(ExpandNodeList, ChangesTheLastOfSeveralBracketsFirst) {
  EXPECT_THAT(Expand("r[1-2]n[0-1]-ib"), ElementsAre("r1n0-ib", "r1n1-ib", "r2n0-ib", "r2n1-ib"));
}

TEST(ExpandNodeList, SaysWhatIsWrongWithAList) {
  EXPECT_THAT(WhyNot("n[1-2"), HasSubstr("']'"));
  EXPECT_THAT(WhyNot("n[2-1]"), HasSubstr("2-1"));
  EXPECT_THAT(WhyNot("n[a-b]"), HasSubstr("a-b"));
  EXPECT_THAT(WhyNot("n[1-9999999]"), HasSubstr("more than 100000"));
  EXPECT_THAT(WhyNot("n[1-999][1-999]"), HasSubstr("more than 100000"));
  EXPECT_THAT(WhyNot("n[99999999999999999999]"), HasSubstr("numbers"));
  EXPECT_THAT(WhyNot(""), HasSubstr("names of nodes"));
  EXPECT_THAT(WhyNot("a,,b"), HasSubstr("names of nodes"));
  EXPECT_THAT(WhyNot("a b"), HasSubstr("names of nodes"));
  EXPECT_THAT(WhyNot("[1-3]]"), HasSubstr("names of nodes"));
}

TEST(ExpandCounts, RepeatsACountForItsNodes) {
  EXPECT_THAT(*ExpandCounts("2(x3),1"), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(*ExpandCounts("8"), ElementsAre(8));
  EXPECT_THAT(*ExpandCounts("1(x100000)"), SizeIs(100000));
  for (const char* bad :
       {"", "x", "2(x", "2(x)", "2(x3", "2(3)", "-1", "2(x0)", "1(x100001)", "2(x3)4"}) {
    EXPECT_FALSE(ExpandCounts(bad).ok()) << bad;
  }
}

TEST(ReadHostPerSlot, NamesEachHostOnceWhereItIsNamedFirst) {
  EXPECT_THAT(*ReadHostPerSlot("h2\nh2\nh1\r\nh2\n"),
              ElementsAre(HostSlots{"h2", 3}, HostSlots{"h1", 1}));
  EXPECT_THAT(*ReadHostPerSlot("10.0.0.1 10.0.0.2"),
              ElementsAre(HostSlots{"10.0.0.1", 1}, HostSlots{"10.0.0.2", 1}));
  EXPECT_FALSE(ReadHostPerSlot(" \n").ok());
  EXPECT_FALSE(ReadHostPerSlot("h1 $(reboot)").ok());
}

TEST(ReadHostsWithCounts, ReadsPairs) {
  EXPECT_THAT(*ReadHostsWithCounts("h1 8 h2 4"),
              ElementsAre(HostSlots{"h1", 8}, HostSlots{"h2", 4}));
  for (const char* bad : {"", "h1", "h1 0", "h1 x", "h1 8 h2", "h1 -1"}) {
    EXPECT_FALSE(ReadHostsWithCounts(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace muster::launcher
