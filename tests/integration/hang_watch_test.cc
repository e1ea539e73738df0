// The hang watch on real processes: who hangs is noticed, named and ended; who only takes long is
// left alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/support/files.h"
#include "tests/support/job_under_test.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kNotice[] =
    "rank 1 has not called all_reduce #5 (group world, 4096 bytes f32); rank 0 waits";

// A hang takes its time; more of it beside other tests on a small machine.
constexpr absl::Duration kPatienceWithHangs = absl::Minutes(2);

class HangWatch : public JobTest {
 protected:
  Arguments JobWith(const std::string& how, const Arguments& more) const {
    return Arguments{"run", "--nproc_per_node=2", "--rdzv_id=job", "--log_dir=" + Out("logs")} +
           more + Arguments{Built("hanging_rank"), how};
  }

  // The report of the job's only hang; waits until a thread of the agent has written it.
  nlohmann::json Report(const std::string& last_milestone) const {
    nlohmann::json report;
    WaitUntil([&] {
      for (const std::string& file : FilesBelow(Out("logs"))) {
        if (!absl::EndsWith(file, "hang_0_1.json")) continue;
        report = nlohmann::json::parse(ReadFile(Out("logs/") + file), nullptr,
                                       /*allow_exceptions=*/false);
      }
      return report.is_object() && report["timeline_ms"].contains(last_milestone);
    });
    return report;
  }
};

TEST_F(HangWatch, RestartsAJobWhoseRankSleepsInItsDataLoader) {
  const SubprocessResult result =
      Start(JobWith("sleeps", {"--max_restarts=1", "--hang_timeout=12"})).Wait(kPatienceWithHangs);
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.err, AllOf(HasSubstr(kNotice), HasSubstr("is between steps, before step 5"),
                                HasSubstr(absl::StrCat("hang: ", kNotice)),
                                HasSubstr("nothing has moved for 12 s (--hang_timeout)")));
  const nlohmann::json report = Report("first_step");
  EXPECT_EQ(report["verdict"]["culprits"].dump(), "[1]");
  EXPECT_EQ(report["verdict"]["waiting"].dump(), "[0]");
  EXPECT_EQ(report["verdict"]["cause"], "data_loader");
  EXPECT_THAT(report["stacks"].dump(), HasSubstr("SleepInTheDataLoader"));
  EXPECT_EQ(report["detected_by"][0]["silence_on"], "progress_board");
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("detected by silence: ranks 0 and 1 on the progress board"),
                    HasSubstr("the job makes progress again after the hang; timeline in ms: "
                              "detected 0, decided ")));
  int64_t last = 0;
  for (const char* milestone :
       {"detected", "decided", "reported", "stopped", "reformed", "started", "first_step"}) {
    ASSERT_TRUE(report["timeline_ms"].contains(milestone)) << milestone;
    EXPECT_GE(report["timeline_ms"][milestone], last) << milestone;
    last = report["timeline_ms"][milestone];
  }
}

TEST_F(HangWatch, OnlySaysItWhereItMayNotAct) {
  Subprocess job = Start(JobWith("spins", {"--hang_timeout=12"}));
  ASSERT_TRUE(job.WaitForOutput("this is only reported (--watch=report)", kPatienceWithHangs));
  job.Signal(SIGTERM);
  const SubprocessResult result = job.Wait();
  EXPECT_THAT(result, ExitsWith(128 + SIGTERM));
  EXPECT_THAT(result.err,
              AllOf(HasSubstr(kNotice), HasSubstr("computing"), HasSubstr("SpinForEver")));
}

TEST_F(HangWatch, RestartsAJobWhoseRankSkipsAnAllReduce) {
  const SubprocessResult result =
      Start(JobWith("skips", {"--max_restarts=1", "--hang_timeout=12"})).Wait(kPatienceWithHangs);
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.err, HasSubstr(absl::StrCat("hang: ", kNotice)));
}

TEST_F(HangWatch, DoesNotAwaitTheTimeoutForAStoppedRank) {
  const SubprocessResult result =
      Start(JobWith("stops", {"--max_restarts=1"})).Wait(kPatienceWithHangs);
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.err, HasSubstr("hang: rank 1 is stopped by a signal and cannot take part in "
                                    "all_reduce #5"));
}

TEST_F(HangWatch, DoesNotAwaitTheTimeoutForGroupsInOppositeOrders) {
  const SubprocessResult result =
      Start(JobWith("orders", {"--watch=restart"})).Wait(kPatienceWithHangs);
  EXPECT_FALSE(result.ended && result.exit_code == 0);
  EXPECT_THAT(result.err,
              HasSubstr("hang: ranks 0 and 1 wait for each other in a circle: rank 0 waits "
                        "in all_reduce #0 (group a, 4096 bytes f32) for rank 1"));
}

