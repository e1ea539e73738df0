// Trains the parameters of a store on the micro-batches of all ranks.
//
//   const Engine::BatchSize size = {.batch = 8, .sequence = 64};
//   MUSTER_ASSIGN_OR_RETURN(auto engine, Engine::Create(*world, store, plan, gpt->Units(), size));
//   MUSTER_ASSIGN_OR_RETURN(auto reader, engine->Read(*tokens, size));
//   for (int64_t step = 0; step < steps; ++step) {
//     MUSTER_ASSIGN_OR_RETURN(StepResult result, engine->Step(*reader));
//   }
//
// A model that is no row of units computes its loss by itself: Engine::Create with a sample, and
// Step with what computes the loss of a batch.
//
// A step: for each micro-batch forward and backward; in the last backward pass each bucket of
// gradients is reduced as soon as it is complete; then clipping by the global norm and the update
// (muster/update.h). What a rank does is a program that was proven before the first step
// (plan/program.h). Gradients are weighed by tokens: the step's loss is the sum over all tokens of
// all ranks divided by their number, whatever their spread.
//
// All ranks call Create, Step, Save, Load and Restore in the same order. The first failure on any
// rank ends the communicator and so reaches every rank.
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
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "muster/checkpoint_fence.h"
#include "muster/communicator.h"
#include "muster/cuda_attention.h"
#include "muster/data.h"
#include "muster/device.h"
#include "muster/layers.h"
#include "muster/model_files.h"
#include "muster/parameter.h"
#include "muster/pipeline.h"
#include "muster/plan.h"
#include "muster/tape.h"
#include "proto/base/progress_board.h"

namespace muster {

// The parts of a step's time, on this rank.
struct StepTimes {
  absl::Duration forward;   // with the caller's loading of batches
  absl::Duration backward;  // with starting reductions
  absl::Duration wait;      // for reductions, after the backward pass: what was not hidden
  absl::Duration update;    // norm and optimizer
  absl::Duration gather;    // of forward and backward: for parameters that were gathered
  absl::Duration total;
  // The time in which at least one reduction was under way; 1 - wait / communication was hidden.
  absl::Duration communication;
};

// A piece of a step's work on this rank, for a time line.
struct TimedAction {
  enum class Lane { kCompute, kNetwork, kWaiting };
  Lane lane = Lane::kCompute;
  std::string what;  // "forward stage 0 micro-batch 1"
  int64_t step = 0;  // that it belongs to, counted as StepResult::step
  absl::Time began;
  absl::Duration took;
};

struct StepResult {
  int64_t step = 0;          // steps made so far, this one included
  double loss = 0;           // per token, over all ranks and micro-batches
  int64_t num_tokens = 0;    // targets that counted, over all ranks and micro-batches
  double gradient_norm = 0;  // of the mean gradient, before clipping
  double learning_rate = 0;
  double loss_scale = 1;  // that this step had (Plan::loss_scaling)
  // The gradient was not finite at this scale: the step changed neither parameters nor optimizer.
  // Its loss and norm may be no numbers.
  bool skipped = false;
  StepTimes times;
};

// Bytes on this rank.
struct EngineMemory {
  int64_t parameters = 0;  // at rest
  int64_t gathered = 0;    // of sharded parameters, for their use
  int64_t gradients = 0;   // with those on their way, and the partial sums of ordered mode
  int64_t optimizer = 0;
  int64_t buffers = 0;           // of collectives
  int64_t activations_peak = 0;  // reserved for the tape so far
  int64_t exchange = 0;          // of communicators: Communicator::bytes_reserved
  int64_t device = 0;            // planned: of a GPU for itself (muster/cuda_device.h)
  int64_t total() const {
    return parameters + gathered + gradients + optimizer + buffers + activations_peak + exchange +
           device;
  }
};

namespace engine {
struct Rig;
struct StateCopy;
}  // namespace engine

// A rank's part of the training state after a whole number of steps, in the host's memory: what it
// takes along when its engine, store and communicators come to their end. The part is what the rank
// updates: all of it where it is replicated, a shard where it is spread, a stage of a pipeline.
// Made by Engine::TakeSnapshot; else empty, as of a rank that has none.
//
// Cost: what a checkpoint takes of it: of each parameter its value (of 16 bits: its master of f32)
//       and moments, 12 bytes per parameter for AdamW; the engine that takes it and the one that is
//       given it have theirs beside.
// Threads: thread-compatible.
class EngineSnapshot {
 public:
  EngineSnapshot();
  EngineSnapshot(EngineSnapshot&&) noexcept;
  EngineSnapshot& operator=(EngineSnapshot&&) noexcept;
  ~EngineSnapshot();

