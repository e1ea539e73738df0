// Scripts as guides have them, unmodified, on PyTorch of PyPI and of Debian: where their process
// groups meet, and what is said of one that waits in vain (agent/watch/torch_hook.py,
// group_calls.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/job_under_test.h"
#include "tests/support/loopback_port.h"
#include "tests/support/node_network.h"
#include "tests/support/peer_python.h"
#include "tests/support/peer_record.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kPatience = absl::Seconds(170);
constexpr char kDebianPython[] = "/usr/bin/python3";

std::string Script() {
  return absl::StrCat(kSourceDirectory, "/tests/integration/programs/first_contact.py");
}

// What the ranks say, in the order of the alphabet: they write at the same time.
std::multiset<std::string> RankLines(const SubprocessResult& result) {
  std::multiset<std::string> lines;
  for (const absl::string_view line : absl::StrSplit(result.out, '\n')) {
    if (absl::StartsWith(line, "rank ")) lines.insert(std::string(line));
  }
  return lines;
}

// Both PyTorchs.
class FirstContact : public JobTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    if (python().empty()) GTEST_SKIP() << kNoPeerPython;
    const SubprocessResult has_torch =
        StartProgram(
            {python(), "-c",
             "import importlib.util, sys; sys.exit(not importlib.util.find_spec('torch'))"})
            .Wait(kPatience);
    if (has_torch.exit_code != 0) GTEST_SKIP() << python() << " has no PyTorch";
  }
  static std::string python() {
    return std::string(GetParam()) == "Debians" ? kDebianPython : PeerPython();
  }
  static Environment Changes() { return {{"PYTHON_EXEC", python()}, {"GLOO_SOCKET_IFNAME", "lo"}}; }
  SubprocessResult UnderMuster(const Arguments& rest) const {
    return Start(Arguments{"run"} + rest, Changes()).Wait(kPatience);
  }
  std::string tcp() const { return absl::StrCat("tcp://127.0.0.1:", free_port_.number()); }
  std::string free_port() const { return absl::StrCat(free_port_.number()); }

 private:
  LoopbackPort free_port_;
};

std::multiset<std::string> MeetingsOf(int world_size) {
  std::multiset<std::string> lines;
  for (int rank = 0; rank < world_size; ++rank) {
    for (const char* what : {"tutorial", "again", "launcher", "tutorial, again", "tcp", "file"}) {
      lines.insert(absl::StrCat("rank ", rank, " ", what, ": ", rank, " of ", world_size));
    }
  }
  return lines;
}

// torchrun with PyTorch 2.15 waits half an hour for the first of these groups.
TEST_P(FirstContact, RanksMeetWhateverAddressTheScriptHasWritten) {
  const SubprocessResult result =
      UnderMuster({"--nproc_per_node=2", Script(), "meetings", directory(), tcp()});
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_EQ(RankLines(result), MeetingsOf(2));
  EXPECT_THAT(result.err, HasSubstr("the script asks for localhost:12355 as its master; "
                                    "its 2 ranks meet at the launcher's store"));
  EXPECT_THAT(result.err, HasSubstr("the script asks for localhost:12356"));
}

// Machines of their own, to which `localhost` is each itself; by tcp:// too, and without the watch.
TEST_P(FirstContact, RanksOfTwoMachinesMeetAlsoByLocalhost) {
  if (!NodeNetwork::IsPossible()) GTEST_SKIP() << "network namespaces need root and iproute2";
  const NodeNetwork network(2);
  Environment changes = Changes();
  changes["GLOO_SOCKET_IFNAME"] = "eth0";
  std::vector<Subprocess> agents;
  for (const int node : {1, 2}) {
    agents.push_back(StartProgram(
        network.On(node, {MusterBinary(), "run", "--nnodes=2",
                          absl::StrCat("--node_rank=", node - 1), "--nproc_per_node=1",
                          "--watch=off", absl::StrCat("--master_addr=", network.AddressOf(1)),
                          absl::StrCat("--local_addr=", network.AddressOf(node)), Script(),
                          "meetings", directory(), "tcp://localhost:12357"}),
        changes));
  }
  std::multiset<std::string> lines;
  for (Subprocess& agent : agents) {
    const SubprocessResult result = agent.Wait(kPatience);
    EXPECT_THAT(result, ExitsWith(0));
    lines.merge(RankLines(result));
  }
  EXPECT_EQ(lines, MeetingsOf(2));
}

