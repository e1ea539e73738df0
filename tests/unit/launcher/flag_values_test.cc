#include "launcher/flag_values.h"

#include <csignal>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/nearest_name.h"

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

TEST(ParseProcessesPerNode, NamesWhatIsAcceptedForAnUnknownWord) {
  EXPECT_EQ(Message(ParseProcessesPerNode("xpu")),
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

TEST(ParseEndpoint, ReadsHostsWithAndWithoutPort) {
  EXPECT_EQ(*ParseEndpoint("node1", 29400), (Endpoint{"node1", 29400}));
  EXPECT_EQ(*ParseEndpoint("node1:1", 29400), (Endpoint{"node1", 1}));
  EXPECT_EQ(*ParseEndpoint("localhost:0", 29400), (Endpoint{"localhost", 0}));
  EXPECT_EQ(*ParseEndpoint("[::1]:5", 29400), (Endpoint{"::1", 5}));
  EXPECT_EQ(*ParseEndpoint("[fe80::1%eth0]", 29400), (Endpoint{"fe80::1%eth0", 29400}));
  EXPECT_EQ(*ParseEndpoint("::1", 29400), (Endpoint{"::1", 29400}));
}

TEST(ParseEndpoint, RefusesBadPortsAndHosts) {
  for (const char* text : {"", ":", "a:", ":1", "a:b", "a:65536", "a:-1", "http://a:1", "[::1",
                           "[::1]1", "[x]:1", "a b", "a:1:2", "a,b:1"}) {
    EXPECT_FALSE(ParseEndpoint(text, 29400).ok()) << text;
  }
}

TEST(ParseEndpoint, ShowsWhereBracketsBelong) {
  EXPECT_THAT(Message(ParseEndpoint("::1:29400", 1)), HasSubstr("[::1]:29400"));
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
              HasSubstr("'FOO' is no signal to handle; expected SIGTERM, SIGINT"));
  EXPECT_THAT(Message(ParseSignals("KILL")), HasSubstr("SIGKILL cannot be handled"));
  EXPECT_THAT(Message(ParseSignals("SIGSTOP")), HasSubstr("SIGSTOP cannot be handled"));
  EXPECT_FALSE(ParseSignals("").ok());
}

TEST(ParseDuration, ReadsSecondsAndUnits) {
  EXPECT_EQ(*ParseDuration("30"), absl::Seconds(30));
  EXPECT_EQ(*ParseDuration("0.5"), absl::Milliseconds(500));
  EXPECT_EQ(*ParseDuration("500ms"), absl::Milliseconds(500));
  EXPECT_EQ(*ParseDuration("1h10m"), absl::Minutes(70));
  EXPECT_EQ(*ParseDuration("-1"), absl::Seconds(-1));
}

TEST(ParseDuration, RefusesWhatHasNoEndOrIsNoTime) {
  for (const char* text : {"", "inf", "-inf", "nan", "1e400", "soon", "10 minutes"}) {
    EXPECT_FALSE(ParseDuration(text).ok()) << text;
  }
}

TEST(ParseBool, UnderstandsTheUsualWords) {
  for (const char* yes : {"1", "true", "True", "YES", "on"}) EXPECT_TRUE(*ParseBool(yes)) << yes;
  for (const char* no : {"0", "false", "No", "off"}) EXPECT_FALSE(*ParseBool(no)) << no;
  for (const char* bad : {"", "2", "maybe"}) EXPECT_FALSE(ParseBool(bad).ok()) << bad;
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

TEST(NearestName, PrefersTheSmallestEditDistance) {
  EXPECT_EQ(NearestName("--nod_rank", {"--nnodes", "--node_rank"}), "--node_rank");
}

TEST(NearestName, CompletesWhatSomebodyAbbreviated) {
  EXPECT_EQ(NearestName("--nproc", {"--nnodes", "--nproc_per_node"}), "--nproc_per_node");
}

TEST(NearestName, StaysSilentWhenNothingIsNear) {
  EXPECT_EQ(NearestName("--learning_rate", {"--nnodes", "--node_rank"}), "");
  EXPECT_EQ(NearestName("", {"a"}), "");
}

}  // namespace
}  // namespace muster::launcher
