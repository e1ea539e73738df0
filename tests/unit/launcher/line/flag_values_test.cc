#include "launcher/line/flag_values.h"

#include <csignal>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

template <typename Value>
std::string Message(const absl::StatusOr<Value>& value) {
  EXPECT_EQ(value.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(value.status().message());
}

TEST(ParseNodeCount, ReadsANumberOrARange) {
  EXPECT_EQ(ParseNodeCount("4")->min, 4);
  EXPECT_EQ(ParseNodeCount("4")->max, 4);
  EXPECT_EQ(ParseNodeCount("2:8")->min, 2);
  EXPECT_EQ(ParseNodeCount("2:8")->max, 8);
}

TEST(ParseNodeCount, RefusesEverythingElse) {
  for (const char* text : {"", ":", "2:", ":2", "1:2:3", "x", "0", "0:2", "3:2", "-1", "1.5", " 2",
                           "+2", "2 ", "99999999999"}) {
    EXPECT_FALSE(ParseNodeCount(text).ok()) << text;
  }
}

TEST(ParseProcessesPerNode, ReadsNumbersKindsAndChosenGpus) {
  using Kind = ProcessesPerNode::Kind;
  EXPECT_EQ(ParseProcessesPerNode("8")->count, 8);
  EXPECT_EQ(ParseProcessesPerNode("auto")->kind, Kind::kAuto);
  EXPECT_EQ(ParseProcessesPerNode("cpu")->kind, Kind::kCpu);
  EXPECT_EQ(ParseProcessesPerNode("gpu")->kind, Kind::kGpu);
  EXPECT_EQ(ParseProcessesPerNode("gpu:1,3")->kind, Kind::kGpuList);
  EXPECT_THAT(ParseProcessesPerNode("gpu:1,GPU-ab12")->gpus, ElementsAre("1", "GPU-ab12"));
}

TEST(ParseProcessesPerNode, KnowsXpuAndAsksForTheNumber) {
  EXPECT_THAT(Message(ParseProcessesPerNode("xpu")), HasSubstr("Intel's GPUs are not counted"));
}

TEST(ParseProcessesPerNode, NamesWhatIsAcceptedForAnUnknownWord) {
  EXPECT_EQ(Message(ParseProcessesPerNode("tpu")),
            "expected a number, auto, cpu, gpu, or chosen GPUs such as gpu:1,3");
  EXPECT_FALSE(ParseProcessesPerNode("gpu:").ok());
  EXPECT_FALSE(ParseProcessesPerNode("gpu:1,,2").ok());
  EXPECT_FALSE(ParseProcessesPerNode("").ok());
}

TEST(ParseBackend, ExplainsWhatIsNotThere) {
  EXPECT_EQ(*ParseBackend("c10d"), RendezvousBackend::kC10d);
  EXPECT_THAT(Message(ParseBackend("etcd")), HasSubstr("not in this version"));
  EXPECT_THAT(Message(ParseBackend("etcd-v2")), HasSubstr("gone"));
  EXPECT_THAT(Message(ParseBackend("c1d")), HasSubstr("did you mean c10d?"));
}

TEST(ParseStreamSelection, ReadsOneCodeOrAMapWithAnyLocalRank) {
  EXPECT_EQ(ParseStreamSelection("3")->all, StreamSet::kBoth);
  const StreamSelection map = *ParseStreamSelection("0:1,11:2,123:0");
  EXPECT_EQ(map.For(0), StreamSet::kStdout);
  EXPECT_EQ(map.For(11), StreamSet::kStderr);
  EXPECT_EQ(map.For(1), StreamSet::kNone);
}

TEST(ParseStreamSelection, RefusesOtherText) {
  for (const char* text :
       {"", "4", "-1", "01", "0:4", "0:", ":1", "a:1", "-1:1", "0:1,", "0:1;1:1", "0:1,0:2"}) {
    EXPECT_FALSE(ParseStreamSelection(text).ok()) << text;
  }
}

TEST(ParseLocalRanks, SortsAndRefusesWhatIsNoRank) {
  EXPECT_THAT(*ParseLocalRanks("11, 2,2"), ElementsAre(2, 11));
  EXPECT_THAT(*ParseLocalRanks(""), IsEmpty());
  EXPECT_FALSE(ParseLocalRanks("1,x").ok());
  EXPECT_FALSE(ParseLocalRanks("1,-2").ok());
}

TEST(ParseFilters, TakesADoubledCommaForOne) {
  EXPECT_THAT(*ParseFilters("a,b"), ElementsAre("a", "b"));
  EXPECT_THAT(*ParseFilters("a,,b,c d"), ElementsAre("a,b", "c d"));
  EXPECT_THAT(*ParseFilters("a,,"), ElementsAre("a,"));
  EXPECT_THAT(*ParseFilters(",a"), ElementsAre("", "a"));
  EXPECT_THAT(*ParseFilters(""), IsEmpty());
}

TEST(ParseSignals, ReadsNamesWithAndWithoutSig) {
  EXPECT_THAT(*ParseSignals("SIGTERM,int,SIGTERM"), ElementsAre(SIGTERM, SIGINT));
}

TEST(ParseSignals, RefusesUnknownNamesAndWhatCannotBeHandled) {
  EXPECT_THAT(Message(ParseSignals("SIGTERM,FOO")),
              HasSubstr("'FOO' is not a signal that can be handled; expected SIGTERM, SIGINT"));
  EXPECT_THAT(Message(ParseSignals("KILL")), HasSubstr("SIGKILL cannot be handled"));
  EXPECT_THAT(Message(ParseSignals("SIGSTOP")), HasSubstr("SIGSTOP cannot be handled"));
  EXPECT_FALSE(ParseSignals("").ok());
}

TEST(ParsePortRange, ReadsTwoPorts) {
  EXPECT_EQ(*ParsePortRange("30000-30100"), (PortRange{30000, 30100}));
  for (const char* bad : {"", "30000", "a-b", "1-2-3", "0-5"}) {
    EXPECT_FALSE(ParsePortRange(bad).ok()) << bad;
  }
}

TEST(ParseNumaBinding, ListsTheChoices) {
  EXPECT_EQ(*ParseNumaBinding("core-complex"), NumaBinding::kCoreComplex);
  EXPECT_THAT(Message(ParseNumaBinding("nod")), HasSubstr("node, socket, exclusive, core-complex"));
}

}  // namespace
}  // namespace muster::launcher