  bool empty() const { return state_ == nullptr; }
  int64_t step() const;  // steps made; 0 if it is empty

 private:
  friend class Engine;
  explicit EngineSnapshot(std::unique_ptr<const engine::StateCopy> state);

  std::unique_ptr<const engine::StateCopy> state_;
};

// What an engine does besides its plan; bits are the same whatever it is.
struct EngineOptions {
  // What every Save asks; all ranks of a job that is started again should give it:
  //   Engine::Create(*world, store, plan, gpt->Units(), size,
  //                  {.fence = runtime->checkpoint_fence()})
  CheckpointFence fence;
  // How many checkpoints of a directory stay once one more is saved there: that one and those of
  // the steps before it. Older ones are removed, and nothing else. 0: all stay.
  int64_t keeps_checkpoints = 0;
  // Whether steps on batches of a reader are captured as one piece of work of a device that can (a
  // CUDA graph), which the host starts at once, while batches stay of one size. Nothing: one rank
  // captures, several do not. Several do where all are told to, their communicators capture
  // (Communicator::captures) and sums are not ordered: they agree before each step, by an
  // all-reduce of one number, until one of them captures no more, or takes a step on other batches
  // than a reader's; then none does for good.
  std::optional<bool> captures_steps;
  // Whether the buffers that collectives of a step work in are registered with their communicators
  // (Communicator::Register), so that a backend may read and write there directly: gradients,
  // gathered and shared parameters, norms and losses; activations are not. All ranks alike.
  bool registers_buffers = false;
  // Whether a step on a device waits on the host until its gradients are reduced, before it sends
  // the update: then a peer's loss in the middle of the step leaves the state that was before it,
  // for TakeSnapshot. Where the communicator works on the device's streams (nccl) the update would
  // else be on its way behind what fails. Steps that are launched as one piece of work do not wait.
  bool waits_before_updates = false;
};

// Threads: thread-compatible; the communicator's threads do the reducing.
class Engine {
 public:
  // Gives the parameters of `store` their memory and initial values (plan.seed), and compares plan
  // and parameters across the ranks. `world` and `store` outlive the engine. All parameters
  // that learn have one type, and those that are frozen one of their own.
  //
  // `sample`: what one micro-batch of the largest shape does, for the order in which it uses the
  // parameters. It is called once, on a tape of the meta device, where tensors have sizes and no
  // elements, and of tokens only the number matters. Plans that shard gradients or parameters, or
  // scale the loss, need it; others without it learn the order from their first step.
  //
  // Errors: kInvalidArgument: the plan is wrong in itself or for so many ranks, needs a sample, or
  //         differs between ranks (names the rank and the first field that differs);
  //         kFailedPrecondition: the store is another engine's, or has memory; kUnimplemented:
  //         a residency or type that this version has not; those of `sample`; the communicator's,
  //         which may not register memory. One rank's are all ranks', and name it.
  using Sample = std::function<absl::StatusOr<Loss>(Tape& tape)>;
  static absl::StatusOr<std::unique_ptr<Engine>> Create(Communicator& world, ParameterStore& store,
                                                        Plan plan, const Sample& sample = nullptr,
                                                        EngineOptions options = {});

