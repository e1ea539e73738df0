// What the watch of a node sees of its workers: boards that are written here, and a process that
// sleeps.
#include "agent/watch/local_ranks.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "proto/io/unique_fd.h"
#include "tests/support/subprocess.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Ranks 4 and 5 are of this node, and 5 has no board.
class LocalRanksTest : public ::testing::Test {
 protected:
  LocalRanksTest() {
    WatchedRound round{.round = Round(3), .num_nodes = 2, .first_rank = 4, .world_size = 6};
    round.boards.emplace_back(*BoardMemory::Create());
    round.boards.emplace_back();
    round.torch_servers = {"", ""};
    const UniqueFd file(::open(round.boards[0]->path().c_str(), O_RDWR | O_CLOEXEC));
    void* const memory =
        ::mmap(nullptr, kBoardBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (memory == MAP_FAILED) throw std::runtime_error("cannot map the board");
    board_ = static_cast<ProgressBoard*>(memory);
    ranks_.StartRound(std::move(round));
    ranks_.OnSpawned(0, worker_.pid());
  }
  ~LocalRanksTest() override { ::munmap(board_, kBoardBytes); }
  // Marks as its worker would.
  void Mark(int64_t step) {
    board_->pid = worker_.pid();
    board_->progress =
        static_cast<uint64_t>(step + 1) << 8 | static_cast<uint64_t>(Phase::kForward);
    board_->num_steps = step;
  }
  void Pass(int seconds) {
    for (int i = 0; i < seconds; ++i) ranks_.Tick(now_ = now_ + absl::Seconds(1));
  }

  ProgressBoard* board_ = nullptr;  // as its worker has opened it
  MonoTime now_ = MonoNow();
  testing::Subprocess worker_{{.argv = {"/usr/bin/sleep", "1000"}}};
  asio::io_context loop_;
  LocalRanks ranks_{loop_, "node1"};
};

TEST_F(LocalRanksTest, CountWhatTheirBoardsTell) {
  Mark(7);
  Pass(1);
  EXPECT_THAT(ranks_.Steps(), ElementsAre(7, -1));
  EXPECT_EQ(ranks_.Progress().slowest_rank, 4);
  Pass(6);
  const hangs::NodeSummary summary = ranks_.Summarize(now_);
  EXPECT_EQ(summary.round, Round(3));
  EXPECT_THAT(summary.silent,
              ElementsAre(hangs::SilentRanks{4, 1, hangs::WatchPhase::kStep, absl::Seconds(6)}));
}

TEST_F(LocalRanksTest, CountThoseThatHaveEndedAsTheyShould) {
  ranks_.OnSpawned(1, worker_.pid());
  EXPECT_EQ(ranks_.Summarize(now_).num_ended, 0);
  ranks_.OnEnded(0, /*is_well=*/true);
  ranks_.OnEnded(0, /*is_well=*/true);
  ranks_.OnEnded(1, /*is_well=*/false);
  EXPECT_EQ(ranks_.Summarize(now_).num_ended, 1);
}

TEST_F(LocalRanksTest, HaveMovedWhereOneHas) {
  Mark(7);
  const LocalRanks::Position before = ranks_.Where();
  EXPECT_FALSE(ranks_.HaveMovedSince(before));
  Mark(8);
  EXPECT_TRUE(ranks_.HaveMovedSince(before));
}

TEST_F(LocalRanksTest, LookAsTheirProcessesDo) {
  ASSERT_TRUE(testing::WaitUntil([&] {
    const std::optional<ProcessLook> look = LookAtProcess(worker_.pid(), MonoNow());
    return look && look->state == 'S';
  }));
  ASSERT_FALSE(ranks_.HaveAllStarted());
  std::vector<WatchedRank> watched = ranks_.LookAtEach(MonoNow());
  ASSERT_THAT(watched, SizeIs(1));
  EXPECT_EQ(watched[0].rank, 4);
  EXPECT_EQ(watched[0].life, hangs::Life::kRunning);
  EXPECT_THAT(ranks_.PidOf(4), Eq(worker_.pid()));
  ASSERT_THAT(ranks_.ReportsOf({3, 4, 5}), SizeIs(1));
  EXPECT_EQ(ranks_.ReportsOf({3, 4, 5})[0].pid, worker_.pid());

  ranks_.OnEnded(0, /*is_well=*/false);
  EXPECT_TRUE(ranks_.HaveAllEnded());
  watched = ranks_.LookAtEach(MonoNow());
  ASSERT_THAT(watched, SizeIs(1));
  EXPECT_EQ(watched[0].life, hangs::Life::kEnded);
  EXPECT_EQ(watched[0].doing, "ended");
  EXPECT_EQ(ranks_.PidOf(4), std::nullopt);
  EXPECT_THAT(ranks_.ReportsOf({4}), IsEmpty());
}

// The judge asks for evidence and then for stacks: between the two a busy rank has used nothing.
TEST_F(LocalRanksTest, LookTheSameTwiceInAMoment) {
  const MonoTime now = MonoNow();
  ranks_.LookAtEach(now);
  const std::string doing = ranks_.LookAtEach(now + absl::Seconds(1))[0].doing;
  EXPECT_EQ(ranks_.LookAtEach(now + absl::Milliseconds(1001))[0].doing, doing);
}

TEST_F(LocalRanksTest, GiveEvidenceOfThoseWhoseBoardTells) {
  Mark(7);
  hangs::NodeDetails details;
  ranks_.AddEvidence(MonoNow(), details);
  EXPECT_FALSE(details.is_held);
  ASSERT_THAT(details.evidence.ranks, SizeIs(1));
  EXPECT_EQ(details.evidence.ranks[0].step, 7);
  EXPECT_EQ(details.evidence.ranks[0].phase, Phase::kForward);
}

}  // namespace
}  // namespace muster::agent
