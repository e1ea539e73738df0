// What an engine holds, for the files that are its methods: engine.cc (set-up), engine_step.cc (the
// loop that carries out a program), engine_passes.cc (forward and backward), engine_uses.cc (units
// that are gathered for their use), engine_update.cc (from reduced gradients to parameters),
// engine_data.cc (batches), engine_capture.cc (steps as one piece of work), engine_register.cc
// (memory that back ends are told of), engine_checkpoint.cc, engine_snapshot.cc (the state in
// memory, for ranks of a later world).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "muster/engine.h"
#include "muster/rng.h"
#include "worker_runtime/checkpoint/whole_checkpoint.h"
#include "worker_runtime/engine/engine_set_up.h"
#include "worker_runtime/engine/executor_core.h"
#include "worker_runtime/engine/passes_in_flight.h"
#include "worker_runtime/engine/rank_state.h"
#include "worker_runtime/engine/reduction.h"
#include "worker_runtime/engine/stage_transfers.h"
#include "worker_runtime/engine/state_file.h"
#include "worker_runtime/engine/step_decision.h"
#include "worker_runtime/engine/step_form.h"
#include "worker_runtime/engine/step_listeners.h"
#include "worker_runtime/kernels/rounding.h"
#include "worker_runtime/plan/loss_scaler.h"
#include "worker_runtime/plan/program.h"
#include "worker_runtime/plan/update_plan.h"

namespace muster {

// Every array of a checkpoint by name, of the type of the masters and in the shape of its
// parameter.
struct EngineSnapshot::State {
  checkpoint::TrainingState head;
  std::map<std::string, Tensor> model;
  std::map<std::string, Tensor> optimizer;
};

// Threads: as Engine.
struct Engine::State {
  // Computes a FORWARD of the program.
  using PassForward = absl::FunctionRef<absl::StatusOr<StageOutput>(
      Tape& tape, const plan::Action& pass, const Activation& received)>;

  // `has_sample`: what `record` returns was seen, not assumed.
  static absl::StatusOr<std::unique_ptr<State>> Create(Communicator& world, ParameterStore& store,
                                                       Plan plan, const PipelineCut& cut,
                                                       StageTracer record, bool has_sample);

  State(Communicator& the_world, ParameterStore& the_store, Plan the_plan, EngineSetUp the_set_up,
        plan::Program the_program, std::vector<std::unique_ptr<Communicator>> the_groups);
  ~State();

  void Mark(Phase phase) const {
    if (listeners.on_phase) listeners.on_phase(step, phase);
  }

  // engine.cc
  absl::Status LearnOrder();

  // engine_step.cc
  // `from_reader`: on the batches of TakeBatches.
  absl::StatusOr<StepResult> RunStep(PassForward forward, bool from_reader = false);
  // All of a step but what the host learns of it, after Reduction::Begin.
  absl::Status PutStep(PassForward forward);
  void ForgetStep();
  absl::Status CarryOut(PassForward forward);
  absl::Status EndOnDevice();
  void EndGroups(const absl::Status& failure);
  void Abort(absl::string_view reason);
  // Actions to start: those that compute wait in `to_compute`.
  void Start(absl::Span<const int> actions);
  void StartTravel(int action);
  // Takes notice of what has ended; waits for `action`.
  absl::Status Await(int action);
  absl::Status AwaitRest();
  void Complete(int action);
  void Tell(TimedAction::Lane lane, int action, MonoTime begin, MonoTime end) const;
  absl::Status Compute(const plan::Action& action, PassForward forward);
  absl::Duration CommunicationTime() const;

  // engine_passes.cc
  absl::Status RunForward(const plan::Action& action, PassForward forward);
  absl::Status RunBackward(const plan::Action& action);
  void Replay(plan::ActionKind kind, engine::PassInFlight& pass);
  // The gradient of the sum of a micro-batch's losses.
  double SeedOfBackward() const {
    return scaler.is_on() ? plan::SeedOfBackward(scaler.scale(), set_up.declared_tokens()) : 1;
  }
  // Gradients of weights of a stage go to where the pass says, over what an earlier one has left.
  void BindGradients(const plan::Action& action);
  // The tape of the pass at hand tells which gradients are written for the last time.
  void WatchGradients(Tape& tape);

