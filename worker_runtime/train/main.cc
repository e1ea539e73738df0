// muster-train: parse, build, train. The way of a job through it: TrainInRounds (round_loop.h), Trainer (trainer.h).
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/runtime.h"
#include "worker_runtime/train/failure_notice.h"
#include "worker_runtime/train/round_loop.h"
#include "worker_runtime/train/train_options.h"

namespace muster::train {
namespace {

// Says why, and returns the exit code of a failure before the first step.
int Refuse(Runtime* runtime, const absl::Status& failure) {
  SayFailure(runtime, failure);
  return ExitCodeOfSetup(failure);
}

int Main(const std::vector<std::string>& args) {
  absl::StatusOr<TrainCommand> command = ParseTrainCommand(args);
  if (command.ok() && !command->help.empty()) {
    std::fputs(command->help.c_str(), stdout);
    return 0;
  }
  // Made even for a wrong command line: the job's store is where the ranks agree who says so.
  absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::FromEnvironment();
  if (!command.ok()) return Refuse(runtime.ok() ? runtime->get() : nullptr, command.status());
  if (!runtime.ok()) return Refuse(nullptr, runtime.status());
  if ((*runtime)->rank() == 0) {
    for (const std::string& warning : command->warnings) {
      std::fprintf(stderr, "muster-train: %s\n", warning.c_str());
    }
  }
  return TrainInRounds(*std::move(runtime), command->options);
}

}  // namespace
}  // namespace muster::train

int main(int argc, char** argv) {
  return muster::train::Main(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
}
