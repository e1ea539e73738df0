// Writers that are killed, at any moment whatever, leave a complete checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "proto/base/status_macros.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/checkpoint/memory_directory.h"
#include "tests/unit/worker_runtime/checkpoint/saved_by_ranks.h"
#include "worker_runtime/checkpoint/new_checkpoint.h"
#include "worker_runtime/checkpoint/publish.h"

namespace muster::checkpoint {
namespace {

using ::muster::testing::FilesBelow;
using ::muster::testing::IsOk;
using ::testing::IsEmpty;
using ::testing::SizeIs;

namespace fs = std::filesystem;

// All of one value, so that a mixture of two checkpoints shows.
SavedState ManyOf(int64_t step, float value, int world_size) {
  const std::vector<float> values(3000, value);
  SavedState saved = StateOf(step, value);
  saved.arrays = {Floats("w", {3000}, values), Floats("first_moment.w", {3000}, values)};
  saved.slices = EvenSlices(saved.arrays, world_size);
  return saved;
}

absl::Status SaveMany(const std::string& directory, int64_t step, float value) {
  return SaveByRanks(directory, ManyOf(step, value, 2)).status();
}

// The files of a checkpoint of ManyOf with two ranks.
constexpr size_t kFiles = 4;

struct Complete {
  int64_t step = -1;
  float value = -1;
};

// Finds a checkpoint in `directory` that is of one piece, with nothing broken beside it.
Complete ExpectComplete(const std::string& directory) {
  auto search = CheckpointSearch::In(directory);
  EXPECT_THAT(search, IsOk());
  if (!search.ok()) return {};
  const auto newest = search->Next();
  EXPECT_THAT(newest, IsOk());
  if (!newest.ok()) return {};
  EXPECT_THAT(search->passed_over(), IsEmpty());
  const auto value = ValueIn(*newest);
  EXPECT_THAT(value, IsOk());
  return {newest->state().step, value.value_or(-1.0f)};
}

// Runs `body` in a child that is killed at its `stops`th entry into or return from a system call.
// False if it ended before that.
bool KillAtSystemCall(int stops, const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(1);
    raise(SIGSTOP);
    body();
    _exit(0);
  }
  int status = 0;
  bool alive = waitpid(child, &status, 0) == child && WIFSTOPPED(status);
  for (int i = 0; alive && i < stops; ++i) {
    alive = ptrace(PTRACE_SYSCALL, child, nullptr, nullptr) == 0 &&
            waitpid(child, &status, 0) == child && WIFSTOPPED(status);
  }
  if (alive) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
  }
  return alive;
}

bool CanTrace() {
  return KillAtSystemCall(1, [] { (void)getppid(); });
}

// Kills a save at each of its system calls in turn; `save` replaces a checkpoint of value 1 by one
// of value 2.
void KillAtEverySystemCall(const std::function<void(const std::string& directory)>& prepare,
                           const std::function<void(const std::string& directory)>& save) {
  int old_ones = 0;
  int new_ones = 0;
  bool killed = true;
  for (int stops = 0; killed; ++stops) {
    const MemoryDirectory directory;
    prepare(directory.path());
    killed = KillAtSystemCall(stops, [&] { save(directory.path()); });
    const float value = ExpectComplete(directory.path()).value;
    EXPECT_TRUE(value == 1.0f || value == 2.0f) << "at stop " << stops << ": " << value;
    if (!killed) {
      EXPECT_EQ(value, 2.0f);
    }
    ++(value == 1.0f ? old_ones : new_ones);
    ASSERT_LT(stops, 2000);
  }
  EXPECT_GT(old_ones, 3);
  EXPECT_GT(new_ones, 1);
}

