#include "rendezvous/server/state_file.h"

#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rendezvous/core/round_restore.h"
#include "rendezvous/server/record_wire.h"
#include "rendezvous/server/state_writer.h"
#include "tests/support/files.h"
#include "tests/unit/rendezvous/core/core_builders.h"
#include "tests/unit/rendezvous/server/loop_world.h"

namespace muster::rendezvous {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int64_t kToday = 1'800'000'000'000;
const JobKey kJob{"alice", std::string("a\0b", 3)};

// The record of a job of one node that runs round 0.
JobRecord Running(int restarts_used = 0) {
  CoreUnderTest job(Settings(1, 1, 5));
  job.RunWith(1);
  JobRecord record = job.state();
  record.restarts_used = restarts_used;
  return record;
}

KeptChange Change(const JobRecord& record, bool with_round = true) {
  KeptChange change{
      .key = kJob, .instance = Instance(7), .progress = EncodeProgress(record, At(100))};
  if (with_round) change.round = EncodeRound(record);
  return change;
}

class StateFileTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<StateFile>> Open(int64_t unix_millis = kToday) {
    return StateFile::Open(directory(), unix_millis, At(500));
  }
  StateFile::Contents Contents(int64_t unix_millis = kToday) {
    auto file = Open(unix_millis);
    EXPECT_TRUE(file.ok()) << file.status();
    return file.ok() ? (*file)->TakeContents() : StateFile::Contents{};
  }
  std::string directory() const { return temporary_.File("state"); }
  std::string path() const { return directory() + "/musterd.db"; }
  void Run(const char* sql) {
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open(path().c_str(), &db), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(db, sql, nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(db);
    sqlite3_close(db);
  }

  muster::testing::TemporaryDirectory temporary_;
};

TEST_F(StateFileTest, GivesBackWhatWasWritten) {
  {
    auto file = Open();
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->Write({Change(Running())}, kToday), absl::OkStatus());
    EXPECT_EQ((*file)->Write({Change(Running(3), false)}, kToday), absl::OkStatus());
  }
  const StateFile::Contents contents = Contents();
  ASSERT_THAT(contents.jobs, SizeIs(1));
  EXPECT_EQ(contents.jobs[0].key, kJob);
  EXPECT_EQ(contents.jobs[0].instance, Instance(7));
  EXPECT_EQ(contents.jobs[0].record.restarts_used, 3);
  EXPECT_EQ(contents.jobs[0].record.members, Running().members) << "the round stays as it was";
}

TEST_F(StateFileTest, HasAHigherTermInEachLifeAlsoWhenTheClockGoesBack) {
  const StateFile::Contents first = Contents(), second = Contents(kToday - 1000);
  EXPECT_GT(second.term, first.term);
  EXPECT_EQ(first.first_term, first.term);
  EXPECT_EQ(second.first_term, first.term);
}

TEST_F(StateFileTest, ForgetsAnInstanceThatHasEndedAfterItsTime) {
  JobRecord record = Running();
  record.phase = JobPhase::kEnded;
  record.outcome = JobOutcome{};
  KeptChange change = Change(record);
  change.forget_after = absl::Seconds(60);
  {
    auto file = Open();
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->Write({change}, kToday), absl::OkStatus());
  }
  EXPECT_THAT(Contents(kToday + 59000).jobs, SizeIs(1));
  EXPECT_THAT(Contents(kToday + 60000).jobs, SizeIs(0));
}

TEST_F(StateFileTest, KeepsAnInstanceWhoseTimeHasNoEnd) {
  for (const absl::Duration forget_after : {absl::InfiniteDuration(), absl::Hours(1e12)}) {
    KeptChange change = Change(Running());
    change.forget_after = forget_after;
    {
      auto file = Open();
      ASSERT_TRUE(file.ok()) << file.status();
      EXPECT_EQ((*file)->Write({change}, kToday), absl::OkStatus());
    }
    EXPECT_THAT(Contents(kToday + 1000).jobs, SizeIs(1)) << forget_after;
  }
}

