// Training that loses a worker goes on from its last checkpoint, and training across nodes is the
// training of one node: both to the bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/integration/several_nodes.h"
#include "tests/support/files.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class TrainRecovery : public SeveralNodes {
 protected:
  Arguments Training(const Arguments& more) const {
    return Arguments{"--data",         absl::StrCat(kSourceDirectory, "/tests/data/prose.txt"),
                     "--layers=1",     "--heads=2",
                     "--width=16",     "--context=16",
                     "--mode=ordered", "--sample_tokens=0",
                     "--hash"} +
           more;
  }

  // What stands between `name` and the end of its line; the last time that it was printed.
  static std::string After(const std::string& name, const std::string& out) {
    const size_t at = out.rfind(name);
    if (at == std::string::npos) return "";
    const size_t begin = at + name.size();
    return out.substr(begin, out.find_first_of("/ \n", begin) - begin);
  }

  std::string UndisturbedHash(const std::string& steps) const {
    const SubprocessResult result =
        Run(Arguments{"run", "--nproc_per_node=2", MusterTrainBinary()} +
            Training({"--steps=" + steps, "--quiet"}));
    EXPECT_THAT(result, ExitsWith(0));
    return After("hash=", result.out);
  }

  // A program that trains without an end in the job's first attempt, and for twenty steps beyond
  // the last checkpoint in the next one.
  std::string EndlessAtFirst() const {
    return ShellScript(
        "train", absl::StrCat("steps=100000000\n"
                              "if [ \"$TORCHELASTIC_RESTART_COUNT\" != 0 ]; then\n"
                              "  last=$(ls -d \"$OUT\"/saved/step_* | sort | tail -n 1)\n"
                              "  steps=$(expr \"${last##*_}\" + 20)\n"
                              "fi\n"
                              "exec ",
                              MusterTrainBinary(),
                              " --steps=$steps --save \"$OUT/saved\" --resume \"$OUT/saved\" ",
                              "--save_every=5 ", absl::StrJoin(Training({}), " "), "\n"));
  }

  // Stops a job, which saves; after how many steps.
  static std::string StepsOfStopped(Subprocess& job) {
    job.Signal(SIGTERM);
    const SubprocessResult result = job.Wait();
    EXPECT_THAT(result, ExitsWith(128 + SIGTERM));
    return After("saved after step ", result.out);
  }

  // Two ranks that survive rounds; rank `victim` is killed once it is at work, and `says` is what
  // the job must say then. It is stopped a little later, and saves.
  void ExpectThatOneSurvivesTheLossOf(int victim, const Arguments& plan, const std::string& says) {
    Subprocess job = Start(Arguments{"run", "--nproc_per_node=2", "--max_restarts=2",
                                     "--rdzv_id=survives", MusterTrainBinary(), "--survive=yes",
                                     "--steps=100000000", "--log_every=1"} +
                           Training(plan));
    ASSERT_TRUE(job.WaitForOutput(" 20/100000000 "));
    const pid_t killed = WorkerOf(victim), survivor = WorkerOf(1 - victim);
    ASSERT_GT(killed, 0);
    kill(killed, SIGKILL);
    ASSERT_TRUE(job.WaitForOutput(says));
    EXPECT_EQ(WorkerOf(1 - victim), survivor);
    const std::string steps = StepsOfStopped(job);
    ASSERT_THAT(steps, Not(IsEmpty()));
    const SubprocessResult saved =
        Run(Arguments{"run", "--nproc_per_node=2", MusterTrainBinary()} +
            Training(plan + Arguments{"--steps=" + steps, "--resume", Out("saved"), "--quiet"}));
    EXPECT_EQ(After("hash=", saved.out), UndisturbedHash(steps));
  }
};

class PipelineRecovery : public TrainRecovery, public ::testing::WithParamInterface<const char*> {
 protected:
  // The last of the checkpoints; empty: there is none.
  std::string NewestSaved() const {
    std::string newest;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(Out("saved"), error)) {
      const std::string name = entry.path().filename().string();
      if (absl::StartsWith(name, "step_")) newest = std::max(newest, name);
    }
    return newest;
  }
};