TEST(KilledWriter, LeavesTheOldOrTheNewCheckpointAtEachOfItsSystemCalls) {
  if (!CanTrace()) GTEST_SKIP() << "ptrace is refused here: " << std::strerror(errno);
  KillAtEverySystemCall(
      [](const std::string& directory) { ASSERT_THAT(SaveMany(directory, 1, 1.0f), IsOk()); },
      [](const std::string& directory) { (void)SaveMany(directory, 1, 2.0f); });
}

TEST(KilledWriter, LeavesTheNewestCheckpointWhileItRemovesWhatThatSupersedes) {
  if (!CanTrace()) GTEST_SKIP() << "ptrace is refused here: " << std::strerror(errno);
  bool killed = true;
  for (int stops = 0; killed; ++stops) {
    const MemoryDirectory directory;
    for (const int64_t step : {1, 2, 3}) {
      ASSERT_THAT(SaveMany(directory.path(), step, static_cast<float>(step)), IsOk());
    }
    killed = KillAtSystemCall(stops, [&] { RemoveSuperseded(directory.path(), 3, 1); });
    EXPECT_EQ(ExpectComplete(directory.path()).value, 3.0f) << "at stop " << stops;
    // What is in its place is whole, older ones too.
    for (const char* name : {"step_00000001", "step_00000002"}) {
      const std::string path = directory.File(name);
      if (fs::exists(path)) ExpectComplete(path);
      EXPECT_TRUE(killed || !fs::exists(path));
    }
    ASSERT_LT(stops, 2000);
  }
}

TEST(KilledWriter, LeavesTheOldOrTheNewCheckpointWhereNamesCannotBeExchanged) {
  if (!CanTrace()) GTEST_SKIP() << "ptrace is refused here: " << std::strerror(errno);
  KillAtEverySystemCall(
      [](const std::string& directory) {
        ASSERT_THAT(SaveMany(directory, 1, 1.0f), IsOk());
        ASSERT_THAT(SaveMany(directory + "/new", 1, 2.0f), IsOk());
        fs::rename(directory + "/new/step_00000001", directory + "/.written");
      },
      [](const std::string& directory) {
        (void)PublishDirectory(directory + "/.written", directory + "/step_00000001",
                               Replacing::kAside);
      });
}

std::string ReadToEnd(int fd) {
  std::string text;
  char part[4096];
  for (ssize_t got; (got = read(fd, part, sizeof(part))) > 0;) {
    text.append(part, static_cast<size_t>(got));
  }
  return text;
}

// A save of value 2 whose second rank is killed at system call `stops`. True if it came to that.
bool KillSecondRankAt(int stops, const std::string& directory) {
  const SavedState saved = ManyOf(1, 2.0f, 2);
  auto begun = NewCheckpoint::Begin(directory + "/step_00000001", saved.state);
  EXPECT_THAT(begun, IsOk());
  int ends[2];
  MUSTER_CHECK(pipe(ends) == 0);
  const bool killed = KillAtSystemCall(stops, [&] {
    const auto file = WriteAsRank(begun->hidden(), 1, saved);
    const std::string text = file.ok() ? file->Encode() : "";
    if (write(ends[1], text.data(), text.size()) < 0) _exit(1);
  });
  close(ends[1]);
  const auto told = WrittenFile::Decode(ReadToEnd(ends[0]));
  close(ends[0]);
  EXPECT_TRUE(told.ok() || killed);
  if (told.ok()) {
    const auto own = WriteAsRank(begun->hidden(), 0, saved);
    EXPECT_THAT(own, IsOk());
    EXPECT_THAT(begun->Publish(*ManifestOf(saved.state, ToWrite(saved.arrays), {{*own, *told}})),
                IsOk());
  }
  EXPECT_THAT(ExpectComplete(directory).value, told.ok() ? 2.0f : 1.0f);
  return killed;
}