TEST_F(StateFileTest, ForgetsAnInstanceThatIsDroppedAtOnce) {
  KeptChange dropped = Change(Running());
  dropped.forget_after = absl::ZeroDuration();
  {
    auto file = Open();
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->Write({Change(Running())}, kToday), absl::OkStatus());
    EXPECT_EQ((*file)->Write({dropped}, kToday), absl::OkStatus());
  }
  // It does not come back if the clock goes back.
  EXPECT_THAT(Contents(kToday - 60000).jobs, SizeIs(0));
}

TEST_F(StateFileTest, IsReadByItsOwnerAlone) {
  ASSERT_TRUE(Open().ok());
  struct stat about {};
  ASSERT_EQ(::stat(directory().c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0700u);
}

TEST_F(StateFileTest, IsUsedByOneServerAtATime) {
  const auto first = Open();
  ASSERT_TRUE(first.ok());
  const absl::Status refused = Open().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("another musterd uses"));
}

TEST_F(StateFileTest, OfANewerVersionIsRefusedAndLeftAlone) {
  ASSERT_TRUE(Open().ok());
  Run("PRAGMA user_version=3");
  const absl::Status refused = Open().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("written by a newer muster (format 3"));
  Run("SELECT term FROM life");
}

TEST_F(StateFileTest, OfAnotherProgramIsRefused) {
  std::filesystem::create_directory(directory());
  Run("CREATE TABLE recipes (name TEXT)");
  EXPECT_EQ(Open().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(StateFileTest, ThatIsNoDatabaseIsRefusedAndLeftAlone) {
  std::filesystem::create_directory(directory());
  const std::string text(5000, 'x');
  muster::testing::WriteFile(path(), text);
  const absl::Status refused = Open().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("Move it away and start again"));
  EXPECT_EQ(muster::testing::ReadFile(path()), text);
}

TEST_F(StateFileTest, WithADamagedRecordNamesTheJob) {
  {
    auto file = Open();
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->Write({Change(Running())}, kToday), absl::OkStatus());
  }
  Run("UPDATE jobs SET progress = x'00ff'");
  const absl::Status refused = Open().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the record of job 'a"));
}

// What `kept` makes of each row, in the order of the file.
std::string InWords(const std::vector<KeptJob>& kept) {
  std::string text;
  for (const KeptJob& job : kept) {
    text += job.key.owner + "/" + job.key.run_id + "/" + ToString(job.instance) + "\n" +
            EncodeRound(job.record) + "\n" + EncodeProgress(job.record, At(100)) + "\n";
  }
  return text;
}

// Bit by bit, a prime number of them apart.
constexpr size_t kBitsApart = 509;

class DamagedFileTest : public StateFileTest {
 protected:
  // How many of the flips in `bytes`, as file `name` beside the others in `files`, start with other
  // contents than `expected`.
  int CountSilent(std::map<std::string, std::string> files, const std::string& name,
                  const std::string& expected) {
    int silent = 0;
    std::string& bytes = files[name];
    for (size_t bit = 0; bit < bytes.size() * 8; bit += kBitsApart) {
      const std::string damaged = temporary_.File("damaged");
      std::filesystem::remove_all(damaged);
      std::filesystem::create_directory(damaged);
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
      for (const auto& [file, content] : files) {
        muster::testing::WriteFile(damaged + "/" + file, content);
      }
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
      auto opened = StateFile::Open(damaged, kToday, At(500));
      if (!opened.ok()) continue;
      const StateFile::Contents contents = (*opened)->TakeContents();
      if (!contents.note.empty() && InWords(contents.jobs) == before_newest_) continue;
      silent += InWords(contents.jobs) != expected || contents.term <= first_term_;
      silent += contents.first_term != first_term_;
    }
    return silent;
  }
  KeptChange ChangeOf(int job, int restarts_used) {
    KeptChange change = Change(Running(restarts_used));
    change.key.run_id = "job" + std::to_string(job);
    return change;
  }
  ServerTerm first_term_;
  std::string before_newest_;  // what may be used if that is said; empty: nothing
};

