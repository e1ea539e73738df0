// What a trainer lets go of at the end of its round, and one that goes on with it in the next.
#include "worker_runtime/train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "worker_runtime/train/stop.h"

namespace muster::train {
namespace {

using ::muster::testing::IsOk;
using ::muster::testing::IsOkAndHolds;
using ::muster::testing::TemporaryDirectory;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class RoundsOfATrainer : public ::testing::Test {
 protected:
  RoundsOfATrainer() {
    std::string text;
    for (int i = 0; i < 400; ++i) absl::StrAppend(&text, "all the king's horses ", i % 7, "\n");
    muster::testing::WriteFile(directory_.File("text"), text);
  }

  TrainOptions OptionsOf(int steps, const std::vector<std::string>& more = {}) {
    std::vector<std::string> args = {"--layers=1",   "--heads=2",         "--width=16",
                                     "--context=16", "--batch_size=2",    "--mode=ordered",
                                     "--hash",       "--sample_tokens=0", "--survive=yes"};
    args.push_back(absl::StrCat("--data=", directory_.File("text")));
    args.push_back(absl::StrCat("--steps=", steps));
    args.insert(args.end(), more.begin(), more.end());
    return ParseTrainCommand(args)->options;
  }

  // Trains until `options` end it; returns what was printed.
  std::string Train(const TrainOptions& options, TrainingSoFar& so_far) {
    const std::unique_ptr<Runtime> runtime = *Runtime::FromEnvironment({});
    ::testing::internal::CaptureStdout();
    Trainer trainer(*runtime, options, std::move(so_far));
    EXPECT_THAT(trainer.SetUp(), IsOk());
    StopSignal signal;
    EXPECT_THAT(trainer.Run(signal), IsOkAndHolds(0));
    so_far = trainer.LetGo(absl::AbortedError("the round is over"));
    return ::testing::internal::GetCapturedStdout();
  }

  static std::string HashIn(const std::string& printed) {
    const size_t at = printed.find("hash=");
    return at == std::string::npos ? "none" : printed.substr(at, 69);
  }

  TemporaryDirectory directory_;
};

TEST_F(RoundsOfATrainer, GoOnFromTheStateInMemoryToTheBitsOfOneRound) {
  TrainingSoFar whole;
  const std::string expected = Train(OptionsOf(12), whole);
  EXPECT_THAT(expected, Not(HasSubstr("round")));
  TrainingSoFar so_far;
  Train(OptionsOf(5), so_far);
  EXPECT_EQ(so_far.state.step(), 5);
  const std::string printed = Train(OptionsOf(12), so_far);
  EXPECT_EQ(HashIn(printed), HashIn(expected));
  EXPECT_THAT(printed,
              AllOf(HasSubstr("round 0: goes on after step 5 with 1 rank (rank 0's state)"),
                    Not(HasSubstr("  model ")), HasSubstr("  trained  12 steps, "),
                    HasSubstr("  rounds   trained in 2 rounds of the job\n")));
}

TEST_F(RoundsOfATrainer, GoOnFromACheckpointWhereNoRankHasTheState) {
  const std::string saves = absl::StrCat("--save=", directory_.File("saved"));
  const std::string resumes = absl::StrCat("--resume=", directory_.File("saved"));
  TrainingSoFar so_far;
  Train(OptionsOf(4, {saves, resumes}), so_far);
  Train(OptionsOf(7), so_far);
  so_far.state = EngineSnapshot();
  so_far.no_state = "it is torn";
  const std::string printed = Train(OptionsOf(10, {saves, resumes}), so_far);
  EXPECT_THAT(printed, AllOf(HasSubstr("goes on after step 4 with 1 rank (the checkpoint in "),
                             HasSubstr("; it is torn)\n"), HasSubstr("  trained  13 steps, "),
                             HasSubstr("3 steps were lost between them and made again")));
}

TEST_F(RoundsOfATrainer, SaveWhatTheRoundBeforeHadMadeAndNotSaved) {
  TrainingSoFar so_far;
  Train(OptionsOf(4), so_far);
  const std::string saves = absl::StrCat("--save=", directory_.File("saved"));
  EXPECT_THAT(Train(OptionsOf(4, {saves}), so_far), HasSubstr("saved after step 4 in "));
}

TEST_F(RoundsOfATrainer, KeepTheStateWhereARoundEndsBeforeItHasReachedTheEngine) {
  TrainingSoFar so_far;
  Train(OptionsOf(4), so_far);
  {
    const std::unique_ptr<Runtime> runtime = *Runtime::FromEnvironment({});
    Trainer trainer(*runtime, OptionsOf(9, {"--data=nowhere"}), std::move(so_far));
    so_far = trainer.LetGo(absl::UnavailableError("rank 3 did not come"));
  }
  EXPECT_EQ(so_far.state.step(), 4);
  EXPECT_THAT(Train(OptionsOf(9), so_far), HasSubstr("goes on after step 4 with 1 rank"));
}

}  // namespace
}  // namespace muster::train
