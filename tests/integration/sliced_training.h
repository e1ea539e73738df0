// A fixture for trainings whose ranks each write a part of a checkpoint. In ordered mode their bits
// are the same on any number of ranks that divides the micro-batches of a step.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/support/job_under_test.h"

namespace muster::testing {

class SlicedTraining : public JobTest {
 protected:
  static constexpr int kMicroBatches = 12;
  static constexpr absl::Duration kLong = absl::Seconds(100);

  // What muster-train is told; `replicas`: ranks that share the micro-batches.
  Arguments Training(int replicas, const Arguments& more) const {
    return Arguments{MusterTrainBinary(),
                     "--data",
                     absl::StrCat(kSourceDirectory, "/tests/data/prose.txt"),
                     "--mode=ordered",
                     "--layers=2",
                     "--heads=2",
                     "--width=32",
                     "--context=24",
                     "--batch-size=1",
                     "--sample_tokens=0",
                     "--hash",
                     absl::StrCat("--accumulation=", kMicroBatches / replicas)} +
           more;
  }
  Arguments OnRanks(int ranks, const Arguments& more, int stages = 1) const {
    return Arguments{"run", absl::StrCat("--nproc_per_node=", ranks)} +
           Training(ranks / stages, more);
  }

  std::string HashOf(const Arguments& line) const {
    const SubprocessResult result = Start(line).Wait(kLong);
    EXPECT_THAT(result, ExitsWith(0));
    const size_t at = result.out.rfind("hash=");
    if (at == std::string::npos) return "no hash in " + ToString(result);
    return result.out.substr(at, result.out.find('\n', at) - at);
  }

  // The number behind the first `name`, or the last; -1: there is none.
  static int64_t FirstNumber(const std::string& text, const std::string& name) {
    return NumberAt(text, text.find(name), name);
  }
  static int64_t LastNumber(const std::string& text, const std::string& name) {
    return NumberAt(text, text.rfind(name), name);
  }

  // Ranks that save in `place` after every step, of which one is killed at a random moment of its
  // saves, again and again: each training goes on from what the one before has left, and the last
  // has the bits of a training without a break.
  void ExpectThatKilledSavesLeaveACheckpoint(const std::string& place, int rounds) const {
    const unsigned seed = std::random_device()();
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    const Arguments saving = {"--save", place, "--resume", place, "--save_every=1"};
    int64_t saved = -1;
    for (int round = 0; round < rounds && !HasFailure(); ++round) {
      saved = SavedBeforeAKill(random, saving, saved);
    }
    const Arguments steps = {absl::StrCat("--steps=", saved + 20)};
    EXPECT_EQ(HashOf(OnRanks(1, saving + steps)), HashOf(OnRanks(1, steps)));
    for (const std::string& file : FilesBelow(place)) {
      EXPECT_TRUE(absl::StartsWith(file, "step_")) << file << " of a killed writer is left";
    }
  }

 private:
  static int64_t NumberAt(const std::string& text, size_t at, const std::string& name) {
    if (at == std::string::npos) return -1;
    const size_t begin = at + name.size();
    const size_t end = std::min(text.find_first_not_of("0123456789", begin), text.size());
    int64_t number = -1;
    return absl::SimpleAtoi(text.substr(begin, end - begin), &number) ? number : -1;
  }

  // The newest step that was said to be saved; `before`: of the job before.
  int64_t SavedBeforeAKill(std::mt19937& random, const Arguments& saving, int64_t before) const {
    const int ranks = static_cast<int>(2 + random() % 2);
    Subprocess job = Start(OnRanks(
        ranks, saving + Arguments{"--steps=100000000", "--plan=zero-3", "--log_every=1000"}));
    EXPECT_TRUE(job.WaitForOutput("saved after step "));
    absl::SleepFor(absl::Milliseconds(random() % 200));
    const pid_t victim = WorkerOf(static_cast<int>(random() % ranks));
    if (victim <= 0) {
      ADD_FAILURE() << ToString(job.Wait(absl::ZeroDuration()));
      return before;
    }
    kill(victim, SIGKILL);
    const SubprocessResult result = job.Wait();
    EXPECT_THAT(result, ExitsWith(128 + SIGKILL));
    EXPECT_GE(FirstNumber(result.out, ", after step "), before) << ToString(result);
    EXPECT_THAT(result.out, ::testing::Not(::testing::HasSubstr("passed over")));
    return LastNumber(result.out, "\nsaved after step ");
  }
};

}  // namespace muster::testing
