// One musterd for many jobs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tests/support/job_under_test.h"

namespace muster::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class Daemon : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    const std::string port_file = directory() + "/port";
    daemon_.emplace(StartProgram(
        Arguments{MusterdBinary(), "--listen=127.0.0.1:0", "--port_file=" + port_file} +
        Options()));
    ASSERT_TRUE(WaitUntil([&] {
      return !ReadFile(port_file).empty() && ReadFile(port_file).back() == '\n';
    })) << ToString(daemon_->Wait(absl::ZeroDuration()));
    port_ = std::string(absl::StripAsciiWhitespace(ReadFile(port_file)));
  }
  void TearDown() override {
    if (daemon_.has_value()) {
      daemon_->Signal(SIGTERM);
      EXPECT_TRUE(daemon_->Wait().ended);
    }
    JobTest::TearDown();
  }

  virtual Arguments Options() const { return {}; }

  Subprocess StartAgent(const std::string& run_id, int node, const Arguments& rest,
                        const Environment& changes = {}) const {
    return Start(Arguments{"run", "--nnodes=2", "--rdzv_backend=c10d", "--rdzv_id=" + run_id,
                           "--rdzv_endpoint=127.0.0.1:" + port_,
                           absl::StrCat("--local_addr=127.0.0.", node)} +
                     rest,
                 changes);
  }
  bool DaemonSays(const std::string& text) { return daemon_->WaitForOutput(text); }
  void RunJob(const std::string& run_id, const Arguments& rest) const {
    Subprocess one = StartAgent(run_id, 1, rest), other = StartAgent(run_id, 2, rest);
    EXPECT_THAT(one.Wait(), ExitsWith(0));
    EXPECT_THAT(other.Wait(), ExitsWith(0));
  }

 private:
  std::optional<Subprocess> daemon_;
  std::string port_;
};

TEST_F(Daemon, ServesTenJobsAtOnceAndKeepsThemApart) {
  // The workers of all jobs wait for each other, so the jobs are all there at the same time.
  const std::string script = ShellScript("train.sh", R"(
echo $WORLD_SIZE > $OUT/$TORCHELASTIC_RUN_ID.$RANK
while [ ! -e $OUT/go ]; do sleep 0.1; done)");
  std::vector<Subprocess> agents;
  for (int job = 0; job < 10; ++job) {
    for (int node : {1, 2}) agents.push_back(StartAgent(absl::StrCat("job", job), node, {script}));
  }
  for (int job = 0; job < 10; ++job) {
    for (int rank : {0, 1}) {
      const std::string file = absl::StrCat("job", job, ".", rank);
      EXPECT_TRUE(WaitUntil([&] { return ReadOut(file) == "2\n"; }))
          << file << ": " << ReadOut(file);
    }
  }
  WriteFile(Out("go"), "");
  for (Subprocess& agent : agents) EXPECT_THAT(agent.Wait(), ExitsWith(0));
}

// Elsewhere agents of an earlier life have a lease to come back to its endpoint.
class DaemonWithALongLease : public Daemon {
 protected:
  Arguments Options() const override { return {"--lease=3600"}; }
};

TEST_F(DaemonWithALongLease, BeginsItsFirstJobAtOnceAtAPortThatNobodyKnew) {
  RunJob("first", {ShellScript("train.sh", "exit 0")});
}

TEST_F(Daemon, RefusesTheDefaultRunId) {
  const SubprocessResult result = StartAgent("none", 1, {ShellScript("train.sh", "exit 0")}).Wait();
  EXPECT_THAT(result, ExitsWith(2));
  EXPECT_THAT(result.err, ContainsRegex("rdzv.id"));
}

TEST_F(Daemon, StartsANewInstanceWhenAnIdIsUsedAgain) {
  const std::string script =
      ShellScript("train.sh", "echo $TORCHELASTIC_RESTART_COUNT >> $OUT/rank$RANK");
  RunJob("again", {script});
  RunJob("again", {script});
  EXPECT_EQ(ReadOut("rank0"), "0\n0\n") << "the second job does not count the first one's rounds";
}

class OpenDaemon : public Daemon {
  Arguments Options() const override { return {"--auth=none"}; }
};

TEST_F(OpenDaemon, LetsInEveryoneWithoutAuthentication) {
  EXPECT_TRUE(DaemonSays("without authentication (--auth=none)"));
  const TemporaryDirectory other_home;
  const std::string script = ShellScript("train.sh", "exit 0");
  Subprocess one = StartAgent("open", 1, {"--auth=none", script});
  Subprocess other =
      StartAgent("open", 2, {script}, {{"MUSTER_AUTH", "none"}, {"HOME", other_home.path()}});
  EXPECT_THAT(one.Wait(), ExitsWith(0));
  EXPECT_THAT(other.Wait(), ExitsWith(0));
}

class DaemonWithShortLeases : public Daemon {
  Arguments Options() const override { return {"--lease=1"}; }
};

// Agents would renew theirs every two seconds.
TEST_F(DaemonWithShortLeases, IsHeardByAgentsThatWereGivenOthersAndLosesNone) {
  const Arguments job = {"--rdzv_conf=lease=30", ShellScript("train.sh", "sleep 6")};
  Subprocess one = StartAgent("short", 1, job), other = StartAgent("short", 2, job);
  for (Subprocess* agent : {&one, &other}) {
    const SubprocessResult result = agent->Wait();
    EXPECT_THAT(result, ExitsWith(0));
    EXPECT_THAT(result.err, HasSubstr("leases last 1s"));
    EXPECT_THAT(result.err, Not(HasSubstr("lost")));
  }
}

}  // namespace
}  // namespace muster::testing
