// A writer that is killed, at any moment whatever, leaves a complete checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/checkpoint/memory_directory.h"
#include "worker_runtime/checkpoint/publish.h"
#include "worker_runtime/checkpoint/whole_checkpoint.h"

namespace muster::checkpoint {
namespace {

using ::muster::testing::IsOk;

namespace fs = std::filesystem;

constexpr size_t kElements = 3000;

// All of one value, so that a mixture of two checkpoints shows.
absl::StatusOr<std::string> Save(const std::string& directory, int64_t step, float value) {
  const std::vector<float> values(kElements, value);
  const std::vector<int64_t> shape = {kElements};
  return WriteWholeCheckpoint(directory, {step, {}, {{"value", std::to_string(value)}}},
                              {NamedArray{"w", shape, ConstBufferOf(values)}},
                              {NamedArray{"first_moment.w", shape, ConstBufferOf(values)}});
}

void ExpectAll(const SafetensorsFile& file, const std::string& name, float value) {
  std::vector<float> values(kElements);
  ASSERT_THAT(file.Read(name, BufferOf(values)), IsOk());
  EXPECT_EQ(values, std::vector<float>(kElements, value));
}

// Finds a checkpoint in `directory` that is of one piece. Returns its value.
float ExpectComplete(const std::string& directory) {
  const auto newest = OpenNewestCheckpoint(directory);
  EXPECT_THAT(newest, IsOk());
  if (!newest.ok()) return -1;
  EXPECT_THAT(newest->passed_over, ::testing::IsEmpty());
  const WholeCheckpoint& whole = newest->checkpoint;
  const float value = std::stof(whole.state.metadata.at("value"));
  ExpectAll(whole.model, "w", value);
  ExpectAll(whole.optimizer, "first_moment.w", value);
  return value;
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
    const float value = ExpectComplete(directory.path());
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
      [](const std::string& directory) { ASSERT_THAT(Save(directory, 1, 1.0f), IsOk()); },
      [](const std::string& directory) { (void)Save(directory, 1, 2.0f); });
}

TEST(KilledWriter, LeavesTheOldOrTheNewCheckpointWhereNamesCannotBeExchanged) {
  if (!CanTrace()) GTEST_SKIP() << "ptrace is refused here: " << std::strerror(errno);
  KillAtEverySystemCall(
      [](const std::string& directory) {
        ASSERT_THAT(Save(directory, 1, 1.0f), IsOk());
        ASSERT_THAT(Save(directory + "/new", 1, 2.0f), IsOk());
        fs::rename(directory + "/new/step_00000001", directory + "/.written");
      },
      [](const std::string& directory) {
        (void)PublishDirectory(directory + "/.written", directory + "/step_00000001",
                               Replacing::kAside);
      });
}

TEST(KilledWriter, LeavesACompleteCheckpointAtThirtyRandomMoments) {
  const MemoryDirectory directory;
  ASSERT_THAT(Save(directory.path(), 0, 1.0f), IsOk());
  std::mt19937 random(20240612);
  for (int i = 0; i < 30; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      // New steps and replaced ones in turn.
      for (int64_t n = 2;; ++n) (void)Save(directory.path(), i + n % 2, static_cast<float>(n));
    }
    usleep(random() % 20'000);
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ExpectComplete(directory.path());
  }
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
          statuses[i].Update(Save(directory.path(), 1, static_cast<float>(i + 1)).status());
        }
      });
    }
  }

  EXPECT_THAT(statuses[0], IsOk());
  EXPECT_THAT(statuses[1], IsOk());
  ExpectComplete(directory.path());
  EXPECT_EQ(muster::testing::FilesBelow(directory.path()).size(), 3u);
}

}  // namespace
}  // namespace muster::checkpoint
