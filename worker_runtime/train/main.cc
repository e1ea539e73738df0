// muster-train: parse, build, train. The way of a job through it: TrainInRounds (round_loop.h),
// Trainer (trainer.h).
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "muster/runtime.h"
#include "worker_runtime/options/config_disk.h"
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

// "ds.json:9: bf16.enabled=false: it is not enabled" -> "bf16.enabled"
std::string KeyOf(const std::string& line) {
  const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(": ", 1));
  return parts.back().substr(0, parts.back().find('='));
}

void PrintNotes(const TrainCommand& command) {
  for (const std::string& warning : command.warnings) {
    std::fprintf(stderr, "muster-train: %s\n", warning.c_str());
  }
  if (command.without_effect.empty() || command.options.print.quiet) return;
  std::vector<std::string> keys;
  for (const std::string& line : command.without_effect) keys.push_back(KeyOf(line));
  std::fprintf(stderr, "muster-train: keys that change nothing here (muster plan says why): %s\n",
               absl::StrJoin(keys, ", ").c_str());
}

int Main(const std::vector<std::string>& args) {
  if (const std::string help = TrainHelp(args); !help.empty()) {
    std::fputs(help.c_str(), stdout);
    return 0;
  }
  // Made even for a wrong command line: the job's store is where the ranks agree who says so.
  absl::StatusOr<std::unique_ptr<Runtime>> runtime = Runtime::FromEnvironment();
  Runtime* const job = runtime.ok() ? runtime->get() : nullptr;
  const absl::StatusOr<TrainCommand> command =
      ParseTrainCommand(args, plan::ConfigFilesOnDisk(job == nullptr ? 1 : job->size(),
                                                      job == nullptr ? 1 : job->local_size()));
  // The environment tells the size of the job, which the command line is checked against.
  if (!runtime.ok()) return Refuse(nullptr, runtime.status());
  if (!command.ok()) return Refuse(job, command.status());
  if (job->rank() == 0) PrintNotes(*command);
  return TrainInRounds(*std::move(runtime), command->options);
}

}  // namespace
}  // namespace muster::train

int main(int argc, char** argv) {
  return muster::train::Main(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
}
