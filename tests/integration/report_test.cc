// `muster report` and `muster explain` of what real jobs leave: a restart on two nodes, a hang, a
// killed agent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "tests/integration/several_nodes.h"
#include "tests/support/files.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kLong = absl::Seconds(90);

class Report : public SeveralNodes {
 protected:
  std::string logs() const { return directory() + "/logs"; }
  std::string LogOption() const { return "--log_dir=" + logs(); }
  // Paths below logs() whose file name begins and ends so.
  std::vector<std::string> Find(const std::string& begin, const std::string& end) const {
    std::vector<std::string> found;
    for (const std::string& file : FilesBelow(logs())) {
      const std::string name = file.substr(file.rfind('/') + 1);
      if (absl::StartsWith(name, begin) && absl::EndsWith(name, end)) {
        found.push_back(absl::StrCat(logs(), "/", file));
      }
    }
    return found;
  }
};

TEST_F(Report, PutsTheDiariesOfTwoNodesTogether) {
  const std::string script = ShellScript(
      "fails_once.sh", "[ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ] && exit 7\nsleep 1\n");
  Subprocess first = StartElastic(1, "2", {"--max_restarts=1", LogOption(), script});
  Subprocess second = StartElastic(2, "2", {"--max_restarts=1", LogOption(), script});
  EXPECT_THAT(first.Wait(kLong), ExitsWith(0));
  EXPECT_THAT(second.Wait(kLong), ExitsWith(0));
  EXPECT_EQ(Find("diary", ".jsonl").size(), 2u);
  const SubprocessResult report =
      Run({"report", logs(), "--html", Out("a.html"), "--trace", Out("a.json")});
  EXPECT_THAT(report, ExitsWith(0));
  EXPECT_THAT(report.out,
              AllOf(HasSubstr("job elastic ended well after"), HasSubstr("2 nodes, 2 ranks"),
                    HasSubstr("round 0: 2 nodes, 2 ranks"), HasSubstr("round 1: 2 nodes, 2 ranks"),
                    HasSubstr("exit code 7"), Not(HasSubstr("nodes without an end"))));
  EXPECT_THAT(ReadOut("a.html"), HasSubstr("job elastic ended well"));
  const auto trace = nlohmann::json::parse(ReadOut("a.json"), nullptr, false);
  ASSERT_TRUE(trace.is_object());
  EXPECT_GT(trace["traceEvents"].size(), 10u);
}

TEST_F(Report, TellsOfAHangAndExplainExplainsIt) {
  Subprocess job = Start({"run", "--rdzv_id=hangs", "--nproc_per_node=2", LogOption(),
                          "--watch=report", "--hang_timeout=12", Built("hanging_rank"), "sleeps"});
  ASSERT_TRUE(job.WaitForOutput("all of it is in", kLong));
  std::vector<std::string> incidents;
  ASSERT_TRUE(WaitUntil(
      [&] {
        incidents = Find("hang_", ".json");
        return !incidents.empty();
      },
      kLong));
  job.Signal(SIGTERM);
  EXPECT_THAT(job.Wait(kLong), ExitsWith(128 + SIGTERM));
  const SubprocessResult report = Run({"report", logs()});
  EXPECT_THAT(report, ExitsWith(0));
  EXPECT_THAT(report.out, AllOf(HasSubstr("job hangs ended with exit code 143"),
                                HasSubstr("hang in round 0: rank 1 has not called"),
                                HasSubstr(incidents.front()), HasSubstr("hung ")));
  const SubprocessResult prose = Run({"explain", incidents.front()});
  EXPECT_THAT(prose, ExitsWith(0));
  EXPECT_THAT(prose.out, AllOf(HasSubstr("Job hangs hung in round 0"),
                               HasSubstr("At fault: rank 1."), HasSubstr("SleepInTheDataLoader")));
}

TEST_F(Report, SaysThatADiaryBreaksOffWhereItsAgentWasKilled) {
  const std::string script = ShellScript("sleeps.sh", "echo > $OUT/ready; exec sleep 1000");
  Subprocess job = Start({"run", "--rdzv_id=killed", LogOption(), script});
  ASSERT_TRUE(WaitForOut("ready"));
  ASSERT_TRUE(WaitUntil(
      [&] {
        const std::vector<std::string> diaries = Find("diary", ".jsonl");
        return !diaries.empty() && absl::StrContains(ReadFile(diaries.front()), "\"steps\"");
      },
      kLong));
  job.Signal(SIGKILL);
  job.Wait(kLong);
  ASSERT_TRUE(NothingIsLeft());
  const SubprocessResult report = Run({"report", logs()});
  EXPECT_THAT(report, ExitsWith(0));
  EXPECT_THAT(report.out, AllOf(ContainsRegex("job killed has no end after ([1-9][0-9]|[0-9]+m)"),
                                HasSubstr("its diary breaks off")));
}

TEST_F(Report, FindsAJobByItsName) {
  const std::string script = ShellScript("train.sh", "exit 0");
  EXPECT_THAT(Run({"run", "--rdzv_id=first", LogOption(), script}), ExitsWith(0));
  EXPECT_THAT(Run({"run", "--rdzv_id=second", LogOption(), script}), ExitsWith(0));
  EXPECT_THAT(Run({"report", logs()}).out, HasSubstr("job second ended well"));
  EXPECT_THAT(Run({"report", LogOption(), "first"}).out, HasSubstr("job first ended well"));
  const SubprocessResult none = Run({"report", LogOption(), "third"});
  EXPECT_THAT(none, ExitsWith(1));
  EXPECT_THAT(none.err, HasSubstr("there is no diary of job 'third' in"));
}

TEST_F(Report, RefusesWhatIsNoFolderAndExplainWhatIsNoIncident) {
  EXPECT_THAT(Run({"report"}), ExitsWith(2));
  EXPECT_THAT(Run({"report", Out("nowhere")}), ExitsWith(1));
  EXPECT_THAT(Run({"explain", Out("nowhere")}), ExitsWith(1));
  WriteFile(Out("x.json"), "{}");
  const SubprocessResult result = Run({"explain", Out("x.json")});
  EXPECT_THAT(result, ExitsWith(2));
  EXPECT_THAT(result.err, HasSubstr("this is not an incident file"));
}

// Nobody asked for files, so none are left.
TEST_F(Report, LeavesNoDiaryOfAJobThatKeepsNoLogs) {
  const std::string script = ShellScript("train.sh", "exit 0");
  EXPECT_THAT(Run({"run", script}), ExitsWith(0));
  for (const std::string& file : FilesBelow(directory()))
    EXPECT_THAT(file, Not(HasSubstr("diary")));
}

}  // namespace
}  // namespace muster::testing