// It prints as many lines as by Python alone, which knows of no launcher.
TEST_P(FirstContact, AScriptThatSpawnsItsRanksRunsAsByItself) {
  if (std::string(GetParam()) == "Debians") {  // imports quickly
    const SubprocessResult alone =
        StartProgram({python(), Script(), "spawn", free_port()}, Changes()).Wait(kPatience);
    EXPECT_THAT(alone, ExitsWith(0));
    EXPECT_EQ(RankLines(alone).size(), 3u);
  }
  const SubprocessResult ours = UnderMuster({"--nproc_per_node=1", Script(), "spawn", free_port()});
  EXPECT_THAT(ours, ExitsWith(0));
  EXPECT_EQ(RankLines(ours).size(), 3u);
  EXPECT_THAT(ours.out, AllOf(HasSubstr("spawned: 0 of 2"), HasSubstr("spawned: 1 of 2")));
  EXPECT_THAT(ours.err,
              HasSubstr(absl::StrCat("a group of 2 ranks that the script makes by itself meets at "
                                     "localhost:",
                                     free_port(), ", where its rank 0 listens")));
}

TEST_P(FirstContact, AWorkerMayMakeAGroupOfItsOwn) {
  const SubprocessResult result =
      UnderMuster({"--nproc_per_node=2", Script(), "alone", free_port()});
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_EQ(RankLines(result),
            (std::multiset<std::string>{"rank 0 alone: 0 of 1", "rank 0 alone: 0 of 1"}));
}

TEST_P(FirstContact, WhoWaitsInVainIsToldWithHostAndPort) {
  const LoopbackPort refused;
  Subprocess agent = Start(
      {"run", "--nproc_per_node=4", Script(), "waits", absl::StrCat(refused.number()), free_port()},
      Changes());
  EXPECT_TRUE(agent.WaitForOutput(
      absl::StrCat("in init_process_group: nothing listens at localhost:", refused.number(),
                   " (connection refused); waiting for rank 0"),
      kPatience));
  EXPECT_TRUE(agent.WaitForOutput(absl::StrCat("in init_process_group at localhost:", free_port(),
                                               "; waiting for rank 1 of that group of 2 ranks"),
                                  kPatience));
  EXPECT_TRUE(agent.WaitForOutput(
      absl::StrCat("in TCPStore: nothing listens at localhost:", refused.number()), kPatience));
  agent.Signal(SIGTERM);
  EXPECT_THAT(agent.Wait(kPatience).err, Not(HasSubstr("rank 2 has")));
}

INSTANTIATE_TEST_SUITE_P(OnPyTorch, FirstContact, ::testing::Values("OfPyPI", "Debians"),
                         [](const auto& info) { return std::string(info.param); });

class FirstContactBesideTorchrun : public JobTest {};

TEST_F(FirstContactBesideTorchrun, FeaturesOfDdpDoTheSame) {
  const std::string python = PeerPython();
  if (python.empty()) GTEST_SKIP() << kNoPeerPython;
  const Environment changes = {{"PYTHON_EXEC", python}, {"GLOO_SOCKET_IFNAME", "lo"}};
  const Arguments line = {"--nproc_per_node=2", Script(), "features"};
  const SubprocessResult ours = Start(Arguments{"run"} + line, changes).Wait(kPatience);
  const nlohmann::json theirs = PeerRecord("torchrun", "torch").Outcome("", [&] {
    const SubprocessResult result =
        StartProgram(Arguments{python, "-m", "torch.distributed.run"} + line, changes)
            .Wait(kPatience);
    return HasSucceeded(result) ? nlohmann::json(RankLines(result)) : nlohmann::json();
  });
  EXPECT_THAT(ours, ExitsWith(0));
  EXPECT_EQ(nlohmann::json(RankLines(ours)), theirs);
  EXPECT_EQ(RankLines(ours).size(), 10u);
}

}  // namespace
}  // namespace muster::testing