  // engine_uses.cc
  // An operation is about to use `parameter`: waits until its unit is there.
  void Enter(const Parameter& parameter);
  void EnterInStep(const Parameter& parameter);
  // Between steps nothing is gathered ahead: the unit is, alone, from the ranks that hold it.
  void EnterAlone(int unit);
  absl::Status GatherAlone(int unit);
  absl::Status GatherBucketAlone(int bucket);
  void ReleaseAlone();
  bool is_gathered(int unit) const;
  // Forgets what was gathered between steps; returns what failed.
  absl::Status LeaveAlone();

  // engine_update.cc
  void ComputeNorm();
  double ScheduledLearningRate() const;
  absl::Status DecideUpdate();
  // What the host makes of the decision: at once where it reads the device's memory, else after the
  // step.
  absl::Status JudgeStep();
  std::vector<kernels::UpdateSettings> UpdateSettings() const;
  absl::Status CheckLoss(engine::LossSum total);
  absl::Status JudgeScale(bool overflow);
  absl::Status NormError(absl::string_view hint);
  void Update(const plan::Action& action);
  // Parameters of the blocks that are updated alike.
  std::vector<kernels::UpdateRun> RunsOf(plan::BlockRange blocks) const;
  // Gives the parameters that this rank owns of a bucket the values of their masters, after so many
  // updates as the decision has counted.
  void RoundMasters(int bucket);
  PhiloxKey RoundingKey() const { return Rng(plan.seed, "rounding").key(); }
  // The draws of elements from number `first_element` of the model on.
  kernels::RoundingDraws DrawsFrom(int64_t first_element) const;

  // engine_data.cc
  absl::StatusOr<const Batch*> NextBatch(BatchReader& reader) const;
  absl::StatusOr<const Batch*> BatchOf(BatchReader& reader, Tape& tape, int64_t index);
  // On a device: all batches of the step, on their way there by the copy lane.
  absl::Status TakeBatches(BatchReader& reader);
  std::vector<double> TargetsThatCount() const;

  // engine_capture.cc
  // Puts the step on the queue in the form that all ranks agree on.
  absl::Status PutInForm(PassForward forward, bool from_reader);
  absl::Status PutBatches(PassForward forward, engine::StepForm form,
                          const engine::StepShape& before);
  // Whether steps have more than one form; the same on all ranks.
  bool HasForms() const;
  engine::StepShape ShapeOfBatches() const;
  // The worst of all ranks' numbers.
  absl::StatusOr<int32_t> WorstOfRanks(int32_t own);
  // Whether all ranks did.
  absl::StatusOr<bool> CaptureStep(PassForward forward);
  absl::Status CaptureOwnStep(PassForward forward);

  // engine_register.cc
  // If it was told to. All ranks call it together.
  absl::Status RegisterBuffers();
  absl::Status RegisterWithGroups();

  // engine_checkpoint.cc
  // The programs of the first rank of each stage.
  std::vector<plan::Program> ProgramsOfPlaces() const;
  engine::CheckpointArrays ArraysOfCheckpoint();
  engine::CheckpointArrays WithMemory(engine::CheckpointArrays all) const;
  absl::StatusOr<int64_t> TellNext(int64_t array, int root = 0);
  absl::StatusOr<std::string> WriteCheckpoint(const std::string& directory,
                                              const std::map<std::string, std::string>& metadata);
  absl::Status GiveArrays();
  absl::StatusOr<checkpoint::NewestCheckpoint> OpenCheckpoint(const std::string& directory);
  absl::StatusOr<checkpoint::NewestCheckpoint> OpenBase(const std::string& directory);
  // What is no array of its own: step and counters.
  checkpoint::TrainingState HeadOfState() const;
  // A rank that has a whole state, which it gives to all.
  struct StateSource {
    int rank = 0;
    std::string name;                               // for people
    absl::StatusOr<checkpoint::TrainingState> own;  // what the rank has; of no use on the others
    // On the rank alone: fills `memory`.
    absl::FunctionRef<absl::Status(const engine::StateArray& array, const Tensor& memory)> read;
  };
  // Every rank calls it alike. An error of the source's rank before the first array leaves all as
  // it was.
  absl::StatusOr<checkpoint::TrainingState> TakeState(const StateSource& source);
  absl::Status TakeArrays(const StateSource& source, int64_t updates);
  absl::Status SpreadArrays(const StateSource& source, const engine::CheckpointArrays& all,
                            std::optional<engine::ValueRounding> rounding);
  absl::StatusOr<std::string> HashParameters();

