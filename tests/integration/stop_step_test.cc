// One stop step in real processes, whose agent is the test, and under `muster stop`: all ranks
// leave after the same step, and none runs past it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "proto/base/environment.h"
#include "tests/integration/several_nodes.h"
#include "tests/support/fake_agent.h"
#include "tests/support/files.h"
#include "tests/support/job_under_test.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

constexpr absl::Duration kLong = absl::Seconds(90);
constexpr char kWhy[] = "node b is drained";

class StopStep : public SeveralNodes {
 protected:
  // Two ranks of `argv`, on this node.
  void StartRanks(const Arguments& argv) {
    for (const int rank : {0, 1}) {
      Environment changes;
      for (const auto& [name, value] : agent_.EnvironmentOf(rank, 2)) changes[name] = value;
      changes["JOB_MODULE"] = absl::StrCat(kSourceDirectory, "/deploy/python");
      ranks_.push_back(StartProgram(argv, changes));
    }
  }
  // What the server does: asks how far they are, and names the furthest. Returns it.
  int64_t StopThem() {
    EXPECT_TRUE(agent_.WaitForObeying(2));
    agent_.Tell({.is_stopping = true, .reason = kWhy});
    EXPECT_TRUE(agent_.WaitForFloors(2));
    int64_t step = 0;
    for (const auto& [rank, floor] : agent_.floors()) step = std::max(step, floor);
    agent_.Tell({.is_stopping = true, .step = step, .reason = kWhy});
    return step;
  }
  void ExpectThatRanksOfTheProbeLeaveTogether(const Arguments& argv) {
    StartRanks(argv);
    ASSERT_TRUE(WaitForOut("step.3.0"));
    const int64_t step = StopThem();
    for (Subprocess& rank : ranks_) {
      const SubprocessResult result = rank.Wait(kLong);
      EXPECT_THAT(result, ExitsWith(0));
      EXPECT_THAT(result.out, HasSubstr(absl::StrCat("left after step ", step, ": ", kWhy)));
    }
    EXPECT_TRUE(agent_.WaitForGoodbyes(2));
    EXPECT_TRUE(FileExists(Out(absl::StrCat("step.", step, ".0"))));
    for (const int rank : {0, 1}) {
      EXPECT_FALSE(FileExists(Out(absl::StrCat("step.", step + 1, ".", rank))))
          << "rank " << rank << " went past the step";
    }
  }

  Arguments Training(const Arguments& more) const {
    return Arguments{MusterTrainBinary(),
                     "--data",
                     absl::StrCat(kSourceDirectory, "/tests/data/prose.txt"),
                     "--layers=1",
                     "--heads=2",
                     "--width=16",
                     "--context=16",
                     "--mode=ordered",
                     "--sample_tokens=0",
                     "--hash"} +
           more;
  }
  std::string HashOf(const Arguments& more) const {
    const SubprocessResult result =
        Start(Arguments{"run", "--nproc_per_node=2"} + Training(more)).Wait(kLong);
    EXPECT_THAT(result, ExitsWith(0));
    const size_t at = result.out.find("hash=");
    const std::string hash = at == std::string::npos ? "" : result.out.substr(at + 5, 64);
    EXPECT_THAT(hash, SizeIs(64));
    return hash;
  }

  FakeAgent agent_{Round(2)};
  std::vector<Subprocess> ranks_;
};

TEST_F(StopStep, OfMusterTrainSavesOnAllRanksAndIsGoneOnFromToTheSameBits) {
  StartRanks(Training({"--steps=100000000", "--save", Out("saved"), "--log_every=1"}));
  ASSERT_TRUE(ranks_[0].WaitForOutput(" loss ", kLong));
  const int64_t step = StopThem();
  const SubprocessResult first = ranks_[0].Wait(kLong);
  EXPECT_THAT(first, ExitsWith(0));
  EXPECT_THAT(first.out, HasSubstr(absl::StrCat("the job stops (", kWhy,
                                                "): training ends after step ", step, " of ")));
  EXPECT_THAT(ranks_[1].Wait(kLong), ExitsWith(0));
  EXPECT_TRUE(agent_.WaitForGoodbyes(2));
  EXPECT_THAT(agent_.goodbyes(), UnorderedElementsAre(Pair(0, step), Pair(1, step)));
  const std::string steps = absl::StrCat("--steps=", step + 7);
  EXPECT_EQ(HashOf({steps, "--resume", Out("saved")}), HashOf({steps}));
}

TEST_F(StopStep, OfAProgramInCIsTheSameOnAllRanks) {
  ExpectThatRanksOfTheProbeLeaveTogether({Built("job_probe"), "stop"});
}

TEST_F(StopStep, OfAProgramInPythonIsTheSameOnAllRanks) {
  ExpectThatRanksOfTheProbeLeaveTogether(
      {"/usr/bin/python3",
       absl::StrCat(kSourceDirectory, "/tests/integration/programs/job_probe.py"), "stop"});
}

TEST_F(StopStep, NeverComesToAProgramInPythonWithoutAnAgent) {
  const std::string script =
      PythonScript("alone.py",
                   "import muster_job\n"
                   "print(muster_job.should_stop(3), muster_job.commit_checkpoint(3), "
                   "[muster_job.stop_reason()])\n");
  const std::string module = absl::StrCat(kSourceDirectory, "/deploy/python");
  const SubprocessResult result =
      StartProgram({"/usr/bin/python3", script}, {{"PYTHONPATH", module}}).Wait(kLong);
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_EQ(result.out, "False yes ['']\n");
}

