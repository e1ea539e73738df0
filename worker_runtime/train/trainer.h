// The program muster-train: everything between its options and its exit code.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/data.h"
#include "muster/engine.h"
#include "muster/gpt.h"
#include "muster/runtime.h"
#include "worker_runtime/train/console.h"
#include "worker_runtime/train/loss_curve.h"
#include "worker_runtime/train/stop.h"
#include "worker_runtime/train/train_options.h"
#include "worker_runtime/train/training_report.h"

namespace muster::train {

// Threads: thread-compatible.
class Trainer {
 public:
  // `runtime` outlives it.
  Trainer(Runtime& runtime, TrainOptions options);

  // Checks what this rank can check alone, then meets the others, builds model and engine, and
  // loads the checkpoint to go on from. After an error the trainer should live until the ranks have
  // said why they end: its communicator's end would be the peers' failure.
  //
  // Errors: for ExitCodeOfSetup.
  absl::Status SetUp();

  // Trains, saves, and says what came of it; after SetUp. Returns the signal by which the process
  // shall end; 0 if the training is complete or the job stops at this step. The same on all ranks.
  //
  // Errors: Engine::Step's and Engine::Save's.
  absl::StatusOr<int> Run();

 private:
  // Of SetUp.
  absl::Status CheckAlone();
  // The GPU of this worker, where that is wanted.
  absl::Status OpenDevice();
  absl::Status CheckStepFits() const;
  Engine::BatchSize BatchSize() const {
    return {.batch = options_.plan.batch_size, .sequence = config_.context};
  }
  absl::Status BuildTogether();
  absl::Status CheckOptionsAgree();
  absl::Status Resume();
  absl::Status CheckSaveDirectory();
  absl::Status StartReading();
  absl::Status CheckResumedModel(const std::map<std::string, std::string>& metadata) const;
  void PrintStart() const;

  bool needs_others() const;

  // Of Run. Why training ends before its last step, if it does; the same on all ranks, at the same
  // step.
  struct EarlyEnd {
    int signal = 0;      // 0: the job stops, by the agents' word
    std::string reason;  // for people
  };

  absl::StatusOr<std::optional<EarlyEnd>> TrainAllSteps();
  absl::StatusOr<StepResult> TrainOneStep();
  // Of the job, after the steps done so far.
  std::optional<EarlyEnd> AskForStop();
  // `is_last`: a refusal to publish it is waited out, and an error if it is for good.
  absl::Status Save(bool is_last);
  bool IsSaveDue(bool is_last) const;
  void PrintStop(const EarlyEnd& end) const;
  void PrintEnd(absl::Duration elapsed) const;
  int64_t BytesSentPerStep() const;
  absl::Status PrintSample();

  // Constant after construction.
  Runtime& runtime_;
  TrainOptions options_;
  GptConfig config_;
  const Console console_;
  std::string resumed_;  // where from, for people

  // Each uses those above it.
  std::unique_ptr<TokenSource> tokens_;
  std::unique_ptr<Device> device_;  // null: the host
  std::unique_ptr<Communicator> world_;
  std::unique_ptr<ParameterStore> store_;
  std::unique_ptr<Gpt> model_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<BatchReader> reader_;

  int64_t saved_step_ = -1;
  TrainingTotals totals_;
  int64_t bytes_sent_by_steps_ = 0;  // by this rank
  LossHistory history_;
};

}  // namespace muster::train
