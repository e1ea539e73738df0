#include "launcher/hosts/host_file.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

HostEntry All(const std::string& host, int slots) {
  HostEntry entry{.host = host};
  for (int slot = 0; slot < slots; ++slot) entry.slots.push_back(slot);
  return entry;
}

HostEntry Some(const std::string& host, std::vector<int> slots) {
  return {.host = host, .slots = std::move(slots), .are_all_slots = false};
}

std::string WhyNot(const std::string& text) {
  const absl::Status status = ParseHostFile(text).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(status.message());
}

const std::vector<HostEntry>& Workers() {
  static const std::vector<HostEntry> workers = {All("worker-0", 4), All("worker-1", 4)};
  return workers;
}

std::string WhyNotChosen(const HostChoice& choice) {
  const absl::Status status = ChooseHosts(Workers(), choice).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(ParseHostFile, ReadsHostsAndTheirSlots) {
  EXPECT_THAT(*ParseHostFile("node0 slots=4\nnode1 slots=2\n"),
              ElementsAre(All("node0", 4), All("node1", 2)));
  EXPECT_THAT(*ParseHostFile("# all\n\n  me@a.b\tslots=1  # one\r\n"),
              ElementsAre(All("me@a.b", 1)));
  EXPECT_THAT(*ParseHostFile("\xef\xbb\xbfnode0 slots=4\n"), ElementsAre(All("node0", 4)));
}

// DeepSpeed reads no further than the slots.
TEST(ParseHostFile, TakesTheMaxSlotsOfOpenMpisFiles) {
  EXPECT_THAT(*ParseHostFile("a slots=2 max_slots=4\nb slots=1 max-slots=1 # one\n"),
              ElementsAre(All("a", 2), All("b", 1)));
}

TEST(ParseHostFile, NamesTheLineThatItCannotRead) {
  EXPECT_THAT(WhyNot("a slots=1\nb\n"), HasSubstr("line 2: 'b': expected 'HOST slots=N'"));
  EXPECT_THAT(WhyNot("a slots=0"), HasSubstr("line 1"));
  EXPECT_THAT(WhyNot("a slots=x"), HasSubstr("line 1"));
  EXPECT_THAT(WhyNot("a slots=1 b slots=2"), HasSubstr("line 1"));
  EXPECT_THAT(WhyNot("a slots=1 max_slots=x"), HasSubstr("line 1"));
  EXPECT_THAT(WhyNot("a slots=1\na slots=2"), HasSubstr("a is listed twice"));
  EXPECT_THAT(WhyNot("\n#\n"), HasSubstr("lists no host"));
}

TEST(ParseHostFile, TakesNoOptionOfSshForAHost) {
  EXPECT_THAT(WhyNot("-oProxyCommand=reboot slots=1"), HasSubstr("not the name of a host"));
  EXPECT_THAT(WhyNot("a@-oProxyCommand slots=1"), HasSubstr("not the name of a host"));
  EXPECT_THAT(WhyNot("$(reboot)@a slots=1"), HasSubstr("not the name of a host"));
}

TEST(ChooseHosts, TakesAllWithoutAChoice) {
  EXPECT_THAT(*ChooseHosts(Workers(), {}), ElementsAre(All("worker-0", 4), All("worker-1", 4)));
}

TEST(ChooseHosts, IncludesHostsAndSlots) {
  EXPECT_THAT(*ChooseHosts(Workers(), {.include = "worker-1:2,0@worker-0"}),
              ElementsAre(All("worker-0", 4), Some("worker-1", {0, 2})));
  EXPECT_THAT(*ChooseHosts(Workers(), {.include = "worker-1"}), ElementsAre(All("worker-1", 4)));
}

// Source: DeepSpeed 0.19, parse_node_config_list.
TEST(ChooseHosts, MergesTheSlotsOfAHostThatIsNamedAgain) {
  EXPECT_THAT(*ChooseHosts(Workers(), {.include = "worker-0:1@worker-0:0,1"}),
              ElementsAre(Some("worker-0", {0, 1})));
  EXPECT_THAT(*ChooseHosts(Workers(), {.include = "worker-0@worker-1:3@worker-0:2"}),
              ElementsAre(Some("worker-0", {2}), Some("worker-1", {3})));
  EXPECT_THAT(*ChooseHosts(Workers(), {.include = "worker-0@worker-0"}),
              ElementsAre(All("worker-0", 4)));
  EXPECT_THAT(*ChooseHosts(Workers(), {.exclude = "worker-1:0@worker-1:2,0"}),
              ElementsAre(All("worker-0", 4), Some("worker-1", {1, 3})));
}

TEST(ChooseHosts, ExcludesHostsAndSlots) {
  EXPECT_THAT(*ChooseHosts(Workers(), {.exclude = "worker-1:0"}),
              ElementsAre(All("worker-0", 4), Some("worker-1", {1, 2, 3})));
  EXPECT_THAT(*ChooseHosts(Workers(), {.exclude = "worker-0"}), ElementsAre(All("worker-1", 4)));
}

TEST(ChooseHosts, TakesTheFirstNodesAndSlots) {
  EXPECT_THAT(*ChooseHosts(Workers(), {.num_nodes = 1}), ElementsAre(All("worker-0", 4)));
  EXPECT_THAT(*ChooseHosts(Workers(), {.num_gpus = 2}),
              ElementsAre(Some("worker-0", {0, 1}), Some("worker-1", {0, 1})));
}

TEST(ChooseHosts, SaysWhatIsNotThere) {
  EXPECT_THAT(WhyNotChosen({.include = "worker-2"}),
              HasSubstr("--include=worker-2: worker-2 is not in the host file"));
  EXPECT_THAT(WhyNotChosen({.exclude = "worker-0:4"}), HasSubstr("has no slot 4"));
  EXPECT_THAT(WhyNotChosen({.include = "worker-0:"}), HasSubstr("numbers of slots"));
  EXPECT_THAT(WhyNotChosen({.include = "@"}), HasSubstr("expected HOST"));
  EXPECT_THAT(WhyNotChosen({.exclude = "worker-0@worker-1"}), HasSubstr("leaves no host"));
  EXPECT_THAT(WhyNotChosen({.include = "a", .exclude = "b"}), HasSubstr("cannot both"));
  EXPECT_THAT(WhyNotChosen({.include = "worker-0", .num_nodes = 1}), HasSubstr("beside"));
  EXPECT_THAT(WhyNotChosen({.num_nodes = 3}), HasSubstr("--num_nodes=3"));
  EXPECT_THAT(WhyNotChosen({.num_gpus = 5}), HasSubstr("--num_gpus=5: worker-0 has 4 slots"));
}

}  // namespace
}  // namespace muster::launcher
