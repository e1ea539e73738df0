// Programs of the newest PyTorch from PyPI under `muster run`: the same output as under its own
// torchrun, as it is recorded (support/peer_record.h). Skipped without that PyTorch (`deploy/dev
// deps --peers`).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/integration/several_nodes.h"
#include "tests/support/files.h"
#include "tests/support/peer_python.h"
#include "tests/support/peer_record.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Json = nlohmann::json;

// PyTorch takes a while to import, most of all beside other tests on a small machine.
constexpr absl::Duration kPatienceWithTorch = absl::Seconds(170);
constexpr double kTolerance = 1e-5;
constexpr char kDebianPython[] = "/usr/bin/python3";

std::string Program(const std::string& name) {
  return absl::StrCat(kSourceDirectory, "/tests/integration/programs/", name);
}

// What the ranks themselves say, in the order of the alphabet: ranks write at the same time. A
// number at the end stands apart: a processor with other instructions rounds otherwise.
Json RankLines(const SubprocessResult& result) {
  std::vector<std::string> lines;
  for (const absl::string_view line : absl::StrSplit(result.out, '\n')) {
    if (absl::StartsWith(line, "rank ")) lines.emplace_back(line);
  }
  std::sort(lines.begin(), lines.end());
  Json all = Json::array();
  for (const std::string& line : lines) {
    const size_t last = line.rfind(' ');
    double number = 0;
    if (absl::StrContains(line.substr(last), '.') &&
        absl::SimpleAtod(line.substr(last + 1), &number)) {
      all.push_back({line.substr(0, last), number});
    } else {
      all.push_back(line);
    }
  }
  return all;
}

class TorchPeers : public SeveralNodes {
 protected:
  void SetUp() override {
    SeveralNodes::SetUp();
    if (python_.empty()) {
      GTEST_SKIP() << kNoPeerPython;
    }
  }
  Environment Changes(const std::string& python) const {
    return {{"PYTHON_EXEC", python}, {"GLOO_SOCKET_IFNAME", "lo"}};
  }
  SubprocessResult UnderMuster(const Arguments& rest, const std::string& python) const {
    return Start(Arguments{"run"} + rest, Changes(python)).Wait(kPatienceWithTorch);
  }
  SubprocessResult UnderMuster(const Arguments& rest) const { return UnderMuster(rest, python_); }
  const std::string python_ = PeerPython();
};

class TorchProgram : public TorchPeers, public ::testing::WithParamInterface<const char*> {};

TEST_P(TorchProgram, RunsAsUnderTorchrun) {
  const auto arguments = [&](const std::string& by) {
    return Arguments{"--nproc_per_node=2", Program("peer_programs.py"), GetParam(),
                     absl::StrCat(directory(), "/", by)};
  };
  const SubprocessResult ours = UnderMuster(arguments("muster"));
  if (absl::StrContains(ours.out, "not installed:")) GTEST_SKIP() << ours.out;
  const auto by_torchrun = [&] {
    const SubprocessResult result =
        StartProgram(Arguments{python_, "-m", "torch.distributed.run"} + arguments("torchrun"),
                     Changes(python_))
            .Wait(kPatienceWithTorch);
    return HasSucceeded(result) ? RankLines(result) : Json();
  };
  const Json theirs = PeerRecord("torchrun", "torch").Outcome("", by_torchrun, kTolerance);
  EXPECT_THAT(ours, ExitsWith(0));
  EXPECT_TRUE(IsNear(RankLines(ours), theirs, kTolerance)) << RankLines(ours) << theirs;
  EXPECT_THAT(RankLines(ours), Not(IsEmpty()));
}

INSTANTIATE_TEST_SUITE_P(OfPyTorch, TorchProgram,
                         ::testing::Values("ddp", "fsdp1", "fsdp2", "pipelining",
                                           "rank_0_ends_early", "torchft"),
                         [](const auto& info) { return std::string(info.param); });
INSTANTIATE_TEST_SUITE_P(OfOthers, TorchProgram,
                         ::testing::Values("accelerate", "transformers", "lightning", "deepspeed"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(TorchPeers, TheStoreDoesWhatPyTorchsTestsExpectOfOne) {
  const SubprocessResult result = UnderMuster({"--nproc_per_node=1", Program("store_client.py")});
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.err, HasSubstr("OK"));
}

TEST_F(TorchPeers, TheStoreRepliesAsPyTorchsOwnToRandomCommands) {
  const SubprocessResult result =
      UnderMuster({"--nproc_per_node=1", Program("store_differential.py"), "1", "80"});
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, HasSubstr("agree"));
}