  struct BatchSize {
    int64_t batch = 4;       // rows per micro-batch
    int64_t sequence = 256;  // tokens per row
  };
  // Makes the engine of a model in units, which plan.stages may cut into a pipeline. `model` is the
  // sample too, and is called until the engine is gone.
  //
  // Errors: Create's; those of `model`; kInvalidArgument: the model or the ranks cannot be divided
  //         into so many stages.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(Communicator& world, ParameterStore& store,
                                                        Plan plan, UnitModel model,
                                                        const BatchSize& size,
                                                        EngineOptions options = {});

  // Makes one stage of a pipeline that the program cuts itself, whose data it brings (StepStage).
  // Every rank declares the whole model; those parameters get memory that its stage holds.
  //
  // Errors: Create's; kInvalidArgument: the cut does not fit the model, the plan or the number of
  // ranks.
  using StageSample =
      std::function<absl::StatusOr<StageOutput>(Tape& tape, absl::Span<const Activation> received)>;
  static absl::StatusOr<std::unique_ptr<Engine>> CreateStage(Communicator& world,
                                                             ParameterStore& store, Plan plan,
                                                             const PipelineCut& cut,
                                                             const StageSample& sample = nullptr,
                                                             EngineOptions options = {});
  ~Engine();

  // Computes the loss of this rank's micro-batch `index` (0 .. plan.accumulation - 1) on `tape`.
  // What it reads (tokens) must stay until it is called again, or until Step returns.
  using Forward = absl::FunctionRef<absl::StatusOr<Loss>(Tape& tape, int64_t index)>;

  // One update of the parameters. On an error they may be used no further, except for
  // kFailedPrecondition, which leaves them and the optimizer as they were.
  //
  // Errors: what `forward` returned, on its own rank, and kAborted with its text on the others;
  //         kFailedPrecondition: the loss or the gradient is not finite (names the first
  //         parameter, and the rank whose loss it was), with a loss scale: and it cannot be
  //         lowered; the communicator's.
  absl::StatusOr<StepResult> Step(Forward forward);

  // This rank's batches of `source`, which outlives the reader: in a pipeline those of its replica.
  // Rank, ranks, micro-batches, seed and the step to begin with are the engine's, so it is made
  // after Load.
  //
  // Errors: BatchReader::Create's, on this rank alone (see Abort).
  absl::StatusOr<std::unique_ptr<BatchReader>> Read(const TokenSource& source,
                                                    const BatchSize& size) const;
  // Step, with each micro-batch from `reader`.
  //
  // Errors: Step's; BatchReader::Next's; kInvalidArgument: the reader is that of another rank,
  //         number of ranks or of micro-batches, or of another step.
  using BatchLoss = absl::FunctionRef<absl::StatusOr<Loss>(Tape& tape, const Batch& batch)>;
  absl::StatusOr<StepResult> Step(BatchReader& reader, BatchLoss loss);
  // The same of an engine that was given a model in units.
  absl::StatusOr<StepResult> Step(BatchReader& reader);

  // The same of an engine of CreateStage: `forward` computes what this rank's stage does with
  // micro-batch `index`. `received` is empty in the first stage.
  //
  // Errors: Step's; kInvalidArgument: the stage passes on others than the cut says.
  using StageForward = absl::FunctionRef<absl::StatusOr<StageOutput>(
      Tape& tape, int64_t index, absl::Span<const Activation> received)>;
  absl::StatusOr<StepResult> StepStage(StageForward forward);

  // The loss of `num_batches` micro-batches of this rank, over all ranks, without a backward pass:
  // parameters and optimizer stay as they are. Where a pipeline or a shard holds parameters
  // elsewhere, all ranks call it alike, and units come one by one as they are used.
  //
  // Errors: what `forward` returned, on its own rank, and kAborted with its text on the others;
  //         kFailedPrecondition: no target counted on any rank; the communicator's.
  struct Evaluation {
    double loss = 0;         // per token
    int64_t num_tokens = 0;  // targets that counted
  };
  absl::StatusOr<Evaluation> Evaluate(int64_t num_batches, Forward forward);