  // engine_snapshot.cc
  absl::Status CheckHoldsWholeState() const;
  absl::Status CheckSnapshot(const EngineSnapshot::State& snapshot, const std::string& name) const;

  bool is_pipeline() const { return set_up.mesh.stages > 1; }
  int place() const { return world.rank() / set_up.mesh.replicas; }
  int replica() const { return world.rank() % set_up.mesh.replicas; }

  // Constant after construction.
  Communicator& world;    // outlives the engine: the caller's
  ParameterStore& store;  // outlives the engine: the caller's
  const Plan plan;
  EngineSetUp set_up;
  std::string plan_hash;
  plan::Program program;
  // Communicators of program.groups, all but the world.
  const std::vector<std::unique_ptr<Communicator>> own_groups;

  TensorPool pool;  // of the store's device
  Queue queue{pool.device(), &pool};
  TensorPool batch_pool{pool.device()};  // of batches on their way
  Queue copies{pool.device(), &batch_pool, Queue::Lane::kCopy};
  engine::RankState held;
  // Parameters that are updated alike are a group.
  std::vector<plan::ParameterUpdate> update_groups;
  std::vector<int> group_of_parameter;  // of those that are not frozen
  std::optional<engine::StepDecision> decision;
  std::optional<engine::Reduction> reduction;
  std::optional<engine::ExecutorCore> core;

  // Registers memory of the above with groups of the above. Captures of calls in it go before.
  bool registers = false;
  bool has_begun = false;  // the first step
  std::vector<Registration> registrations;

  // State of the step under way.
  struct Travel {
    int action = 0;
    Work work;
    MonoTime since;
    Tensor memory;  // of a transfer
  };
  std::vector<Travel> travels;  // under way, in the order of their start
  std::vector<Travel> arrived;  // of this step
  int to_compute = plan::kNone;
  absl::Status use_error;   // of a use within a pass, which cannot return it
  int alone = plan::kNone;  // the unit that was gathered between steps
  absl::Status alone_error;
  bool in_step = false;
  std::vector<int> observed_gradients;  // of the first step
  engine::PassesInFlight in_flight;
  engine::StageTransfers transfers;
  std::vector<Batch> batches;  // by micro-batch, of a model in units: its tape reads the ids
  // The same on a device that the host cannot reach.
  struct BatchPlace {
    Tensor inputs;
    Tensor targets;
    std::unique_ptr<Event> is_there;
  };
  std::vector<BatchPlace> batch_places;

  // Steps on batches of a reader as one piece of work (engine_capture.cc).
  engine::StepForms forms;
  std::unique_ptr<CapturedCalls> captured;
  Work launched;
  bool is_capturing = false;
  StepResult result;

  // The step under way may have changed parameters or optimizer.
  bool is_updating = false;
  // One that failed did, or a load: they are of no step.
  bool is_torn = false;
  bool waits_before_update = false;

  int64_t step = 0;           // taken: each has consumed its batches
  int64_t skipped_steps = 0;  // of them, those that changed nothing
  plan::LossScaler scaler;
  engine::StepListeners listeners;
  CheckpointFence fence;
};

}  // namespace muster