// Rank 2 of two nodes comes to `meets` when it has been named. A node's ranks are told apart by the
// other node's agent, which shares the address here.
class TorchPeersThatWait : public TorchPeers {
 protected:
  void ExpectRank2IsNamed(const std::string& opens, const std::string& meets,
                          const std::string& notice) {
    const std::string script =
        PythonScript("late.py", "import os, time, torch.distributed as dist\n" + opens +
                                    "while os.environ['RANK'] == '2' and not "
                                    "os.path.exists(os.environ['OUT'] + '/named'):\n"
                                    "  time.sleep(0.1)\n" +
                                    meets +
                                    "dist.barrier()\n"
                                    "dist.destroy_process_group()\n");
    std::vector<Subprocess> agents;
    for (const int node : {0, 1}) {
      agents.push_back(StartStatic(node, 2, {"--nproc_per_node=2", script}, Changes(python_)));
    }
    EXPECT_TRUE(agents[0].WaitForOutput(notice, kPatienceWithTorch));
    WriteFile(Out("named"), "");
    for (Subprocess& agent : agents) {
      EXPECT_THAT(agent.Wait(kPatienceWithTorch), ExitsWith(0));
    }
  }
};

// The first notice names rank 3 too, if it took its time to import torch.
TEST_F(TorchPeersThatWait, NameTheRankOfAnotherNodeThatMakesNoProcessGroup) {
  ExpectRank2IsNamed("", "dist.init_process_group('gloo')\n", "waiting for rank 2 (");
}

TEST_F(TorchPeersThatWait, NameTheRankOfAnotherNodeThatDoesNotComeToABarrierOfTheStore) {
  ExpectRank2IsNamed(
      "dist.init_process_group('gloo')\n"
      "store = dist.distributed_c10d._get_default_store()\n",
      "store.barrier('ready', 4)\n",
      "ready' of PyTorch's store: 3 ranks are there; if it is for all, waiting for rank 2 (");
}

TEST_F(TorchPeersThatWait, NameTheRankOfAnotherNodeThatDoesNotComeToABarrierBehindANewGroup) {
  ExpectRank2IsNamed(
      "os.environ['TORCH_DIST_INIT_BARRIER'] = '1'\n"
      "dist.init_process_group('gloo')\n",
      "dist.new_group([0, 1])\n", "3 of 4 ranks are there; waiting for rank 2 (");
}

// PyTorch 1 of Debian, whose framing is another.
class TorchOfDebian : public TorchPeers {
 protected:
  void SetUp() override {
    SeveralNodes::SetUp();
    if (StartProgram({kDebianPython, "-c", "import torch.distributed"})
            .Wait(kPatienceWithTorch)
            .exit_code != 0) {
      GTEST_SKIP() << kDebianPython << " cannot import torch";
    }
  }
};

TEST_F(TorchOfDebian, TheStoreDoesWhatPyTorchsTestsExpectOfOne) {
  EXPECT_THAT(UnderMuster({"--nproc_per_node=1", Program("store_client.py")}, kDebianPython),
              ExitsWith(0));
}

TEST_F(TorchOfDebian, TheStoreRepliesAsPyTorchsOwnToRandomCommands) {
  const SubprocessResult result = UnderMuster(
      {"--nproc_per_node=1", Program("store_differential.py"), "1", "80"}, kDebianPython);
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, HasSubstr("agree"));
}

TEST_F(TorchOfDebian, SaysWhoIsMissingWhileTheOthersWaitAndWhenTheyGiveUp) {
  const std::string script = PythonScript("late.py",
                                          "import datetime, os, time, torch.distributed as dist\n"
                                          "at = os.environ['OUT'] + '/imported'\n"
                                          "open(at + os.environ['RANK'], 'w').close()\n"
                                          "if os.environ['RANK'] == '1': time.sleep(600)\n"
                                          "while not all(map(os.path.exists, (at+'0', at+'2'))):\n"
                                          "  time.sleep(0.05)\n"
                                          "dist.init_process_group('gloo', "
                                          "timeout=datetime.timedelta(seconds=13))\n");
  const SubprocessResult result = UnderMuster({"--nproc_per_node=3", script}, kDebianPython);
  EXPECT_THAT(result, ExitsWith(1));
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("init_process_group: 2 of 3 ranks are there; waiting for rank 1"),
                    ContainsRegex(
                        "rank [02] gave up after .*: init_process_group needs 3 ranks, of which 2 "
                        "came; missing: rank 1")));
}

}  // namespace
}  // namespace muster::testing