  // What Create and a step would take on the rank of `world_size` that needs most, found out
  // without taking it: `forward` runs on the meta device, where tensors have sizes and no elements,
  // and of tokens only the number matters. `store` has no memory yet. Communicators are those of
  // the gloo back end.
  //
  // Errors: what `forward` returned; kInvalidArgument, kUnimplemented: Create's.
  struct Ranks {
    int world_size = 1;
    int of_node = 0;  // that share a machine; 0: all
    // Each trains on a GPU. All but `exchange`, which is the host's, is of that GPU then. NCCL's
    // own buffers are not known before it has connected.
    bool on_gpus = false;
    // Attention of those GPUs, as opened (muster/cuda_device.h); for auto what cuDNN would take.
    CudaAttention cuda_attention = CudaAttention::kAuto;
  };
  static absl::StatusOr<EngineMemory> PlanMemory(ParameterStore& store, const Plan& plan,
                                                 const Ranks& ranks, Forward forward);
  // The same of a model in units.
  static absl::StatusOr<EngineMemory> PlanMemory(ParameterStore& store, const Plan& plan,
                                                 const Ranks& ranks, const UnitModel& model,
                                                 const BatchSize& size);
  // Whether what was planned of a GPU fits what is free of `device` now, before anything is taken;
  // yes, if the device does not tell. It is one engine's: ranks that share the GPU add theirs up.
  //
  // Errors: kInvalidArgument: it does not (says how much is missing of what, and what takes less).
  static absl::Status CheckFits(const EngineMemory& planned, const Device& device);

  // Tells `listener` of each phase as it begins, with the updates made so far, and while rank 0
  // saves or loads of that again after each array; for a progress board:
  //   engine->OnPhase([&](int64_t step, Phase phase) { runtime->SetProgress(step, phase); });
  // Called on the thread of Step, Save and Load, which wait for it.
  void OnPhase(std::function<void(int64_t step, Phase phase)> listener);

  // Tells `listener` of each piece of a step as it ends; an empty one ends that. A step that is
  // launched as one captured piece tells nothing of its own. On a device, computing is what the
  // host does to start it. Called on the thread of Step, which waits for it.
  void OnAction(std::function<void(const TimedAction& action)> listener);

  // That this rank sent so far, in all groups: Communicator::bytes_sent.
  int64_t bytes_sent() const;

  int64_t step() const;  // steps made so far, with those that a loss scale skipped
  const Plan& plan() const;
  EngineMemory memory() const;
  // The pool of activations; for work between steps (generating text) without memory of its own.
  TensorPool& pool();

  // Ends all communicators that this rank has in the engine, `world` among them: for what fails on
  // this rank alone between steps, while others may wait for it in any. They get kAborted with
  // `reason`.
  void Abort(absl::string_view reason);

  // Gives up what was gathered, after the model was used between steps, as for generating text;
  // every rank must do that alike where parameters are sharded or in stages. Errors: the
  // communicator's, of the use.
  absl::Status EndUse();

  // SHA-256 over names and values of all parameters, 64 hex digits. Equal on all ranks, which call
  // it together. Errors: the communicator's.
  absl::StatusOr<std::string> ParameterHash() const;
  // The hash of the plan and the table of parameters; what Create compared.
  const std::string& PlanHash() const;

  // Writes a checkpoint as the subdirectory step_<n> of `directory`, which is one for all nodes:
  // parameters, optimizer, step, plan, and `metadata` of the caller (UTF-8). Each rank writes what
  // it owns, with at most 64 MiB of memory beside its state; rank 0 publishes. See checkpoint/.
  //
  // Errors: kResourceExhausted: no space; kInvalidArgument: a rank sees another directory;
  //         kPermissionDenied, kUnavailable: the file system; what the fence says
  //         (IsRefusedByFence); on all ranks alike. What was there before stays.
  absl::Status Save(const std::string& directory,
                    const std::map<std::string, std::string>& metadata);

