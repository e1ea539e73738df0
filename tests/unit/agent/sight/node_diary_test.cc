// What gets into the file of a node's diary.
#include "agent/sight/node_diary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "proto/base/mutex.h"
#include "proto/io/log.h"
#include "tests/support/files.h"
#include "tests/support/small_file_system.h"

namespace muster::agent {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Diary : public ::testing::Test {
 protected:
  Diary() {
    options_.run_directory = directory_.path();
    roster_.StartRound({.round = Round(4), .local_world_size = 2, .restart_count = 1}, {});
  }
  // What has been written, once the diary is closed.
  std::vector<status::DiaryEntry> Written() {
    bool is_closed = false;
    diary_.Close([&] { is_closed = true; });
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!is_closed && std::chrono::steady_clock::now() < deadline) {
      loop_.restart();
      loop_.run_one_for(std::chrono::milliseconds(50));
    }
    EXPECT_TRUE(is_closed);
    return *status::ParseDiary(testing::ReadFile(directory_.File(status::kDiaryName)));
  }
  static std::vector<std::string> What(const std::vector<status::DiaryEntry>& entries) {
    std::vector<std::string> what;
    for (const status::DiaryEntry& entry : entries) {
      what.push_back(entry.what == status::kTurned ? entry.spent : entry.what);
    }
    return what;
  }

  asio::io_context loop_;
  testing::TemporaryDirectory directory_;
  AgentOptions options_;
  WorkerRoster roster_;
  HangWatch hang_watch_{
      loop_, {.is_on = false}, [](int, const std::string&) {}, [](const hangs::NodeWord&) {}};
  NodeDiary diary_{
      loop_, Lane("logs"), {.options = options_, .roster = roster_, .hang_watch = hang_watch_}};
};

// The lines that could not be written come once there is room, and none is torn.
TEST_F(Diary, GoesOnOnceItsFullDiskHasRoomAndSaysSoOnce) {
  const testing::SmallFileSystem small(directory_.path(), "16k");
  if (!small.mounted()) GTEST_SKIP() << small.why_not();
  base::Mutex mu;
  std::vector<std::string> logged;
  log::Configure({.sink = [&](const std::string& line) {
    base::MutexLock lock(mu);
    logged.push_back(line);
  }});
  small.Fill();
  diary_.Begin();
  diary_.NoteSaid(Round(4), "one");
  EXPECT_THAT(Written(), IsEmpty());
  std::filesystem::remove(small.filler());
  diary_.NoteSaid(Round(4), "two");
  EXPECT_THAT(What(Written()),
              ElementsAre(status::kBegan, "forming", status::kSaid, status::kSaid));
  log::Configure({});
  base::MutexLock lock(mu);
  EXPECT_THAT(logged, ElementsAre(AllOf(HasSubstr("No space left on device"),
                                        HasSubstr(status::kDiaryName))));
}

TEST_F(Diary, TellsWhatTimeIsSpentOnAndTheStepsWhenWorkersRanUntilNow) {
  diary_.Begin();
  diary_.TurnTo(NodePhase::kJoining, false);
  diary_.TurnTo(NodePhase::kRunning, true);
  diary_.TurnTo(NodePhase::kRunning, false);
  diary_.TurnTo(NodePhase::kStopping, false);
  diary_.End({});
  EXPECT_THAT(What(Written()),
              ElementsAre("began", "forming", "preparing", "running", "steps", "stopping", "end"));
}

TEST_F(Diary, SaysThatWorkersHaveStartedOnceAllOfTheRoundHave) {
  diary_.Begin();
  diary_.NoteRound();
  diary_.NoteStart(&status::WorkerStarts::kept, "");
  diary_.NoteRound();  // what has started in a round does not count in the next
  diary_.NoteStart(&status::WorkerStarts::kept, "no warm process");
  diary_.NoteStart(&status::WorkerStarts::fresh, "no warm process");
  const std::vector<status::DiaryEntry> entries = Written();
  ASSERT_THAT(What(entries), ElementsAre("began", "forming", "round", "round", "started"));
  EXPECT_EQ(entries[4].round, 4);
  EXPECT_EQ(entries[4].starts.kept, 1);
  EXPECT_EQ(entries[4].starts.fresh, 1);
  EXPECT_EQ(entries[4].text, "no warm process");
}

TEST_F(Diary, NotesWhatTheWatchAndTheAgentSayAndFailuresOfWorkers) {
  diary_.Begin();
  diary_.NoteWatch(WatchEvent::kVerdict, "rank 3 hangs");
  diary_.NoteFailure({.rank = Rank(3), .exit_code = 7, .ended_by = "the watch"});
  diary_.NoteSaid(Round(5), "the round ends");
  const std::vector<status::DiaryEntry> entries = Written();
  ASSERT_THAT(What(entries), ElementsAre("began", "forming", "verdict", "failure", "said"));
  EXPECT_EQ(entries[2].text, "rank 3 hangs");
  EXPECT_EQ(entries[3].rank, 3);
  EXPECT_EQ(entries[3].exit_code, 7);
  EXPECT_EQ(entries[3].text, "the watch");
  EXPECT_EQ(entries[4].round, 5);
}

TEST_F(Diary, HasNoFileInARunDirectoryThatIsRemovedWithTheJob) {
  options_.run_directory_is_temporary = true;
  diary_.Begin();
  diary_.NoteRound();
  EXPECT_EQ(diary_.diary().counts().rounds, 1);
  EXPECT_THAT(testing::FilesBelow(directory_.path()), IsEmpty());
  bool is_closed = false;
  diary_.Close([&] { is_closed = true; });
  loop_.run_for(std::chrono::seconds(3));
  EXPECT_TRUE(is_closed);
  EXPECT_THAT(testing::FilesBelow(directory_.path()), IsEmpty());
}

}  // namespace
}  // namespace muster::agent