// No rank of a pipeline has the whole state, but the replicas of its stages have it together. In
// the short time in which some ranks have made a step's update and others not, what is left is of
// no step, and all go back to a checkpoint.
TEST_P(PipelineRecovery, AfterKillsAtAnyMomentHasTheParametersOfOneProcess) {
  const Arguments pipeline = {"--layers=4", "--stages=2",
                              absl::StrCat("--stage_schedule=", GetParam()), "--accumulation=4"};
  const Arguments saving = {"--save", Out("saved"), "--resume", Out("saved"), "--save_every=3"};
  Subprocess job =
      Start(Arguments{"run", "--nproc_per_node=4", "--max_restarts=9", "--rdzv_id=survives",
                      MusterTrainBinary(), "--survive=yes", "--steps=100000000"} +
            Training(pipeline + saving));
  std::mt19937 random(7);
  for (int loss = 1; loss <= 4; ++loss) {
    const std::string before = NewestSaved();
    ASSERT_TRUE(WaitUntil([&] { return NewestSaved() > before; })) << "after loss " << loss - 1;
    absl::SleepFor(absl::Milliseconds(std::uniform_int_distribution(0, 100)(random)));
    const pid_t victim = WorkerOf(std::uniform_int_distribution(0, 3)(random));
    ASSERT_GT(victim, 0);
    kill(victim, SIGKILL);
    ASSERT_TRUE(job.WaitForOutput(absl::StrCat("restart ", loss, " of 9: ")));
  }
  const std::string before = NewestSaved();
  ASSERT_TRUE(WaitUntil([&] { return NewestSaved() > before; }));
  job.Signal(SIGTERM);
  const SubprocessResult stopped = job.Wait();
  EXPECT_THAT(stopped.out, HasSubstr(" ranks had together)"));
  const std::string steps = After("saved after step ", stopped.out);
  ASSERT_THAT(steps, Not(IsEmpty()));
  const SubprocessResult saved =
      Run(Arguments{"run", "--nproc_per_node=4", MusterTrainBinary()} +
          Training(pipeline + saving + Arguments{"--steps=" + steps, "--quiet"}));
  const SubprocessResult whole =
      Run(Arguments{"run", "--nproc_per_node=1", MusterTrainBinary()} +
          Training({"--layers=4", "--accumulation=8", "--steps=" + steps, "--quiet"}));
  EXPECT_THAT(After("hash=", whole.out), SizeIs(64));
  EXPECT_EQ(After("hash=", saved.out), After("hash=", whole.out));
}

INSTANTIATE_TEST_SUITE_P(Schedules, PipelineRecovery,
                         ::testing::Values("1f1b", "interleaved", "zbv"),
                         [](const auto& info) { return std::string("Of") + info.param; });

// Two groups of two, each of which has all shards. As in a pipeline, a death may come when what is
// left is of no step; that of three such deaths each does is no chance.
TEST_F(TrainRecovery, InTheProcessGoesOnFromTheReplicasOfALostShard) {
  const Arguments plan = {"--plan=hybrid-shard", "--shard_ranks=2", "--save",
                          Out("saved"),          "--resume",        Out("saved"),
                          "--save_every=5"};
  Subprocess job =
      Start(Arguments{"run", "--nproc_per_node=4", "--max_restarts=3", "--rdzv_id=survives",
                      MusterTrainBinary(), "--survive=yes", "--steps=100000000", "--log_every=1"} +
            Training(plan));
  ASSERT_TRUE(job.WaitForOutput("saved after step 20 "));
  for (const int victim : {1, 2, 3}) {
    const pid_t killed = WorkerOf(victim);
    ASSERT_GT(killed, 0);
    kill(killed, SIGKILL);
    ASSERT_TRUE(job.WaitForOutput(absl::StrCat("restart ", victim, " of 3: ")));
    ASSERT_TRUE(job.WaitForOutput(absl::StrCat("round ", victim, ": goes on after step ")));
  }
  job.Signal(SIGTERM);
  const SubprocessResult stopped = job.Wait();
  EXPECT_THAT(stopped, ExitsWith(128 + SIGTERM));
  EXPECT_THAT(stopped.out, HasSubstr("the state that 2 ranks had together)"));
  const std::string steps = After("saved after step ", stopped.out);
  ASSERT_THAT(steps, Not(IsEmpty()));
  const SubprocessResult saved = Run(Arguments{"run", "--nproc_per_node=4", MusterTrainBinary()} +
                                     Training(plan + Arguments{"--steps=" + steps, "--quiet"}));
  const SubprocessResult whole = Run(Arguments{"run", "--nproc_per_node=1", MusterTrainBinary()} +
                                     Training({"--accumulation=4", "--steps=" + steps, "--quiet"}));
  EXPECT_THAT(After("hash=", whole.out), SizeIs(64));
  EXPECT_EQ(After("hash=", saved.out), After("hash=", whole.out));
}

