// What is said where ranks of PyTorch wait for something that no recorder has
// (programs/torch_waits.py): whoever waits for something of its own accuses nobody. Needs the
// environment that `deploy/dev deps --peers` makes; skipped where it is not there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/support/files.h"
#include "tests/support/job_under_test.h"
#include "tests/support/peer_python.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kPatience = absl::Minutes(4);

class TorchWaits : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    if (PeerPython().empty()) GTEST_SKIP() << kNoPeerPython;
  }

  Subprocess StartJob(const std::string& how, const Arguments& more) const {
    return Start(
        Arguments{"run", "--nproc_per_node=3", "--rdzv_id=" + how, "--log_dir=" + Out("logs")} +
            more +
            Arguments{absl::StrCat(kSourceDirectory, "/tests/integration/programs/torch_waits.py"),
                      how},
        {{"PYTHON_EXEC", PeerPython()}, {"PYTHONDONTWRITEBYTECODE", "1"}, {"OUT", Out("")}});
  }

  // Runs them side by side, since most of their time is waiting; each says `said`.
  void ExpectSaid(const std::vector<std::pair<std::string, std::string>>& programs) const {
    std::vector<Subprocess> jobs;
    for (const auto& [how, said] : programs) jobs.push_back(StartJob(how, {"--hang_timeout=12"}));
    for (size_t i = 0; i < programs.size(); ++i) {
      const auto& [how, said] = programs[i];
      EXPECT_TRUE(jobs[i].WaitForOutput(said, kPatience)) << how;
      jobs[i].Signal(SIGTERM);
      EXPECT_THAT(jobs[i].Wait(kPatience).err, HasSubstr(said)) << how;
    }
  }
};

// Nobody is accused, and whoever only waits for an answer is named once and not ended, although all
// of it is longer than --hang_timeout.
TEST_F(TorchWaits, AreNoHangOfRanksThatIdleByIntention) {
  std::vector<std::pair<std::string, Subprocess>> jobs;
  for (const char* how :
       {"future", "pool", "event", "after_send", "evaluator", "rpc_long", "rpc_server"}) {
    jobs.emplace_back(how, StartJob(how, {"--max_restarts=1", "--hang_timeout=12"}));
  }
  EXPECT_TRUE(jobs[5].second.WaitForOutput("rank 2 has not answered rpc_sync of poll", kPatience));
  absl::SleepFor(absl::Seconds(20));  // longer than the limit
  WriteFile(Out("seen"), "");
  for (auto& [how, job] : jobs) {
    const SubprocessResult result = job.Wait(kPatience);
    EXPECT_THAT(result, ExitsWith(0)) << how;
    EXPECT_THAT(result.err, AllOf(Not(HasSubstr("hang:")), Not(HasSubstr("restart 1")))) << how;
    const bool may_be_noticed = how == "after_send" || how == "rpc_long";
    if (may_be_noticed) continue;
    EXPECT_THAT(result.err, AllOf(Not(HasSubstr("has not")), Not(HasSubstr("in no operation"))))
        << how;
  }
}

TEST_F(TorchWaits, NameWhoIsMissing) {
  ExpectSaid({{"monitored_barrier",
               "hang: rank 2 has not called monitored_barrier (group default_pg); ranks 0 and 1 "
               "wait"},
              {"rpc_shutdown", "hang: rank 2 has not called rpc.shutdown; ranks 0 and 1 wait"},
              {"roots",
               " with root 0 and rank 2 called broadcast #6 (group default_pg, 16777216 "
               "bytes f32) with root 1: which of them is right cannot be told"},
              {"no_member", "hang: rank 2 has not called all_reduce #6"},
              {"saver", "its thread Saver_0 in never at torch_waits.py:"}});
}

TEST_F(TorchWaits, NameWhoHasNotAnsweredACallOfRpc) {
  const std::string said = "rank 2 has not answered rpc_sync of never, for which rank 0 waits";
  ExpectSaid({{"rpc_never", said}, {"rpc_alone", said}});
}

}  // namespace
}  // namespace muster::testing