TEST_F(DamagedFileTest, NoFlippedBitGoesUnnoticed) {
  {
    auto file = Open();
    ASSERT_TRUE(file.ok()) << file.status();
    first_term_ = (*file)->TakeContents().first_term;
    for (int i = 0; i < 5; ++i) {
      ASSERT_EQ((*file)->Write({ChangeOf(i, i)}, kToday), absl::OkStatus());
    }
  }
  const std::string bytes = muster::testing::ReadFile(path());
  const std::string expected = InWords(Contents().jobs);
  EXPECT_EQ(CountSilent({{"musterd.db", bytes}}, "musterd.db", expected), 0);
}

// The log has what was written before a `kill -9`.
TEST_F(DamagedFileTest, NoFlippedBitOfTheLogGoesUnnoticed) {
  std::map<std::string, std::string> files;
  std::string expected;
  {
    auto file = Open();
    ASSERT_TRUE(file.ok()) << file.status();
    first_term_ = (*file)->TakeContents().first_term;
    for (int i = 0; i < 5; ++i) {
      ASSERT_EQ((*file)->Write({ChangeOf(i, i)}, kToday), absl::OkStatus());
    }
    for (const char* const suffix : {"", "-wal", "-end"}) {
      files[std::string("musterd.db") + suffix] = muster::testing::ReadFile(path() + suffix);
    }
  }
  expected = InWords(Contents().jobs);
  ASSERT_GT(files["musterd.db-wal"].size(), 0u);
  EXPECT_EQ(CountSilent(files, "musterd.db-wal", expected), 0);
  EXPECT_EQ(CountSilent(files, "musterd.db-end", expected), 0);
}

// The file is as one of a version that noted no end of the log, or as after a loss of power: the
// newest transaction cannot be told from one that was being written then, so the state before it is
// used and said.
TEST_F(DamagedFileTest, NoFlippedBitOfTheLogLosesATransactionThatAnotherFollowed) {
  std::map<std::string, std::string> files;
  std::string expected;
  {
    auto file = Open();
    ASSERT_TRUE(file.ok()) << file.status();
    first_term_ = (*file)->TakeContents().first_term;
    for (int i = 0; i < 4; ++i) {
      ASSERT_EQ((*file)->Write({ChangeOf(i, i)}, kToday), absl::OkStatus());
    }
  }
  std::vector<KeptJob> before_newest = Contents().jobs;
  for (KeptJob& job : before_newest) SkipLostRounds(job.record);
  before_newest_ = InWords(before_newest);
  {
    auto file = Open();
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_EQ((*file)->Write({ChangeOf(3, 2)}, kToday), absl::OkStatus());
    ASSERT_EQ((*file)->Write({ChangeOf(3, 3)}, kToday), absl::OkStatus());
    ASSERT_EQ((*file)->Write({ChangeOf(4, 4)}, kToday), absl::OkStatus());
    files["musterd.db"] = muster::testing::ReadFile(path());
    files["musterd.db-wal"] = muster::testing::ReadFile(path() + "-wal");
  }
  const StateFile::Contents contents = Contents();
  EXPECT_EQ(contents.note, "");
  expected = InWords(contents.jobs);
  EXPECT_EQ(CountSilent(files, "musterd.db-wal", expected), 0);
}

TEST_F(StateFileTest, OfTheVersionBeforeChecksumsIsReadAndGetsThem) {
  {
    auto file = Open();
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->Write({Change(Running(2))}, kToday), absl::OkStatus());
  }
  Run("ALTER TABLE jobs DROP COLUMN round_sum; ALTER TABLE jobs DROP COLUMN progress_sum;"
      "ALTER TABLE life DROP COLUMN sum; PRAGMA user_version=1");
  for (int life = 0; life < 2; ++life) {
    const StateFile::Contents contents = Contents();
    ASSERT_THAT(contents.jobs, SizeIs(1)) << life;
    EXPECT_EQ(contents.jobs[0].record.restarts_used, 2);
  }
  Run("UPDATE jobs SET kept_at = kept_at + 1");
  EXPECT_EQ(Open().status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(StateFileTest, ThatIsTakenAwayWhileItIsUsedIsNoticed) {
  auto file = Open();
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->CheckThere(), absl::OkStatus());
  std::filesystem::rename(directory(), directory() + ".away");
  const absl::Status gone = (*file)->Write({Change(Running())}, kToday);
  EXPECT_EQ(gone.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(gone.message()), HasSubstr("was removed"));
  std::filesystem::rename(directory() + ".away", directory());
  EXPECT_EQ((*file)->Write({Change(Running())}, kToday), absl::OkStatus());
  std::filesystem::remove_all(directory());
  EXPECT_EQ((*file)->CheckThere().code(), absl::StatusCode::kUnavailable);
}

