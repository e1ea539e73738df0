// muster.survive with shards of FSDP2: a rank that dies is replaced with the state of one that has
// the same shard. Losses are compared with those of a run in which nobody dies. Runs
// programs/survive_torch.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/torch_survive.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

using TorchSurviveShards = TorchSurvive;

// Ranks 0 and 2 have the one shard, 1 and 3 the other.
TEST_F(TorchSurviveShards, OfAShardThatAnotherReplicaHasTooEachRankInTurnIsReplaced) {
  const SubprocessResult result = ReplaceEachInTurn({{2, 0}, {4, 1}, {6, 2}, {8, 3}}, {"hsdp"});
  EXPECT_THAT(result.err, HasSubstr("4 ranks go on at step 2; from rank 2 to rank 0"));
  EXPECT_THAT(result.err, HasSubstr("4 ranks go on at step 4; from rank 3 to rank 1"));
  EXPECT_THAT(result.err, HasSubstr("4 ranks go on at step 6; from rank 0 to rank 2"));
  EXPECT_THAT(result.err, HasSubstr("4 ranks go on at step 8; from rank 1 to rank 3"));
  EXPECT_EQ(ReadOut("end.2"), ReadOut("end.0"));
  EXPECT_EQ(ReadOut("end.3"), ReadOut("end.1"));
}

// Rank 1 and rank 3 are all that had the second shard.
TEST_F(TorchSurviveShards, TheLossOfEveryReplicaOfAShardBeginsAgainFromTheStart) {
  const SubprocessResult result = RunWithDeaths(4, 4, {1, 3}, {"hsdp"});
  EXPECT_THAT(result.err, HasSubstr("no whole copy of shard 1 of 2 is left"));
  for (const int rank : {0, 1, 2, 3}) {
    EXPECT_EQ(Losses(rank).size(), static_cast<size_t>(kSteps)) << rank;
  }
  EXPECT_EQ(ReadOut("end.2"), ReadOut("end.0"));
}

// Rank 1 dies once the others have their gradients. At step 4 all that are left update, at step 7
// one of them does not: its shard is of no use beside newer ones.
TEST_F(TorchSurviveShards, AllShardsAreUpdatedOrNone) {
  const std::map<int, double> undisturbed = UndisturbedLosses(4, {"hsdp"});
  Hold(2004);
  Hold(3007);
  Subprocess job = StartRanks(4, {"--max_restarts=3"}, {"hsdp"});
  for (const int step : {2004, 3007}) {
    const std::vector<pid_t> pids = PidsAt(step / 3000, 4, step);
    ASSERT_FALSE(HasFailure());
    kill(pids[1], SIGKILL);
    LetGo(step);
  }
  const SubprocessResult result = job.Wait(kLong);
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.err, HasSubstr("4 ranks go on at step 5; from rank 3 to rank 1"));
  EXPECT_THAT(result.err, HasSubstr("4 ranks go on at step 7; from rank 3 to rank 1"));
  for (const int rank : {0, 2, 3}) {
    EXPECT_EQ(Losses(rank).size(), static_cast<size_t>(kSteps)) << rank;  // one process
    ExpectLossesOf(undisturbed, rank);
  }
}

// It is compared with its replica, and replaced in its turn.
TEST_F(TorchSurviveShards, ARankWhoseShardIsDamagedIsRefused) {
  const std::map<int, double> undisturbed = UndisturbedLosses(4, {"hsdp"});
  const SubprocessResult result = RunWithDeaths(4, 3, {1}, {"hsdp", "damaged"});
  EXPECT_THAT(result.err, HasSubstr("rank 2 has other parameters than rank 0"));
  for (const int rank : {0, 3}) {
    EXPECT_EQ(Losses(rank).size(), static_cast<size_t>(kSteps)) << rank;  // one process
    ExpectLossesOf(undisturbed, rank);
  }
  EXPECT_EQ(ReadOut("end.2"), ReadOut("end.0"));
}

TEST_F(TorchSurviveShards, ReplicasComeAndGoWithTheirNodes) {
  constexpr int kLongRun = 1000;
  const Arguments job =
      Arguments{"--nproc_per_node=2", "--max_restarts=3", "--rdzv_conf=last_call_timeout=20"} +
      Program({"slow", "hsdp"}, kLongRun);
  Subprocess stays = StartElastic(1, "1:2", job, WithTorch());
  ASSERT_TRUE(stays.WaitForOutput("1 of 1 to 2 nodes joined"));
  Subprocess goes = StartElastic(2, "1:2", job, WithTorch());
  PidsAt(0, 4, 1);
  ASSERT_FALSE(HasFailure());
  KillWithAllBelow(goes.pid());
  ASSERT_TRUE(stays.WaitForOutput("2 ranks go on at step", kLong));
  Subprocess comes = StartElastic(2, "1:2", job, WithTorch());
  ASSERT_TRUE(stays.WaitForOutput("4 ranks go on at step", kLong));
  LetGo(kLongRun - 1);
  EXPECT_THAT(stays.Wait(kLong), ExitsWith(0));
  EXPECT_THAT(comes.Wait(kLong), ExitsWith(0));
  for (const int rank : {0, 1}) {
    EXPECT_EQ(Losses(rank).size(), static_cast<size_t>(kLongRun)) << rank;  // one process
    EXPECT_EQ(ReadOut(absl::StrCat("end.", rank + 2)), ReadOut(absl::StrCat("end.", rank)));
  }
}

TEST_F(TorchSurviveShards, ShardsThatNobodyElseHasAreReadFromTheCheckpointByAllProcessesAnew) {
  const std::map<int, double> undisturbed = UndisturbedLosses(4, {"fsdp"});
  Hold(6);
  Subprocess job = StartRanks(4, {"--max_restarts=1", "--warm=auto"}, {"fsdp"});
  const std::vector<pid_t> before = PidsAt(0, 4, 6);
  ASSERT_FALSE(HasFailure());
  kill(before[2], SIGKILL);
  LetGo(6);
  const SubprocessResult result = job.Wait(kLong);
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.err,
              HasSubstr("no other rank holds the shard of ranks 0, 1, 2, 3: where one of them "
                        "dies, all processes restart from the last checkpoint"));
  for (const int rank : {0, 1, 2, 3}) {
    EXPECT_NE(PidAt(1, rank, 4), before[rank]);
    EXPECT_EQ(Losses(rank).size(), static_cast<size_t>(kSteps - 4)) << rank;
    ExpectLossesOf(undisturbed, rank);
  }
}

TEST_F(TorchSurviveShards, TheGuidesProgramRunsUnderAnyLauncher) {
  RunProgramOfTheGuide("### Shards that are replicated", 4);
}

}  // namespace
}  // namespace muster::testing
