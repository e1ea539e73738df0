#include "agent/workers/worker_roster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Assignment Place(int64_t round, int first_rank) {
  return {.round = Round(round), .first_rank = Rank(first_rank), .local_world_size = 3};
}

class Roster : public ::testing::Test {
 protected:
  Roster() {
    roster_.StartRound(Place(0, 4), {});
    for (int i = 0; i < 3; ++i) roster_.Add(LocalRank(i)).pid = 100 + i;
  }
  WorkerRoster roster_;
};

TEST_F(Roster, GivesWorkersTheirRankInTheRoundAndAnIdThatNobodyElseHas) {
  const uint64_t hook = roster_.NewId();
  const RunningWorker& worker = roster_.Add(LocalRank(2), "error.json");
  EXPECT_EQ(worker.rank, Rank(6));
  EXPECT_EQ(worker.round, Round(0));
  EXPECT_EQ(worker.error_file, "error.json");
  EXPECT_GT(worker.id, hook);
  EXPECT_EQ(roster_.Find(hook), nullptr);
  EXPECT_EQ(roster_.Find(worker.id), &worker);
}

TEST_F(Roster, FindsWorkersUntilTheyAreTaken) {
  const uint64_t id = roster_.FindByPid(101)->id;
  EXPECT_EQ(roster_.FindByLocalRank(LocalRank(1))->id, id);
  const std::optional<RunningWorker> taken = roster_.Take(id);
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->pid, 101);
  EXPECT_FALSE(roster_.Take(id));
  EXPECT_EQ(roster_.FindByPid(101), nullptr);
  EXPECT_EQ(roster_.FindByLocalRank(LocalRank(1)), nullptr);
  EXPECT_THAT(roster_.LocalRanks(), ElementsAre(LocalRank(0), LocalRank(2)));
}

TEST_F(Roster, HasPidsOnlyOfWorkersThatHaveBeenStarted) {
  roster_.Add(LocalRank(3));
  EXPECT_THAT(roster_.Pids(), ElementsAre(100, 101, 102));
  roster_.Forget();
  EXPECT_THAT(roster_.Pids(), IsEmpty());
}

TEST_F(Roster, TakesKeptWorkersIntoTheNextRoundAndLeavesOthersInTheirs) {
  roster_.Take(roster_.FindByPid(100)->id);
  roster_.StartRound(Place(1, 0), {LocalRank(0), LocalRank(1)});
  EXPECT_FALSE(roster_.IsKept(LocalRank(0))) << "it has died before the round";
  EXPECT_TRUE(roster_.IsKept(LocalRank(1)));
  const RunningWorker& kept = *roster_.FindByPid(101);
  EXPECT_TRUE(kept.is_kept);
  EXPECT_EQ(kept.round, Round(1));
  EXPECT_EQ(kept.rank, Rank(1));
  const RunningWorker& other = *roster_.FindByPid(102);
  EXPECT_FALSE(other.is_kept);
  EXPECT_EQ(other.round, Round(0));
  EXPECT_EQ(other.rank, Rank(6));
}

TEST_F(Roster, RemembersThatAWorkerWasKeptWhenItHasDiedUntilTheNextRound) {
  roster_.StartRound(Place(1, 0), {LocalRank(1)});
  roster_.Take(roster_.FindByPid(101)->id);
  EXPECT_TRUE(roster_.IsKept(LocalRank(1)));
  roster_.StartRound(Place(2, 0), {});
  EXPECT_FALSE(roster_.IsKept(LocalRank(1)));
}

TEST_F(Roster, NotesASignalOfAllButTheSpared) {
  roster_.NoteSignal(SIGTERM, {LocalRank(1)});
  roster_.NoteSignal(SIGKILL, {});
  EXPECT_THAT(roster_.FindByPid(100)->signals, ElementsAre(SIGTERM, SIGKILL));
  EXPECT_THAT(roster_.FindByPid(101)->signals, ElementsAre(SIGKILL));
}

}  // namespace
}  // namespace muster::agent