// Programs of other languages and libraries, by a file that they copy.
TEST_F(HangWatch, HearsTheMarksOfProgramsInPythonAndC) {
  const std::string script = PythonScript(
      "train.py",
      "import os, sys, time\n"
      "sys.path.insert(0, os.environ['MARKS'])\n"
      "import muster_marks\n"
      "for step in range(5):\n"
      "    for phase in ('forward', 'backward', 'reduce'):\n"
      "        muster_marks.mark(step, phase)\n"
      "    muster_marks.mark(step + 1, 'idle')\n"
      "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
      "    muster_marks.mark(5, 'reduce' if os.environ['RANK'] == '0' else 'forward')\n"
      "    time.sleep(1000)\n");
  const auto start = [&](const char* name, const std::string& program) {
    return Start({"run", "--nproc_per_node=2", "--max_restarts=1", "--hang_timeout=8",
                  absl::StrCat("--rdzv_id=", name), "--log_dir=" + Out("logs"), program},
                 {{"MARKS", absl::StrCat(kSourceDirectory, "/deploy/python")}});
  };
  Subprocess in_python = start("python", script);
  Subprocess in_c = start("c", Built("marks_probe"));
  for (Subprocess* job : {&in_python, &in_c}) {
    const SubprocessResult result = job->Wait(kPatienceWithHangs);
    EXPECT_THAT(result, ExitsWith(0));
    EXPECT_THAT(
        result.err,
        AllOf(HasSubstr("hang: rank 1 is the furthest behind; no rank moves, and none is seen "
                        "to wait for another"),
              HasSubstr("is in phase forward of step 5, asleep")));
    if (job == &in_python) {
      EXPECT_THAT(result.err, HasSubstr("ranks 0 and 1 in <module> at train.py:10"));
    }
  }
}

TEST_F(HangWatch, LeavesAJobAloneThatOnlyTakesLong) {
  std::vector<Subprocess> jobs;
  for (const char* how : {"save", "first_step", "computes"}) {
    jobs.push_back(Start(JobWith(how, {"--max_restarts=1"})));
  }
  Subprocess unwatched = Start(JobWith("computes", {"--watch=off", "--hang_timeout=1"}));
  for (Subprocess& job : jobs) {
    const SubprocessResult result = job.Wait(kPatienceWithHangs);
    EXPECT_THAT(result, ExitsWith(0));
    EXPECT_THAT(result.err, Not(HasSubstr("hang:")));
  }
  const SubprocessResult result = unwatched.Wait();
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.err, Not(HasSubstr("has not called")));
}

// The rank takes twice --hang_timeout.
TEST_F(HangWatch, LeavesARankAloneThatTakesLongBehindItsLastStep) {
  const SubprocessResult result =
      Start(JobWith("end", {"--max_restarts=1", "--hang_timeout=10"})).Wait(kPatienceWithHangs);
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.err, AllOf(Not(HasSubstr("hang:")), Not(HasSubstr("restart 1"))));
}

TEST_F(HangWatch, NamesASlowRankAsSlowAndNotAsHung) {
  Subprocess job = Start(JobWith("slow", {"--max_restarts=1"}));
  ASSERT_TRUE(
      job.WaitForOutput("rank 1 is slow, not hung: its own part of a step, not counting waits "
                        "for others, takes ",
                        kPatienceWithHangs));
  job.Signal(SIGTERM);
  const SubprocessResult result = job.Wait();
  EXPECT_THAT(result, ExitsWith(128 + SIGTERM));
  EXPECT_THAT(result.err, AllOf(Not(HasSubstr("hang:")), Not(HasSubstr("has not called"))));
}

// Shells that know nothing of us. It takes two minutes.
TEST_F(HangWatch, SaysOfARankThatTellsNothingThatItDoesNothingAndEndsNobody) {
  const std::string script =
      ShellScript("serve.sh",
                  "[ $RANK = 1 ] && exec sleep 1000\n"
                  "while :; do head -c 100000 /dev/zero > /dev/null; sleep 0.2; done\n");
  Subprocess job = Start({"run", "--nproc_per_node=2", "--max_restarts=1", "--hang_timeout=20",
                          "--no_python", script});
  Subprocess in_python = Start({"run", "--watch=restart",
                                PythonScript("wait.py",
                                             "import time\n"
                                             "def serve(): time.sleep(1000)\n"
                                             "serve()\n")});
  // The others have ended at once.
  Subprocess at_end = Start({"run", "--nproc_per_node=3", "--watch=restart", "--no_python",
                             ShellScript("end.sh", "[ $RANK = 1 ] && sleep 60\nexit 0\n")});
  ASSERT_TRUE(job.WaitForOutput("rank 1 has used almost no processor time", absl::Minutes(6)));
  EXPECT_TRUE(
      in_python.WaitForOutput(", in serve at wait.py:2 < <module> at wait.py:3", absl::Minutes(6)));
  in_python.Signal(SIGTERM);
  EXPECT_THAT(in_python.Wait(), ExitsWith(128 + SIGTERM));
  const SubprocessResult ended = at_end.Wait(kPatienceWithHangs);
  EXPECT_THAT(ended, ExitsWith(0));
  EXPECT_THAT(ended.err,
              AllOf(HasSubstr("ranks 0 and 2 have ended; rank 1 has not: pid "),
                    HasSubstr(" is waiting for a child process"), HasSubstr("rank 1 has ended, "),
                    HasSubstr(" after the others"), Not(HasSubstr("hang:"))));
  job.Signal(SIGTERM);
  const SubprocessResult result = job.Wait();
  EXPECT_THAT(result, ExitsWith(128 + SIGTERM));
  EXPECT_THAT(result.err, AllOf(HasSubstr("; rank 0 is active; rank 1 (pid"), HasSubstr("asleep"),
                                Not(HasSubstr("hang:"))));
}

TEST_F(HangWatch, SaysThatOneNodeCannotBeReplaced) {
  const SubprocessResult result = Run({"run", "--watch=replace", "--no_python", "/bin/true"});
  EXPECT_THAT(result, ExitsWith(0));
  EXPECT_THAT(result.err,
              HasSubstr("--watch=replace: a job on one node has no other to go on with; "
                        "a hang restarts it"));
}

}  // namespace
}  // namespace muster::testing
