// Real workers below a real guardian: each says by which signal it has ended.
#include "agent/workers/worker_signals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <map>
#include <memory>

#include "absl/time/clock.h"
#include "asio/io_context.hpp"
#include "asio/post.hpp"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr absl::Duration kDeadline = absl::Seconds(20);

class Signals : public ::testing::Test {
 protected:
  Signals() {
    auto handle = ForkGuardian();
    EXPECT_TRUE(handle.ok()) << handle.status();
    guardian_ = std::make_unique<GuardianClient>(
        loop_, *std::move(handle),
        GuardianListener{
            .on_spawned = [this](uint64_t id, pid_t pid, UniqueFd,
                                 bool) { roster_.Find(id)->pid = pid; },
            .on_spawn_failed = [](uint64_t, absl::Status status) { ADD_FAILURE() << status; },
            .on_exited =
                [this](const WorkerExit& exit) {
                  ended_[roster_.Find(exit.worker_id)->local_rank.value()] = exit.signal;
                },
            .on_warm = [](const WarmState&) {},
            .on_empty = [] {},
            .on_strays = [](const std::vector<pid_t>&) {},
            .on_lost = [](const std::string& reason) { ADD_FAILURE() << reason; }});
    roster_.StartRound({.round = Round(0)}, {});
    Spawn(0);
    Spawn(1);
    EXPECT_TRUE(RunUntil([this] { return roster_.Pids().size() == 2; }));
  }

  void Spawn(int local_rank) {
    guardian_->Spawn({.worker_id = roster_.Add(LocalRank(local_rank)).id,
                      .argv = {"sleep", "1000"},
                      .environment = {"PATH=/usr/local/bin:/usr/bin:/bin"}});
  }

  template <typename Predicate>
  bool RunUntil(Predicate done) {
    const MonoTime deadline = MonoNow() + kDeadline;
    while (!done()) {
      const absl::Duration left = deadline - MonoNow();
      if (left <= absl::ZeroDuration()) return false;
      loop_.restart();
      loop_.run_one_for(absl::ToChronoNanoseconds(left));
    }
    return true;
  }
  bool HaveEnded(size_t num_workers) {
    return RunUntil([&] { return ended_.size() >= num_workers; });
  }
  WorkerSignals Make(bool may_reach_workers) {
    return WorkerSignals(loop_, roster_, *guardian_, may_reach_workers);
  }

  asio::io_context loop_;
  WorkerRoster roster_;
  std::map<int, int> ended_;  // local rank to signal
  std::unique_ptr<GuardianClient> guardian_;
};

TEST_F(Signals, GoToAllButTheSparedAndAreNotedAsOursBeforeTheyAreSent) {
  WorkerSignals signals = Make(false);
  signals.Prepare({.signal = SIGTERM, .spared = {LocalRank(0)}});
  EXPECT_THAT(roster_.FindByLocalRank(LocalRank(1))->signals, ElementsAre(SIGTERM));
  EXPECT_THAT(roster_.FindByLocalRank(LocalRank(0))->signals, IsEmpty());
  signals.Send({.signal = SIGTERM, .spared = {LocalRank(0)}});
  EXPECT_TRUE(HaveEnded(1));
  // Whoever gets this one had not got the other.
  signals.Send({.signal = SIGUSR1});
  EXPECT_TRUE(HaveEnded(2));
  EXPECT_THAT(ended_, ElementsAre(Pair(0, SIGUSR1), Pair(1, SIGTERM)));
}

TEST_F(Signals, ThatWereSentToEveryProcessAreNotSentAgain) {
  WorkerSignals signals = Make(true);
  ASSERT_EQ(::kill(guardian_->pid(), SIGUSR2), 0);
  signals.NoteReceived(SIGUSR2);
  // Another comes before the first is passed on.
  signals.NoteReceived(SIGINT);
  signals.Send({.signal = SIGUSR2});
  // Both wait for the same moment, in their order.
  signals.Send({.signal = SIGTERM});
  EXPECT_TRUE(HaveEnded(2));
  EXPECT_THAT(ended_, ElementsAre(Pair(0, SIGTERM), Pair(1, SIGTERM)));
}

TEST_F(Signals, ThatCameToUsAloneArePassedOn) {
  WorkerSignals signals = Make(true);
  signals.NoteReceived(SIGUSR2);
  signals.Send({.signal = SIGUSR2});
  EXPECT_TRUE(HaveEnded(2));
  EXPECT_THAT(ended_, ElementsAre(Pair(0, SIGUSR2), Pair(1, SIGUSR2)));
}

TEST_F(Signals, OfAnEarlierRoundHoldUpNoneOfTheNext) {
  WorkerSignals signals = Make(true);
  ASSERT_EQ(::kill(guardian_->pid(), SIGUSR2), 0);
  signals.NoteReceived(SIGUSR2);
  signals.StartRound();
  signals.Send({.signal = SIGUSR2});
  EXPECT_TRUE(HaveEnded(2));
  EXPECT_THAT(ended_, ElementsAre(Pair(0, SIGUSR2), Pair(1, SIGUSR2)));
}

TEST_F(Signals, ThatWaitAsARoundBeginsReachNobodyWhoIsStartedThen) {
  WorkerSignals signals = Make(true);
  signals.NoteReceived(SIGUSR2);
  signals.Send({.signal = SIGUSR2});
  signals.StartRound();
  Spawn(2);
  EXPECT_TRUE(HaveEnded(2));
  signals.Send({.signal = SIGUSR1});
  EXPECT_TRUE(HaveEnded(3));
  EXPECT_THAT(ended_, ElementsAre(Pair(0, SIGUSR2), Pair(1, SIGUSR2), Pair(2, SIGUSR1)));
}

TEST_F(Signals, OfARoundWaitTheirTimeThoughThatOfTheRoundBeforeIsUp) {
  WorkerSignals signals = Make(true);
  ASSERT_EQ(::kill(guardian_->pid(), SIGUSR2), 0);
  signals.NoteReceived(SIGUSR2);
  signals.Send({.signal = SIGUSR2});
  absl::SleepFor(absl::Milliseconds(60));
  MonoTime sent;
  // The loop looks at its timers before it runs this.
  asio::post(loop_, [&] {
    signals.StartRound();
    signals.NoteReceived(SIGUSR1);
    signals.Send({.signal = SIGUSR1});
    sent = MonoNow();
  });
  EXPECT_TRUE(HaveEnded(2));
  EXPECT_GE(MonoNow() - sent, absl::Milliseconds(49));
  EXPECT_THAT(ended_, ElementsAre(Pair(0, SIGUSR1), Pair(1, SIGUSR1)));
}

TEST_F(Signals, EndOneWorkerAndSayWhy) {
  WorkerSignals signals = Make(false);
  signals.End(nullptr, "nobody");
  RunningWorker* const worker = roster_.FindByLocalRank(LocalRank(1));
  signals.End(worker, "it hangs");
  EXPECT_EQ(worker->why_ended, "it hangs");
  EXPECT_THAT(worker->signals, ElementsAre(SIGKILL));
  EXPECT_TRUE(HaveEnded(1));
  EXPECT_THAT(ended_, ElementsAre(Pair(1, SIGKILL)));
}

}  // namespace
}  // namespace muster::agent
