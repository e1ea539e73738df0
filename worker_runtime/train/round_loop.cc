#include "worker_runtime/train/round_loop.h"

#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker_runtime/train/failure_notice.h"
#include "worker_runtime/train/rounds.h"
#include "worker_runtime/train/stop.h"
#include "worker_runtime/train/trainer.h"

namespace muster::train {
namespace {

// The time in which somebody must have said that the round is over: longer than the lease of a node
// that is gone.
constexpr absl::Duration kPatience = absl::Seconds(30);
// The part of kPatience before it says that it waits.
constexpr absl::Duration kSilence = absl::Seconds(3);

// The exit code, or nothing where `failure` ended the round alone, whose `so_far` goes on in the
// next.
std::optional<int> TrainInRound(Runtime& runtime, const TrainOptions& options,
                                TrainingSoFar& so_far, absl::Status& failure) {
  if (options.survive) runtime.SurviveRounds();
  // Before its first step, a job ends where it is told to. In a later round there is state that
  // only the other ranks have: this one stays until it is saved.
  std::optional<StopSignal> asked;
  if (options.survive && runtime.restart_count() > 0) asked.emplace();
  Trainer trainer(runtime, options, std::move(so_far));
  failure = trainer.SetUp();
  int exit_code = ExitCodeOfSetup(failure);
  if (failure.ok()) {
    if (!asked.has_value()) asked.emplace();
    const absl::StatusOr<int> stop_signal = trainer.Run(*asked);
    if (stop_signal.ok() && *stop_signal != 0) EndBySignal(*stop_signal);
    if (stop_signal.ok()) return 0;
    failure = stop_signal.status();
    exit_code = 1;
  }
  const int signal = asked.has_value() ? asked->received() : 0;
  const AfterFailure then = DecideAfterFailure(options.survive, failure, signal);
  if (then == AfterFailure::kAskForRound) {
    so_far = trainer.LetGo(failure);
    return std::nullopt;
  }
  SayFailure(&runtime, failure);
  if (then == AfterFailure::kEndBySignal) EndBySignal(signal);
  return exit_code;
}

}  // namespace

int TrainInRounds(std::unique_ptr<Runtime> runtime, const TrainOptions& options) {
  TrainingSoFar so_far;
  for (;;) {
    absl::Status failure;
    if (const auto code = TrainInRound(*runtime, options, so_far, failure)) return *code;
    absl::StatusOr<std::unique_ptr<Runtime>> next = runtime->NextRound(kSilence);
    if (absl::IsDeadlineExceeded(next.status())) {
      // One of a node is enough.
      if (runtime->local_rank() == 0) {
        std::fprintf(stderr, "muster-train: rank %d awaits the job's next round: %s\n",
                     runtime->rank(), std::string(failure.message()).c_str());
      }
      next = runtime->NextRound(kPatience - kSilence);
    }
    if (!next.ok()) {
      SayFailure(runtime.get(), FailureToSay(failure, next.status()));
      return 1;
    }
    runtime = *std::move(next);
  }
}

}  // namespace muster::train
