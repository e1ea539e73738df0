// muster.survive: ranks under DDP that go on in the same processes where another dies. Losses are
// compared with those of a run in which nobody dies. Runs programs/survive_torch.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "tests/integration/torch_survive.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(TorchSurvive, EachRankInTurnIsReplacedAndTheLossesAreThoseOfAnUndisturbedRun) {
  const SubprocessResult result = ReplaceEachInTurn({{3, 0}, {6, 1}, {9, 2}}, {});
  EXPECT_THAT(result.err, HasSubstr("3 ranks go on at step 3; from rank 1 to rank 0"));
  EXPECT_THAT(result.err, HasSubstr("3 ranks go on at step 9; from rank 0 to rank 2"));
  ExpectOneEnd(3);
  ExpectNothingHeldOfEarlierRounds(4, 3);
  EXPECT_THAT(ReadOut("traceback.1"), HasSubstr("[rank1]: ValueError: a fault"));
  EXPECT_THAT(ReadOut("traceback.1"), Not(HasSubstr("[rank1]: [rank1]")));
}

// The back end fails as NCCL does: what a lost rank has left undone seems to be done, with rubbish
// in memory.
TEST_F(TorchSurvive, RubbishOfOperationsThatAreAbortedIsNotTrainedOn) {
  const SubprocessResult result = ReplaceEachInTurn({{3, 0}, {6, 1}, {9, 2}}, {"silent"});
  EXPECT_THAT(result.err, HasSubstr("3 ranks go on at step 3; from rank 1 to rank 0"));
  EXPECT_THAT(result.err, HasSubstr("3 ranks go on at step 9; from rank 0 to rank 2"));
  ExpectOneEnd(3);
  ExpectNothingHeldOfEarlierRounds(4, 3);
}

TEST_F(TorchSurvive, RubbishInTheFirstParametersBeginsAgainFromTheStart) {
  const SubprocessResult result =
      StartRanks(3, {"--max_restarts=3"}, {"silent", "unready"}).Wait(kLong);
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.err, HasSubstr("a rank was lost while parameters were copied from rank 0"));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(Losses(rank).size(), static_cast<size_t>(kSteps)) << rank;
  }
  ExpectOneEnd(3);
}

TEST_F(TorchSurvive, RubbishIsNoOverflowToAGradScaler) {
  const SubprocessResult result = RunWithDeaths(3, 4, {1}, {"silent", "scaled"});
  EXPECT_THAT(result.err, HasSubstr("3 ranks go on at step 4; from rank 2 to rank 1"));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ReadOut(absl::StrCat("scale.", rank)), "65536.0") << rank;  // as at the beginning
  }
  ExpectOneEnd(3);
}

// One dies before it has come to the store, the next as its gloo begins to listen. Both times the
// others wait for it, and have the only state there is.
TEST_F(TorchSurvive, ReplacementsThatDieAsTheyJoinCostTheOthersNoState) {
  constexpr int kRanks = 4;
  Hold(3);
  Subprocess job = StartRanks(kRanks, {"--max_restarts=4", "--warm=auto"}, {"ill"});
  ASSERT_TRUE(job.WaitForOutput("the warm process is ready", kLong));
  const std::vector<pid_t> before = PidsAt(0, kRanks, 3);
  ASSERT_FALSE(HasFailure());
  ASSERT_EQ(kill(before[1], SIGKILL), 0);
  LetGo(3);
  const SubprocessResult result = job.Wait(kLong);
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.err, HasSubstr("restart 3 of 4"));
  EXPECT_THAT(result.err, HasSubstr("4 ranks go on at step 3; from rank 2 to rank 1"));
  EXPECT_THAT(result.err, Not(HasSubstr("has not let go")));
  EXPECT_THAT(result.err, Not(HasSubstr("TCPStore.cpp")));
  for (int rank : {0, 2, 3}) {
    EXPECT_EQ(Losses(rank).size(), static_cast<size_t>(kSteps)) << rank;  // one process
  }
  ExpectOneEnd(kRanks);
}