// The log is torn as by a crash in the middle of a transaction, and as by the loss of one.
TEST_F(StateFileTest, WithATornLogHasAllTransactionsBeforeTheTearUnlessOneWasDurable) {
  {
    auto file = Open();
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->Write({Change(Running(1))}, kToday), absl::OkStatus());
    const std::string log = muster::testing::ReadFile(path() + "-wal");
    const std::string database = muster::testing::ReadFile(path());
    const std::string end = muster::testing::ReadFile(path() + "-end");
    EXPECT_EQ((*file)->Write({Change(Running(2))}, kToday), absl::OkStatus());
    const std::string longer = muster::testing::ReadFile(path() + "-wal");
    ASSERT_GT(longer.size(), log.size());
    std::filesystem::create_directory(temporary_.File("torn"));
    muster::testing::WriteFile(temporary_.File("torn") + "/musterd.db", database);
    muster::testing::WriteFile(temporary_.File("torn") + "/musterd.db-wal",
                               longer.substr(0, longer.size() - 100));
    const std::string torn_end = temporary_.File("torn") + "/musterd.db-end";
    muster::testing::WriteFile(torn_end, muster::testing::ReadFile(path() + "-end"));
    EXPECT_EQ(StateFile::Open(temporary_.File("torn"), kToday, At(500)).status().code(),
              absl::StatusCode::kDataLoss);
    muster::testing::WriteFile(torn_end, end);
  }
  auto file = StateFile::Open(temporary_.File("torn"), kToday, At(500));
  ASSERT_TRUE(file.ok()) << file.status();
  const StateFile::Contents contents = (*file)->TakeContents();
  ASSERT_THAT(contents.jobs, SizeIs(1));
  EXPECT_EQ(contents.jobs[0].record.restarts_used, 1);
  EXPECT_THAT(contents.note, HasSubstr("the state before it is used"));
  EXPECT_EQ(contents.first_term, contents.term) << "of those before it something may be lacking";
}

TEST_F(StateFileTest, WithATornLogSkipsRoundsAlsoIfThatOfTheNextLifeIsTorn) {
  std::vector<Round> first_unused;
  std::string state = directory();
  for (int life = 0; life < 4; ++life) {
    auto file = StateFile::Open(state, kToday, At(500));
    ASSERT_TRUE(file.ok()) << file.status();
    for (const KeptJob& job : (*file)->TakeContents().jobs) {
      first_unused.push_back(job.record.first_unused);
    }
    if (life == 0) {
      EXPECT_EQ((*file)->Write({Change(Running())}, kToday), absl::OkStatus());
    }
    const std::string torn = temporary_.File(absl::StrCat("torn", life));
    const std::string end = muster::testing::ReadFile(state + "/musterd.db-end");
    EXPECT_EQ((*file)->Write({Change(Running(1))}, kToday), absl::OkStatus());
    std::filesystem::copy(state, torn);
    std::filesystem::resize_file(torn + "/musterd.db-wal",
                                 std::filesystem::file_size(torn + "/musterd.db-wal") - 100);
    muster::testing::WriteFile(torn + "/musterd.db-end", end);
    state = torn;
  }
  ASSERT_THAT(first_unused, SizeIs(3));
  EXPECT_LT(Round(1), first_unused[0]);
  EXPECT_LT(first_unused[0], first_unused[1]);
  EXPECT_LT(first_unused[1], first_unused[2]);
}

TEST_F(StateFileTest, OnAPathThatIsNoDirectoryIsRefused) {
  muster::testing::WriteFile(directory(), "a file");
  EXPECT_EQ(Open().status().code(), absl::StatusCode::kInvalidArgument);
}

// Files cannot grow while it lives: what a full disk does, for this process alone.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit full{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &full);
  }
  ~FullDisk() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