// The first rank publishes only what all have told it of, and removes what is left else.
TEST(KilledWriter, ThatIsNotTheFirstRankLeavesAllOfACheckpointOrNothingOfIt) {
  if (!CanTrace()) GTEST_SKIP() << "ptrace is refused here: " << std::strerror(errno);
  bool killed = true;
  for (int stops = 0; killed; ++stops) {
    const MemoryDirectory directory;
    ASSERT_THAT(SaveMany(directory.path(), 1, 1.0f), IsOk());
    killed = KillSecondRankAt(stops, directory.path());
    EXPECT_THAT(FilesBelow(directory.path()), SizeIs(kFiles)) << "at stop " << stops;
    ASSERT_LT(stops, 2000);
    if (!killed) {
      EXPECT_GT(stops, 10);
    }
  }
}

// --- ranks in processes of their own

constexpr int kRanks = 3;

// What the first rank of all has published, seen by the test that kills it.
struct Published {
  std::atomic<int64_t> saves = 0;  // of the processes of today
  std::atomic<int64_t> failures = 0;
  std::atomic<int64_t> step = -1;  // the highest of all
  std::atomic<int64_t> value = -1;
};

// A message has its length in front.
bool Send(int fd, const std::string& message) {
  const uint64_t size = message.size();
  const std::string text(reinterpret_cast<const char*>(&size), sizeof(size));
  const std::string all = text + message;
  return write(fd, all.data(), all.size()) == static_cast<ssize_t>(all.size());
}

// False where the other end is gone.
bool Receive(int fd, std::string* message) {
  const auto read_all = [fd](char* out, size_t size) {
    for (size_t at = 0; at < size;) {
      const ssize_t got = read(fd, out + at, size - at);
      if (got <= 0) return false;
      at += static_cast<size_t>(got);
    }
    return true;
  };
  uint64_t size = 0;
  if (!read_all(reinterpret_cast<char*>(&size), sizeof(size))) return false;
  message->resize(size);
  return read_all(message->data(), size);
}

// The first rank and each other have a pipe each way.
struct Lines {
  std::array<std::array<int, 2>, kRanks> down;
  std::array<std::array<int, 2>, kRanks> up;

  Lines() {
    for (int rank = 1; rank < kRanks; ++rank) {
      MUSTER_CHECK(pipe(down[rank].data()) == 0 && pipe(up[rank].data()) == 0);
    }
  }
  ~Lines() {
    for (int rank = 1; rank < kRanks; ++rank) {
      for (const int fd : {down[rank][0], down[rank][1], up[rank][0], up[rank][1]}) close(fd);
    }
  }
};

// Step and value of save `n` of processes that begin at step `first`: steps that are new and that
// are replaced take turns, and the values grow.
SavedState SaveNumber(int64_t first, int64_t n) {
  return ManyOf(first + n % 2, static_cast<float>(first * 1000 + n), kRanks);
}

// False where another rank is gone.
bool SaveAsFirstRank(const std::string& directory, const SavedState& saved, const Lines& lines,
                     Published& published) {
  const auto check = [&published](const absl::Status& status) {
    if (!status.ok()) ++published.failures;
    return status.ok();
  };
  auto begun = NewCheckpoint::Begin(directory + "/" + NameOfStep(saved.state.step), saved.state);
  if (!check(begun.status())) return false;
  for (int rank = 1; rank < kRanks; ++rank) {
    if (!Send(lines.down[rank][1], begun->hidden())) return false;
  }
  const auto own = WriteAsRank(begun->hidden(), 0, saved);
  if (!check(own.status())) return false;
  std::vector<WrittenFile> files = {*own};
  for (int rank = 1; rank < kRanks; ++rank) {
    std::string message;
    if (!Receive(lines.up[rank][0], &message)) return false;
    auto file = WrittenFile::Decode(message);
    if (!check(file.status())) return false;
    files.push_back(*std::move(file));
  }
  const auto manifest = ManifestOf(saved.state, ToWrite(saved.arrays), files);
  if (!check(manifest.status()) || !check(begun->Publish(*manifest))) return false;
  if (saved.state.step >= published.step) {
    // The step comes last: a killed process then leaves a value that is compared with nothing.
    published.value = static_cast<int64_t>(std::stof(saved.state.metadata.at("value")));
    published.step = saved.state.step;
  }
  RemoveLeftovers(directory);
  RemoveSuperseded(directory, saved.state.step, 1);
  ++published.saves;
  return true;
}