// Whatever they were at: in a step, between two, or about to join after the death before. A round
// that has lasted for ten seconds is followed by another without a pause.
TEST_F(TorchSurvive, FiftyDeathsAtRandomMomentsChangeNoLoss) {
  constexpr int kRanks = 4, kDeaths = 50, kRestarts = 60, kLongRun = 2000;
  EXPECT_THAT(StartRanks(kRanks, {}, {}, kLongRun).Wait(kLong), ExitsWith(0));
  const std::map<int, double> undisturbed = Losses(0);
  ASSERT_EQ(undisturbed.size(), static_cast<size_t>(kLongRun));

  Subprocess job = StartRanks(kRanks, {absl::StrCat("--max_restarts=", kRestarts), "--warm=auto"},
                              {"slow"}, kLongRun);
  ASSERT_TRUE(job.WaitForOutput("the warm process is ready", kLong));
  std::mt19937 draw(1);
  const auto up_to = [&](int most) { return std::uniform_int_distribution<int>(0, most)(draw); };
  const auto kill_one = [&](int attempt) {
    const std::string at = ReadOut(absl::StrCat("at.", attempt, ".", up_to(kRanks - 1)));
    pid_t pid = 0;
    return absl::SimpleAtoi(*absl::StrSplit(at, ' ').begin(), &pid) && kill(pid, SIGKILL) == 0;
  };
  const auto are_all_in = [&](int attempt) {
    for (int rank = 0; rank < kRanks; ++rank) {
      if (ReadOut(absl::StrCat("at.", attempt, ".", rank)).empty()) return false;
    }
    return true;
  };
  // Any number of attempts may lie in between in which a rank died before all had come.
  const auto newest = [&] {
    int attempt = kRestarts;
    while (attempt >= 0 && !are_all_in(attempt)) --attempt;
    return attempt;
  };
  int deaths = 0, attempt = -1;
  for (bool is_quick = false; deaths < kDeaths; is_quick = !is_quick) {
    const int before = attempt;
    ASSERT_TRUE(WaitUntil([&] { return (attempt = newest()) > before; }, absl::Seconds(90)))
        << "no attempt after " << before << " and " << deaths << " deaths\n"
        << ToString(job.Wait(absl::ZeroDuration()));
    absl::SleepFor(absl::Milliseconds((is_quick ? 0 : 10'000) + up_to(400)));
    deaths += kill_one(attempt) ? 1 : 0;
    if (deaths % 5 != 0) continue;
    absl::SleepFor(absl::Milliseconds(up_to(150)));
    deaths += kill_one(attempt) ? 1 : 0;
  }
  LetGo(kLongRun - 1);
  const SubprocessResult result = job.Wait(kLong);
  EXPECT_THAT(result, ExitsWith(0));
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::map<int, double> losses = Losses(rank);
    EXPECT_FALSE(losses.empty());
    for (const auto& [step, loss] : losses) {
      EXPECT_NEAR(loss, undisturbed.at(step), 1e-5 * undisturbed.at(step)) << rank << ", " << step;
    }
  }
  ExpectOneEnd(kRanks);
  ExpectNothingHeldOfEarlierRounds(kRestarts, kRanks);
}

TEST_F(TorchSurvive, TheLossOfTwoRanksAtOnceLeavesTheOthersTheirProcesses) {
  const SubprocessResult result = RunWithDeaths(4, 4, {1, 3});
  EXPECT_THAT(result.err, HasSubstr("4 ranks go on at step 4"));
  EXPECT_EQ(Losses(0).size(), static_cast<size_t>(kSteps));
  EXPECT_EQ(Losses(2).size(), static_cast<size_t>(kSteps));
  ExpectOneEnd(4);
}

// The watch sees this round's calls of a process that has survived another, and no older ones.
TEST_F(TorchSurvive, ARankThatIsStoppedLaterIsEndedAloneByTheVerdict) {
  Hold(2);
  Hold(5);
  Subprocess job = StartRanks(3, {"--max_restarts=3", "--hang_timeout=60", "--warm=auto"});
  ASSERT_TRUE(job.WaitForOutput("the warm process is ready", kLong));
  const std::vector<pid_t> first = PidsAt(0, 3, 2);
  ASSERT_FALSE(HasFailure());
  kill(first[0], SIGKILL);
  LetGo(2);
  const std::vector<pid_t> second = PidsAt(1, 3, 5);
  ASSERT_FALSE(HasFailure());
  EXPECT_EQ(second[1], first[1]);
  kill(second[1], SIGSTOP);
  LetGo(5);
  const SubprocessResult result = job.Wait(kLong);
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.err, HasSubstr("hang: rank 1 is stopped by a signal"));
  EXPECT_EQ(Losses(2).size(), static_cast<size_t>(kSteps)) << result.err;  // one process
  ExpectOneEnd(3);
}

TEST_F(TorchSurvive, RanksInTheMidstOfTheirUpdateBeginAgainTogether) {
  const SubprocessResult result = RunWithDeaths(3, 1002, {1}, {"half"});
  EXPECT_THAT(result.err, HasSubstr("was in the midst of the optimizer's step"));
  EXPECT_EQ(Losses(0).size(), static_cast<size_t>(kSteps));  // from the first step on
  ExpectOneEnd(3);
}

TEST_F(TorchSurvive, TheGuidesProgramRunsUnderAnyLauncher) {
  RunProgramOfTheGuide("## In the process", 2);
}

// A thread of gloo that needed the interpreter once that has gone would abort the process. The
// program may end its group itself, as most do.
TEST_F(TorchSurvive, NoThreadOfTheGroupIsLeftAsPythonEnds) {
  const std::string script = PythonScript(
      "ends.py",
      "import atexit, glob, sys, time\n"
      "def name_of(path):\n"
      "    try: return open(path).read()\n"
      "    except OSError: return ''  # it has ended\n"
      "def threads():\n"
      "    return sum('gloo' in name_of(path) for path in glob.glob('/proc/self/task/*/comm'))\n"
      "atexit.register(lambda: print('left', threads()))\n"
      "import torch\n"
      "from muster import survive\n"
      "job = survive.Job(torch.nn.Linear(4, 4))\n"
      "def train(step): job.model(torch.ones(3, 4)).sum().backward()\n"
      "for step, loss in job.run(train, 3):\n"
      "    while not threads(): time.sleep(0.01)  # each names itself when it first runs\n"
      "    print('step', step)\n"
      "if sys.argv[1:]: torch.distributed.destroy_process_group()\n");
  for (const Arguments& how : {Arguments{}, Arguments{"itself"}}) {
    const SubprocessResult result = Start(Arguments{"run", script} + how, WithTorch()).Wait(kLong);
    EXPECT_THAT(result, ExitsWith(0));
    EXPECT_THAT(result.out, HasSubstr("step 2\nleft 0\n"));
  }
}

// No word of an error tells whose it is: the first hides that gloo has failed, the other names it.
TEST_F(TorchSurvive, ALostRankIsToldByItsConnectionAndNotByTheErrorsWords) {
  const SubprocessResult result = RunWithDeaths(3, 4, {1}, {"masked"});
  EXPECT_THAT(result.err, HasSubstr("3 ranks go on at step 4; from rank 2 to rank 1"));
  for (const int rank : {0, 2}) {
    EXPECT_EQ(Losses(rank).size(), static_cast<size_t>(kSteps)) << rank;  // one process
  }
  ExpectOneEnd(3);
}

// Rank 0 waits for it in the meantime, and takes it for lost.
TEST_F(TorchSurvive, AFaultOfTheProgramsOwnIsItsEnd) {
  const std::string script =
      PythonScript("fails.py",
                   "import os, sys, torch\nfrom muster import survive\n"
                   "job = survive.Job(torch.nn.Linear(4, 4))\n"
                   "told = 'rank ' + os.environ['RANK'] + ' asks for another round'\n"
                   "survive.muster_job.next_round = lambda patience: sys.exit(told)\n"
                   "def train(step):\n"
                   "    if job.rank == 1 and sys.argv[1:]: raise RuntimeError(sys.argv[1])\n"
                   "    job.model(torch.ones(3, 4 + job.rank)).sum().backward()\n"
                   "for step, loss in job.run(train, 3): print('step', step)\n");
  const std::string own = "a fault beside gloo";
  for (const Arguments& fault : {Arguments{}, Arguments{own}}) {
    const SubprocessResult result =
        Start(Arguments{"run", "--nproc_per_node=2", script} + fault, WithTorch()).Wait(kLong);
    EXPECT_THAT(result, ExitsWith(1));
    EXPECT_THAT(result.err,
                HasSubstr(fault.empty() ? "mat1 and mat2 shapes cannot be multiplied" : own));
    EXPECT_THAT(result.err, Not(HasSubstr("rank 1 asks for another round")));
  }
}

}  // namespace
}  // namespace muster::testing