  // Continues from the newest whole checkpoint in `directory`, or from `directory` if it is one.
  // Each rank reads what it holds, and compares it with what was written. Any number of ranks may
  // load what any number saved. Newer ones that are incomplete, or whose bytes are others than were
  // written, are passed over.
  //
  // Errors: kNotFound: `directory` is empty or absent; kInvalidArgument: what is there is no whole
  //         checkpoint (says what is wrong with each), or of another model (names the first array
  //         that is missing or differs), or a rank sees another directory; kUnimplemented: it is a
  //         newer Muster's; the file system's and the communicator's. Once an array has been read,
  //         an error leaves the state of no step: Step refuses it until a Load or Restore is well.
  struct Loaded {
    std::map<std::string, std::string> metadata;  // the caller's, of Save
    std::map<std::string, std::string> plan;      // Describe() of the plan that it was trained with
    std::string model_id;  // 64 hex digits of what was loaded; an export keeps them
    // A sentence for each newer checkpoint that was passed over, on rank 0.
    std::vector<std::string> passed_over;
  };
  absl::StatusOr<Loaded> Load(const std::string& directory);

  // Fills the parameters that are kept elsewhere (Parameter::KeepElsewhere) from the checkpoint of
  // a model without the others, as Load finds it: of the model beneath adapters. Before Load and
  // Restore, which read nothing of them.
  //
  // Errors: Load's.
  absl::StatusOr<Loaded> LoadBase(const std::string& directory);

  // Fills the parameters with the weights of transformers' files: those that are kept elsewhere, if
  // there are any, else all; Load and Restore write over the latter. A rank reads what it holds,
  // with at most 64 MiB of memory beside its state; all ranks call it, each with its own copy of
  // the files or the same.
  //
  // Errors: kInvalidArgument: `files` are of another model (names the first array), or another
  //         rank's are others; the file system's and the communicator's; on all ranks alike. Once
  //         an array has been read, an error leaves the state of no step, as Load's.
  absl::Status LoadModel(const ModelFiles& files);

  // This rank's part of the state after its last complete step, also when a step has failed since,
  // as by a peer's loss. It asks no other rank; communicators may have come to their end.
  //
  // Errors: kFailedPrecondition: what failed had begun to change the state: a load, or the update
  //         of a step, which is done in parts where the plan shards, and on a device is sent ahead
  //         (see EngineOptions::waits_before_updates); the device's.
  absl::StatusOr<EngineSnapshot> TakeSnapshot();

  // Continues from the newest step of whose state the ranks have all together: a rank takes what it
  // has of that itself, and what it lacks from the lowest rank that has it, or another. Each rank
  // brings what it has, a rank that is new an empty snapshot. Where a rank is lost, its part is
  // there if another rank had it too: a replica, as under ddp and hybrid-shard, or in pipelines of
  // several replicas. The ranks may be more or fewer than those that it was taken on, and their
  // plan another one.
  //
  // Errors: kNotFound: there is no such step (says how much is missing); kInvalidArgument: what a
  //         rank brings is of another model, or trained by another optimizer (names the first array
  //         that is missing or differs); on all ranks alike, and these leave everything as it was.
  //         kDataLoss: a rank holds other parameters afterwards; the communicator's.
  struct Restored {
    int64_t step = 0;
    int rank = 0;       // the lowest whose state it was
    int num_ranks = 1;  // of whom it was put together
  };
  absl::StatusOr<Restored> Restore(const EngineSnapshot& own);

 private:
  struct State;
  explicit Engine(std::unique_ptr<State> state);
  static absl::StatusOr<std::unique_ptr<Engine>> Make(std::unique_ptr<engine::Rig> rig,
                                                      EngineOptions options);
  std::unique_ptr<State> state_;
};

// For people: "rank 1's state", "the state that 4 ranks had together".
std::string WhoseState(const Engine::Restored& restored);

}  // namespace muster