KeptChange LargeChange() {
  JobRecord record = Running();
  record.settings_from = std::string(60000, 'n');
  return Change(record);
}

TEST_F(StateFileTest, LosesNothingOnAFullDisk) {
  {
    auto file = Open();
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->Write({Change(Running(1))}, kToday), absl::OkStatus());
    {
      const FullDisk full(40000);
      const absl::Status failed = (*file)->Write({LargeChange()}, kToday);
      EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable) << failed;
      EXPECT_THAT(std::string(failed.message()), HasSubstr(path()));
    }
    EXPECT_EQ((*file)->Write({Change(Running(2))}, kToday), absl::OkStatus());
  }
  const StateFile::Contents contents = Contents();
  ASSERT_THAT(contents.jobs, SizeIs(1));
  EXPECT_EQ(contents.jobs[0].record.restarts_used, 2);
}

TEST_F(StateFileTest, IsOpenedOnAFullDiskAndWrittenOnceThereIsRoom) {
  const StateFile::Contents first = Contents();
  {
    std::optional<FullDisk> full(std::in_place, 0);
    auto file = Open(kToday + 1000);
    ASSERT_TRUE(file.ok()) << file.status();
    const StateFile::Contents second = (*file)->TakeContents();
    EXPECT_GT(second.term, first.term);
    EXPECT_EQ(second.first_term, first.term);
    EXPECT_EQ((*file)->Write({}, kToday).code(), absl::StatusCode::kUnavailable);
    full.reset();
    EXPECT_EQ((*file)->Write({}, kToday), absl::OkStatus());
  }
  EXPECT_GT(Contents(kToday - 1000).term, TermOfStart(kToday + 1000));
}

TEST_F(StateFileTest, IsMadeOnAFullDiskOnceThereIsRoom) {
  {
    std::optional<FullDisk> full(std::in_place, 0);
    auto file = Open();
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->Write({Change(Running())}, kToday).code(), absl::StatusCode::kUnavailable);
    full.reset();
    EXPECT_EQ((*file)->Write({Change(Running())}, kToday), absl::OkStatus());
  }
  EXPECT_THAT(Contents().jobs, SizeIs(1));
}

class StateWriterTest : public StateFileTest {
 protected:
  void SetUp() override {
    auto file = Open();
    ASSERT_TRUE(file.ok()) << file.status();
    writer_ = std::make_unique<StateWriter>(world_.loop(), *std::move(file));
    writer_->Open({.on_durable = [this](uint64_t ticket) { durable_ = ticket; }, .on_trouble = {}});
  }
  LoopWorld world_;
  std::unique_ptr<StateWriter> writer_;
  uint64_t durable_ = 0;
};

TEST_F(StateWriterTest, SaysWhenItIsDurable) {
  writer_->Keep({Change(Running(1))}, 1);
  writer_->Keep({Change(Running(2), false)}, 2);
  ASSERT_TRUE(world_.RunUntil([&] { return durable_ == 2; }));
  writer_.reset();
  const StateFile::Contents contents = Contents();
  ASSERT_THAT(contents.jobs, SizeIs(1));
  EXPECT_EQ(contents.jobs[0].record.restarts_used, 2);
}

TEST_F(StateWriterTest, TriesAgainUntilTheDiskHasRoom) {
  std::optional<FullDisk> full(std::in_place, 20000);
  writer_->Keep({LargeChange()}, 1);
  world_.RunReady();
  EXPECT_EQ(durable_, 0u);
  full.reset();
  EXPECT_TRUE(world_.RunUntil([&] { return durable_ == 1; }));
}

TEST_F(StateWriterTest, WritesATurnWithoutChangesToo) {
  writer_->Keep({}, 1);
  EXPECT_TRUE(world_.RunUntil([&] { return durable_ == 1; }));
}

TEST_F(StateWriterTest, WritesWhatIsLeftAtItsEnd) {
  writer_->Keep({Change(Running(4))}, 1);
  writer_.reset();
  EXPECT_THAT(Contents().jobs, SizeIs(1));
}

}  // namespace
}  // namespace muster::rendezvous