void RunRank(int rank, const std::string& directory, int64_t first, const Lines& lines,
             Published& published) {
  signal(SIGPIPE, SIG_IGN);
  for (int64_t n = 2;; ++n) {
    const SavedState saved = SaveNumber(first, n);
    if (rank == 0) {
      if (!SaveAsFirstRank(directory, saved, lines, published)) return;
      continue;
    }
    std::string hidden;
    if (!Receive(lines.down[rank][0], &hidden)) return;
    const auto file = WriteAsRank(hidden, rank, saved);
    if (!file.ok() || !Send(lines.up[rank][1], file->Encode())) return;
  }
}

// Ranks that save without an end, until they are killed.
class Ranks {
 public:
  Ranks(const std::string& directory, int64_t first, Published& published) {
    published.saves = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
      pids_.push_back(fork());
      if (pids_.back() != 0) continue;
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      RunRank(rank, directory, first, lines_, published);
      for (;;) pause();  // the test waits for those that it has killed
    }
  }
  void Kill(int rank) { kill(pids_[static_cast<size_t>(rank)], SIGKILL); }
  void KillAllAndWait() {
    for (const pid_t pid : pids_) kill(pid, SIGKILL);
    for (const pid_t pid : pids_) waitpid(pid, nullptr, 0);
  }

 private:
  const Lines lines_;
  std::vector<pid_t> pids_;
};

// What was published last is found, or what came after it.
void ExpectNotBefore(const Published& published, const Complete& found) {
  EXPECT_GE(found.step, published.step);
  if (found.step == published.step) {
    EXPECT_GE(found.value, static_cast<float>(published.value));
  }
}

TEST(KilledRanks, LeaveACompleteCheckpointAtThirtyRandomMoments) {
  const MemoryDirectory directory;
  ASSERT_THAT(SaveMany(directory.path(), 0, 1.0f), IsOk());
  void* const memory =
      mmap(nullptr, sizeof(Published), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Published& published = *new (memory) Published;
  std::mt19937 random(20240612);
  for (int i = 0; i < 30; ++i) {
    Ranks ranks(directory.path(), i, published);
    // Some saves and a part of one, on a machine of any speed.
    const int64_t saves = random() % 4;
    for (int waited = 0; published.saves < saves && waited < 60'000; ++waited) usleep(1000);
    usleep(random() % 5'000);
    // One of them, and the others after a while, or all at once.
    if (const int rank = static_cast<int>(random() % (kRanks + 1)); rank < kRanks) {
      ranks.Kill(rank);
      usleep(random() % 3'000);
    }
    ranks.KillAllAndWait();
    EXPECT_GE(published.saves, saves);
    ExpectNotBefore(published, ExpectComplete(directory.path()));
  }
  EXPECT_EQ(published.failures, 0);
  munmap(memory, sizeof(Published));
}

TEST(TwoWriters, OfOneStepDoNotDisturbEachOther) {
  const MemoryDirectory directory;
  constexpr int kSaves = 10;
  absl::Status statuses[2];
  {
    std::vector<std::jthread> writers;
    for (int i = 0; i < 2; ++i) {
      writers.emplace_back([&, i] {
        for (int n = 0; n < kSaves; ++n) {
          statuses[i].Update(SaveMany(directory.path(), 1, static_cast<float>(i + 1)));
        }
      });
    }
  }

  EXPECT_THAT(statuses[0], IsOk());
  EXPECT_THAT(statuses[1], IsOk());
  ExpectComplete(directory.path());
  EXPECT_THAT(FilesBelow(directory.path()), SizeIs(kFiles));
}

}  // namespace
}  // namespace muster::checkpoint
