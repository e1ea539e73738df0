// `muster bench scaling` of programs that tell their steps, and of those that do not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/job_under_test.h"
#include "tests/support/subprocess.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class Scaling : public JobTest {
 protected:
  // A step takes 20 ms on one rank and twice that on two, half of which is waiting.
  std::string Steps(int number) const {
    return PythonScript("steps.py", absl::StrCat("import os, sys, time\n"
                                                 "sys.path.insert(0, '",
                                                 kSourceDirectory,
                                                 "/deploy/python')\n"
                                                 "import muster_marks\n"
                                                 "for step in range(",
                                                 number,
                                                 "):\n"
                                                 "    muster_marks.mark(step, 'forward')\n"
                                                 "    time.sleep(0.02)\n"
                                                 "    if os.environ['WORLD_SIZE'] == '2':\n"
                                                 "        muster_marks.mark(step, 'reduce')\n"
                                                 "        time.sleep(0.02)\n"));
  }
};

TEST_F(Scaling, TellsTheRateAtEachNumberOfRanksAndWhereTheRestWent) {
  const SubprocessResult result =
      Run({"bench", "scaling", "--ranks=1,2", "--seconds=2", Steps(100000)});
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, ContainsRegex("\n +1 +[0-9.]+ +100 % +0 % "));
  EXPECT_THAT(result.out, ContainsRegex("\n +2 +[0-9.]+ +[0-9]+ % +[1-9][0-9] % "));
  EXPECT_THAT(result.out, ContainsRegex("At 2 ranks [0-9]+ % is lost: [0-9]+ % to waiting"));
  EXPECT_TRUE(NothingIsLeft());
}

// The program stops after its first measured steps.
TEST_F(Scaling, WaitsForAProgramThatStopsStepsNoLongerThanItIsTold) {
  const std::string steps = Steps(30) + ".stops.py";
  WriteFile(steps, ReadFile(directory() + "/steps.py") + "time.sleep(600)\n");
  const SubprocessResult result =
      Run({"bench", "scaling", "--ranks=1", "--seconds=500", "--timeout=3", steps});
  EXPECT_THAT(result, ExitsWith(1));
  EXPECT_THAT(result.err, HasSubstr("has begun no further step within 3s"));
  EXPECT_TRUE(NothingIsLeft());
}

TEST_F(Scaling, MeasuresTheTrainerOfTheRuntime) {
  const SubprocessResult result =
      Run({"bench", "scaling", "--ranks=1,2", "--seconds=1", MusterTrainBinary(), "--num_layers=1",
           "--num_heads=2", "--hidden_size=16", "--sequence_length=32", "--steps=1000000"});
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, ContainsRegex("\n +2 +[0-9.]+ +[0-9]+ % +[0-9]+ % +[0-9.]+\n"));
  EXPECT_TRUE(NothingIsLeft());
}

TEST_F(Scaling, MeasuresAProgramThatEndsByTheStepsThatItDid) {
  const SubprocessResult result =
      Run({"bench", "scaling", "--ranks=1", "--seconds=600", Steps(150)});
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.out, ContainsRegex("\n +1 +[0-9.]+ +100 %"));
}

TEST_F(Scaling, SaysWhatIsMissingWhereNothingCanBeMeasured) {
  const SubprocessResult fails =
      Run({"bench", "scaling", "--ranks=1", ShellScript("fails.sh", "echo no data; exit 3")});
  EXPECT_THAT(fails, ExitsWith(1));
  EXPECT_THAT(fails.err,
              AllOf(HasSubstr("ended before it could be measured"), HasSubstr("no data")));
  const SubprocessResult silent = Run(
      {"bench", "scaling", "--ranks=1", "--timeout=2", ShellScript("silent.sh", "exec sleep 600")});
  EXPECT_THAT(silent, ExitsWith(1));
  EXPECT_THAT(silent.err, HasSubstr("has told no step"));
  EXPECT_TRUE(NothingIsLeft());
}

}  // namespace
}  // namespace muster::testing
