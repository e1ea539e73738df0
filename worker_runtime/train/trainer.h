// The program muster-train in one round of its job (round_loop.h): model, engine, steps and what it
// says.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/data.h"
#include "muster/decoder.h"
#include "muster/engine.h"
#include "muster/model_files.h"
#include "muster/runtime.h"
#include "proto/base/mono_time.h"
#include "worker_runtime/train/console.h"
#include "worker_runtime/train/rounds.h"
#include "worker_runtime/train/stop.h"
#include "worker_runtime/train/train_options.h"

namespace muster::train {

// Threads: thread-compatible.
class Trainer {
 public:
  // `runtime` is that of the round, and outlives it; `options` are the user's, the same in every
  // round.
  Trainer(Runtime& runtime, TrainOptions options, TrainingSoFar so_far = {});

  // Checks what this rank can check alone, then meets the others, builds model and engine, and gets
  // the state to go on from: what ranks that have survived have of it, if ranks do (--survive);
  // else the checkpoint. After an error the trainer should live until the ranks have said why they
  // end: its communicator's end would be the peers' failure.
  //
  // Errors: for ExitCodeOfSetup.
  absl::Status SetUp();

  // Trains, saves, and says what came of it; after SetUp. Returns the signal by which the process
  // shall end; 0 if the training is complete or the job stops at this step. The same on all ranks.
  //
  // Errors: Engine::Step's and Engine::Save's.
  // `signal` asks for the end, and is released with the last step.
  absl::StatusOr<int> Run(StopSignal& signal);

  // Called after SetUp or Run has failed with `failure`: ends the communicator with it and lets go
  // of everything that is of this round. The trainer is of no further use.
  TrainingSoFar LetGo(const absl::Status& failure);

 private:
  // Steps of SetUp.
  absl::Status CheckAlone();
  // The GPU of this worker, where that is wanted.
  absl::Status OpenDevice();
  // What the model's units cost, if that is asked for, by the measure of rank 0 for all.
  absl::Status MeasureUnits();
  absl::StatusOr<std::string> MeasureOwnUnits();
  // Whether a step fits the least memory that any rank has, and which way of reducing gradients
  // does.
  absl::Status FitMemory();
  // What this rank may take.
  int64_t OwnMemoryBytes() const;
  Engine::BatchSize BatchSize() const {
    return {.batch = options_.plan.batch_size, .sequence = config().context};
  }
  // Its vocabulary is known once the data are.
  const DecoderConfig& config() const { return options_.plan.model; }
  absl::StatusOr<std::unique_ptr<Communicator>> MakeWorld();
  absl::Status BuildTogether();
  // Opens --model, if it is a directory, and checks what is asked for beside it.
  absl::Status OpenModelFiles();
  // The model, whose parameters beneath adapters come from --base or --model.
  absl::Status BuildModel();
  absl::Status LoadBase();
  void PrintPassedOver(const Engine::Loaded& loaded) const;
  absl::Status TakeUpState();
  absl::Status CheckOptionsAgree();
  // Whether there was a checkpoint.
  absl::StatusOr<bool> Resume();
  absl::Status CheckSaveDirectory();
  absl::Status StartReading();
  // Ends all that other ranks may wait for this one in.
  void EndGroups(const absl::Status& failure);
  absl::Status CheckResumedModel(const std::string& directory,
                                 const std::map<std::string, std::string>& metadata) const;
  // Whether adapters were trained over the same model.
  absl::Status CheckResumedBase(const std::map<std::string, std::string>& metadata) const;
  void PrintStart() const;
  std::string DescribeAdapters() const;
  std::string DescribeWeights() const;

  bool needs_others() const;

  // Why training (Run) ends before its last step, if it does; the same on all ranks, at the same
  // step.
  struct EarlyEnd {
    int signal = 0;      // 0: the job stops, by the agents' word
    std::string reason;  // for people
  };

  absl::StatusOr<std::optional<EarlyEnd>> TrainAllSteps(const StopSignal& signal);
  absl::StatusOr<StepResult> TrainOneStep();
  // Asks whether the job stops after the steps done so far.
  std::optional<EarlyEnd> AskForStop();
  // `is_last`: a refusal to publish it is waited out, and an error if it is for good. A
  // checkpoint in between that the disk has no room for is said, and training goes on.
  absl::Status Save(bool is_last);
  // Saves what a step that failed has left as it was; returns `failure` and what became of it.
  absl::Status SaveBeforeEnding(const absl::Status& failure);
  std::string NotSaved(const absl::Status& why) const;
  std::map<std::string, std::string> Metadata() const;
  bool IsSaveDue(bool is_last) const;
  void PrintStop(const EarlyEnd& end) const;
  void PrintEnd(MonoTime end) const;
  int64_t BytesSentPerStep() const;
  absl::Status PrintSample();

  // Constant after construction.
  Runtime& runtime_;
  TrainOptions options_;  // --backend is what it has become, once there is a world
  const Console console_;
  std::string resumed_;   // where from, for people
  std::string no_state_;  // why from no state of the ranks'
  std::string base_;      // which model lies beneath adapters: its arrays' SHA-256, or its seed
  std::optional<Engine::Restored> restored_;

  std::optional<ModelFiles> files_;  // of --model

  // Each uses those above it.
  TrainingSoFar so_far_;
  std::unique_ptr<Communicator> world_;
  std::unique_ptr<ParameterStore> store_;
  std::unique_ptr<Decoder> model_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<BatchReader> reader_;

  bool holds_state_ = false;  // the engine does, of the training
};

}  // namespace muster::train
