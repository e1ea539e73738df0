// Workers of a roster that exit, with a log pump, a watch that is off and followers, but without
// processes.
#include "agent/workers/worker_exits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <fstream>

#include "tests/unit/agent/console/log_pump_fixture.h"

namespace muster::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Exits : public LogPumpTest {
 protected:
  Exits() {
    options_.node.name = "node1";
    options_.run_directory = directory_;
    Start({});
    exits_.emplace(WorkerExits::Parts{
        .options = options_,
        .roster = roster_,
        .pump = *pump_,
        .hang_watch = hang_watch_,
        .followers = followers_,
        .on_exit = [this](WorkerExited exited) { told_.push_back(std::move(exited)); }});
    roster_.StartRound({.round = Round(3), .node_rank = NodeRank(1), .first_rank = Rank(10)}, {});
    for (int i = 0; i < 2; ++i) {
      RunningWorker& worker = roster_.Add(LocalRank(i), streams_[i].error_file);
      worker.pid = 1000 + i;
      ids_.push_back(worker.id);
    }
  }
  void Exit(int local_rank, int exit_code, int signal = 0) {
    exits_->OnExited({.worker_id = ids_[local_rank], .exit_code = exit_code, .signal = signal});
  }
  WorkerFailure ToldFailure() {
    RunUntil([this] { return !told_.empty(); });
    EXPECT_TRUE(!told_.empty() && told_[0].failure);
    return told_.empty() ? WorkerFailure{} : told_[0].failure.value_or(WorkerFailure{});
  }
  int64_t NumWarnings() {
    base::MutexLock lock(mu_);
    return std::count_if(logged_.begin(), logged_.end(), [](const std::string& line) {
      return absl::StrContains(line, "exited with code 0 before its program had finished");
    });
  }

  AgentOptions options_;
  WorkerRoster roster_;
  HangWatch hang_watch_{
      loop_, {.is_on = false}, [](int, const std::string&) {}, [](const hangs::NodeWord&) {}};
  LogFollowers followers_{loop_};
  std::optional<WorkerExits> exits_;
  std::vector<uint64_t> ids_;
  std::vector<WorkerExited> told_;
};

TEST_F(Exits, AreToldWithWhatTheWorkerHasSaid) {
  Put(streams_[1].stderr_fd, "about to fail\n");
  std::ofstream(streams_[1].error_file)
      << R"({"message": {"message": "bad batch", "extraInfo": {"py_callstack": "line 3",)"
      << R"( "timestamp": "1700000000"}}})";
  Exit(1, 7);
  EXPECT_THAT(told_, IsEmpty()) << "its files have not been read";
  const WorkerFailure failure = ToldFailure();
  EXPECT_EQ(told_[0].round, Round(3));
  EXPECT_EQ(failure.rank, Rank(11));
  EXPECT_EQ(failure.node_rank, NodeRank(1));
  EXPECT_EQ(failure.node_name, "node1");
  EXPECT_EQ(failure.pid, 1001);
  EXPECT_EQ(failure.exit_code, 7);
  EXPECT_EQ(failure.message, "bad batch\nline 3");
  EXPECT_EQ(failure.error_file, streams_[1].error_file);
  EXPECT_EQ(failure.unix_millis, 1700000000000);
  EXPECT_THAT(failure.last_output, HasSubstr("about to fail"));
  EXPECT_TRUE(told_[0].is_its_own);
}

TEST_F(Exits, ThatWeBroughtAboutAreNoFailuresOfTheWorkersOwn) {
  roster_.FindByPid(1000)->signals = {SIGTERM};
  Exit(0, 0, SIGTERM);
  EXPECT_EQ(ToldFailure().signal, SIGTERM);
  EXPECT_FALSE(told_[0].is_its_own);
}

TEST_F(Exits, OfWorkersThatTheWatchHasEndedAreFailuresAndSayWhy) {
  RunningWorker& worker = *roster_.FindByPid(1000);
  worker.signals = {SIGKILL};
  worker.why_ended = "it hangs";
  Exit(0, 0, SIGKILL);
  EXPECT_EQ(ToldFailure().message, "it hangs");
  EXPECT_TRUE(told_[0].is_its_own);
}

TEST_F(Exits, OfWorkersThatWereGivenUpAreNobodysConcern) {
  exits_->OnGivenUp(ids_[0], "the kernel does not let it go");
  EXPECT_EQ(ToldFailure().message, "the kernel does not let it go");
  Exit(0, 0, SIGKILL);
  Exit(1, 0);
  ASSERT_THAT(told_, SizeIs(2));
  EXPECT_EQ(told_[1].local_rank, LocalRank(1));
}

TEST_F(Exits, WithZeroAreToldAtOnceUnlessSomebodyFollowsTheLogs) {
  Exit(0, 0);
  ASSERT_THAT(told_, SizeIs(1));
  EXPECT_FALSE(told_[0].failure);
  followers_.OnLook(MonoNow());
  Exit(1, 0);
  EXPECT_THAT(told_, SizeIs(1)) << "they have not seen its last lines";
  RunUntil([this] {
    followers_.OnShown(followers_.OnLook(MonoNow()), /*is_all=*/true);
    return told_.size() == 2;
  });
  EXPECT_THAT(told_, SizeIs(2));
}

TEST_F(Exits, OfProgramsThatCouldNotStartHaveTheCodesOfAShell) {
  exits_->OnSpawnFailed(ids_[0], absl::NotFoundError("no such program"));
  exits_->OnSpawnFailed(ids_[1], absl::PermissionDeniedError("not executable"));
  ASSERT_THAT(told_, SizeIs(2));
  EXPECT_EQ(told_[0].failure->exit_code, 127);
  EXPECT_EQ(told_[0].failure->message, "no such program");
  EXPECT_TRUE(told_[0].failure->start_failed);
  EXPECT_EQ(told_[1].failure->exit_code, 126);
  EXPECT_TRUE(told_[0].is_its_own && told_[1].is_its_own);
}

TEST_F(Exits, WithZeroAndWithoutAGoodbyeAreNamedInEitherOrder) {
  Exit(0, 0);
  EXPECT_EQ(NumWarnings(), 0);
  exits_->OnSilentLeave(LocalRank(0));
  EXPECT_EQ(NumWarnings(), 1);
  exits_->OnSilentLeave(LocalRank(1));
  EXPECT_EQ(NumWarnings(), 1);
  Exit(1, 0);
  EXPECT_EQ(NumWarnings(), 2);
}

TEST_F(Exits, OfOneRoundSayNothingOfTheNext) {
  exits_->OnSilentLeave(LocalRank(0));
  exits_->StartRound();
  Exit(0, 0);
  EXPECT_EQ(NumWarnings(), 0);
}

}  // namespace
}  // namespace muster::agent