// The replacement gets the state of the one that survives.
TEST_F(TrainRecovery, InTheProcessGoesOnFromTheStateOfTheRankThatSurvives) {
  ExpectThatOneSurvivesTheLossOf(1, {"--save", Out("saved")}, "round 1: goes on after step ");
}

TEST_F(TrainRecovery, InTheProcessSurvivesTheLossOfRankZeroToo) {
  ExpectThatOneSurvivesTheLossOf(0, {"--save", Out("saved")}, "rank 1's state, after step ");
}

TEST_F(TrainRecovery, InTheProcessGoesOnFromACheckpointWhereNoRankHasTheWholeState) {
  ExpectThatOneSurvivesTheLossOf(
      1, {"--plan=zero-3", "--save", Out("saved"), "--resume", Out("saved"), "--save_every=5"},
      "the checkpoint in ");
}

// No rank was lost, and no other round will begin.
TEST_F(TrainRecovery, InTheProcessWaitsForNoRoundWhenItsOwnDiskHasFailed) {
  const std::string data = Out("data");
  std::filesystem::copy_file(absl::StrCat(kSourceDirectory, "/tests/data/prose.txt"), data);
  Subprocess job = Start(Arguments{"run", "--nproc_per_node=2", MusterTrainBinary(),
                                   "--survive=yes", "--steps=100000000", "--log_every=1"} +
                         Training({"--data", data}));
  ASSERT_TRUE(job.WaitForOutput(" 20/100000000 "));
  std::filesystem::resize_file(data, 100);
  const SubprocessResult result = job.Wait();
  EXPECT_THAT(result, ExitsWith(1));
  EXPECT_THAT(result.err, HasSubstr("must not be cut or replaced while it is trained on"));
  EXPECT_THAT(result.err, Not(HasSubstr("awaits the job's next round")));
}

TEST_F(TrainRecovery, AfterAKillEndsWithTheParametersOfATrainingWithoutOne) {
  Subprocess job = Start({"run", "--nproc_per_node=2", "--max_restarts=1", EndlessAtFirst()});
  ASSERT_TRUE(job.WaitForOutput("saved after step 10 "));
  const pid_t victim = WorkerOf(1);
  ASSERT_GT(victim, 0);
  kill(victim, SIGKILL);
  const SubprocessResult result = job.Wait();
  ASSERT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, HasSubstr(", after step "));  // the second attempt resumed
  const std::string hash = After("hash=", result.out);
  EXPECT_THAT(hash, SizeIs(64));
  EXPECT_EQ(hash, UndisturbedHash(After("saved after step ", result.out)));
}

TEST_F(TrainRecovery, AcrossTwoNodesIsTheTrainingOfOneNode) {
  const Arguments script = Arguments{MusterTrainBinary()} + Training({"--steps=20"});
  std::vector<Subprocess> agents;
  for (int node : {0, 1}) agents.push_back(StartStatic(node, 2, script));
  std::string out;
  for (const SubprocessResult& result : WaitForAll(agents)) {
    EXPECT_THAT(result, ExitsWith(0));
    out += result.out;
  }
  const std::string hash = After("hash=", out);
  EXPECT_THAT(hash, SizeIs(64)) << out;
  EXPECT_EQ(hash, UndisturbedHash("20"));
}

}  // namespace
}  // namespace muster::testing