TEST_F(StopStep, IsAskedForByOneProcessOfAProgramInPythonAndNoneOfItsChildren) {
  const std::string script = PythonScript("forks.py", R"(
import os, time
import muster_job
while not muster_job.should_stop(1):
    time.sleep(0.01)
if os.fork() == 0:
    try:
        print("child", muster_job.should_stop(1), muster_job.commit_checkpoint(1))
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
print("parent", muster_job.should_stop(1), muster_job.commit_checkpoint(1))
)");
  Environment changes;
  for (const auto& [name, value] : agent_.EnvironmentOf(0, 1)) changes[name] = value;
  changes["PYTHONPATH"] = absl::StrCat(kSourceDirectory, "/deploy/python");
  agent_.Tell({.is_stopping = true, .step = 1, .reason = kWhy});
  const SubprocessResult result = StartProgram({"/usr/bin/python3", script}, changes).Wait(kLong);
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, HasSubstr("and not its children"));
  EXPECT_THAT(result.out, HasSubstr("parent True yes\n"));
  EXPECT_TRUE(agent_.WaitForGoodbyes(1));
}

// What a person sees of two nodes.
class MusterStop : public StopStep {
 protected:
  void StartNodes(int count, const std::string& nodes, const Arguments& rest) {
    const Environment changes = {{"JOB_MODULE", absl::StrCat(kSourceDirectory, "/deploy/python")}};
    for (int node = 1; node <= count; ++node) {
      ranks_.push_back(
          StartElastic(node, nodes, Arguments{"--shutdown_timeout=600"} + rest, changes));
      if (node == 1) {
        ASSERT_TRUE(ranks_[0].WaitForOutput("hosting", kLong));
      }
    }
  }
  void Ask(const std::string& verb, const Arguments& node = {}) const {
    EXPECT_THAT(Run(Arguments{verb, "--rdzv_endpoint=" + endpoint(), "--rdzv_id=elastic",
                              absl::StrCat("--reason=", kWhy)} +
                    node),
                ExitsWith(0));
  }
  bool OneOfThemSays(const std::string& text) {
    return WaitUntil(
        [&] {
          return std::any_of(ranks_.begin(), ranks_.end(), [&](Subprocess& node) {
            return node.WaitForOutput(text, absl::Milliseconds(100));
          });
        },
        kLong);
  }
  // Returns what all nodes have printed.
  std::string StopAndWait() {
    Ask("stop");
    std::string out;
    for (Subprocess& node : ranks_) {
      const SubprocessResult result = node.Wait(kLong);
      EXPECT_THAT(result, ExitsWith(0));
      out += result.out;
    }
    return out;
  }
  // The number behind `text`.
  static int64_t NumberAfter(const std::string& text, const std::string& out) {
    const size_t at = out.find(text);
    return at == std::string::npos ? -1 : std::atoll(out.c_str() + at + text.size());
  }
};

TEST_F(MusterStop, OfMusterTrainOnTwoNodesIsGoneOnFromToTheSameBits) {
  StartNodes(2, "2", Training({"--steps=100000000", "--save", Out("saved"), "--log_every=1"}));
  ASSERT_TRUE(OneOfThemSays(" loss "));
  const std::string out = StopAndWait();
  const int64_t step = NumberAfter("training ends after step ", out);
  EXPECT_THAT(out, HasSubstr(absl::StrCat("saved after step ", step, " in ")));
  EXPECT_THAT(out, HasSubstr(kWhy));
  const std::string steps = absl::StrCat("--steps=", step + 7);
  EXPECT_EQ(HashOf({steps, "--resume", Out("saved")}), HashOf({steps}));
}

TEST_F(MusterStop, OfOneNodeLetsTheOthersTrainOnFromTheStepAtWhichAllHaveLeft) {
  StartNodes(3, "2:3",
             Training({"--steps=100000000", "--save", Out("saved"), "--resume", Out("saved")}));
  ASSERT_TRUE(OneOfThemSays(" loss "));
  Ask("drain", {AddressOf(3)});
  EXPECT_THAT(ranks_[2].Wait(kLong), ExitsWith(0));
  ASSERT_TRUE(OneOfThemSays(", after step ")) << "the others have begun another round";
  const std::string out = StopAndWait();
  const int64_t step = NumberAfter("training ends after step ", out);
  EXPECT_GT(step, 0);
  EXPECT_EQ(step, NumberAfter(", after step ", out)) << "where the second round went on";
}

TEST_F(MusterStop, OfAProgramInPythonOnTwoNodesIsTheSameOnAllRanks) {
  StartNodes(2, "2",
             {"/usr/bin/python3",
              absl::StrCat(kSourceDirectory, "/tests/integration/programs/job_probe.py"), "stop"});
  ASSERT_TRUE(WaitForOut("step.3.0"));
  ASSERT_TRUE(WaitForOut("step.3.1"));
  const std::string out = StopAndWait();
  const int64_t step = NumberAfter("left after step ", out);
  EXPECT_GE(step, 3);
  EXPECT_EQ(step, NumberAfter("left after step ", out.substr(out.rfind("left after step "))));
  EXPECT_FALSE(FileExists(Out(absl::StrCat("step.", step + 1, ".0"))));
  EXPECT_FALSE(FileExists(Out(absl::StrCat("step.", step + 1, ".1"))));
}

}  // namespace
}  // namespace muster::testing
