// The engine as programs see it: how it is made, and whom each call goes to (engine_state.h).
#include "muster/engine.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "muster/agreement.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/engine/cut_model.h"
#include "worker_runtime/engine/engine_state.h"
#include "worker_runtime/engine/meta_run.h"
#include "worker_runtime/plan/field_checks.h"
#include "worker_runtime/plan/schedules/generators.h"
#include "worker_runtime/plan/stage_order.h"

namespace muster {
namespace {

absl::StatusOr<plan::UseTrace> AssumeStage(const ParameterStore& store, const Plan& plan,
                                           const PipelineCut& cut, int world_size) {
  MUSTER_ASSIGN_OR_RETURN(const plan::Mesh mesh, plan::MeshOf(plan, cut.stages(), world_size));
  if (!plan::NeedsUses(plan, mesh) && mesh.tensor_ranks() == 1) {
    return plan::AssumedTrace(static_cast<int>(store.parameters().size()));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "plan ", plan.preset,
      mesh.tensor_ranks() > 1 ? " has tensor ranks, which add up as the model goes"
                              : " works unit by unit, in the order in which the model uses them",
      ": give Engine::Create one micro-batch as a sample"));
}

// The loss of a rank's micro-batches, and the number of their tokens.
absl::StatusOr<std::vector<double>> SumsOf(int64_t num_batches, Engine::Forward forward,
                                           TensorPool& pool, Queue& queue) {
  std::vector<double> sums = {0, 0};
  Tape tape(pool, Tape::Mode::kInference);
  for (int64_t i = 0; i < num_batches; ++i) {
    MUSTER_ASSIGN_OR_RETURN(const Loss loss, forward(tape, i));
    MUSTER_RETURN_IF_ERROR(tape.status());
    double sum = loss.sum;
    if (!loss.total.empty()) {
      MUSTER_RETURN_IF_ERROR(
          queue.device().Download(queue, loss.total.raw_data(), &sum, sizeof(sum)));
    }
    sums[0] += sum;
    sums[1] += static_cast<double>(loss.num_tokens);
  }
  return sums;
}

}  // namespace

// --- how it is made -----------------------------------------------------------------------------

Engine::Engine(std::unique_ptr<State> state) : state_(std::move(state)) {}
Engine::~Engine() = default;

absl::StatusOr<std::unique_ptr<Engine>> Engine::Make(std::unique_ptr<engine::Rig> rig,
                                                     EngineOptions options) {
  auto state = std::make_unique<State>(std::move(rig), std::move(options));
  MUSTER_RETURN_IF_ERROR(state->registered.Register());
  return std::unique_ptr<Engine>(new Engine(std::move(state)));
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(Communicator& world, ParameterStore& store,
                                                       Plan plan, const Sample& sample,
                                                       EngineOptions options) {
  StageSample stage_sample;
  if (sample != nullptr) {
    stage_sample = [&sample](Tape& tape,
                             absl::Span<const Activation>) -> absl::StatusOr<StageOutput> {
      MUSTER_ASSIGN_OR_RETURN(Loss loss, sample(tape));
      return StageOutput{.loss = std::move(loss)};
    };
  }
  return CreateStage(world, store, std::move(plan), {}, stage_sample, std::move(options));
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::CreateStage(Communicator& world,
                                                            ParameterStore& store, Plan plan,
                                                            const PipelineCut& cut,
                                                            const StageSample& sample,
                                                            EngineOptions options) {
  if (plan::StagesPerRank(plan) > 1 && cut.stages() > 1) {
    return plan::PlanError(
        "schedule",
        absl::StrCat(" ", plan::NameOfSchedule(plan.schedule), " has ", plan::StagesPerRank(plan),
                     " stages per rank, and a program that calls its stages itself has one; give "
                     "Engine::Create a model in units, as Decoder::Units, or take 1f1b, gpipe or "
                     "zb-h1"));
  }
  const auto record = [&](int stage) {
    return sample == nullptr ? AssumeStage(store, plan, cut, world.size())
                             : engine::RecordStageUse(store, plan, cut, stage, sample,
                                                      engine::MetaDeviceOf(store));
  };
  MUSTER_ASSIGN_OR_RETURN(auto rig, engine::MakeRig(world, store, plan, cut, record,
                                                    /*has_sample=*/sample != nullptr));
  return Make(std::move(rig), std::move(options));
}

// The cut is found out before MakeRig looks at the plan, so that is looked at here too.
absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(Communicator& world, ParameterStore& store,
                                                       Plan plan, UnitModel model,
                                                       const BatchSize& size,
                                                       EngineOptions options) {
  const ModelInput sample = engine::SampleInput(size.batch, size.sequence);
  const absl::StatusOr<PipelineCut> cut = CutOf(store, plan, world.size(), model, sample);
  MUSTER_RETURN_IF_ERROR(AllOrNone(world, cut.status()));
  const auto record = [&](int stage) {
    const UnitRange units = engine::UnitsOf(store, *cut, stage);
    const auto run = [&](Tape& tape, absl::Span<const Activation> received) {
      return model(tape, units, sample, received);
    };
    return engine::RecordStageUse(store, plan, *cut, stage, run, engine::MetaDeviceOf(store));
  };
  MUSTER_ASSIGN_OR_RETURN(auto rig,
                          engine::MakeRig(world, store, plan, *cut, record, /*has_sample=*/true));
  rig->set_up.model = std::move(model);
  return Make(std::move(rig), std::move(options));
}

// --- steps --------------------------------------------------------------------------------------

absl::StatusOr<StepResult> Engine::Step(Forward forward) {
  return state_->RunStep([&](Tape& tape, const plan::StagePass& pass,
                             absl::Span<const Activation>) -> absl::StatusOr<StageOutput> {
    MUSTER_ASSIGN_OR_RETURN(Loss loss, forward(tape, pass.micro_batch));
    return StageOutput{.loss = std::move(loss)};
  });
}

absl::StatusOr<StepResult> Engine::StepStage(StageForward forward) {
  return state_->RunStep(
      [&](Tape& tape, const plan::StagePass& pass, absl::Span<const Activation> received) {
        return forward(tape, pass.micro_batch, received);
      });
}

absl::StatusOr<std::unique_ptr<BatchReader>> Engine::Read(const TokenSource& source,
                                                          const BatchSize& size) const {
  const engine::Rig& rig = *state_->rig;
  return BatchReader::Create(source, {.seed = rig.plan.seed,
                                      .rank = rig.replica(),
                                      .size = rig.set_up.mesh.replicas(),
                                      .accumulation = rig.plan.accumulation,
                                      .batch = size.batch,
                                      .sequence = size.sequence,
                                      .first_step = state_->progress.step});
}

absl::StatusOr<StepResult> Engine::Step(BatchReader& reader, BatchLoss loss) {
  return Step([&](Tape& tape, int64_t) -> absl::StatusOr<Loss> {
    MUSTER_ASSIGN_OR_RETURN(const Batch* batch, state_->feed.Next(reader));
    return loss(tape, *batch);
  });
}

absl::StatusOr<StepResult> Engine::Step(BatchReader& reader) {
  State& state = *state_;
  const EngineSetUp& set_up = state.rig->set_up;
  if (set_up.model == nullptr) {
    return absl::FailedPreconditionError(
        "this engine was given no model in units: give Step what computes the loss of a batch");
  }
  MUSTER_RETURN_IF_ERROR(state.feed.Begin(reader));
  return state.RunStep(
      [&](Tape& tape, const plan::StagePass& pass,
          absl::Span<const Activation> received) -> absl::StatusOr<StageOutput> {
        MUSTER_ASSIGN_OR_RETURN(const Batch* own, state.feed.At(reader, tape, pass.micro_batch,
                                                                state.runner.is_capturing()));
        return set_up.model(tape, set_up.units[pass.stage],
                            {.tokens = own->tokens(), .targets = own->targets}, received);
      },
      /*from_reader=*/true);
}

absl::StatusOr<Engine::Evaluation> Engine::Evaluate(int64_t num_batches, Forward forward) {
  engine::Rig& rig = *state_->rig;
  MUSTER_ASSIGN_OR_RETURN(std::vector<double> sums,
                          rig.Guard(SumsOf(num_batches, forward, rig.pool, rig.queue)));
  MUSTER_RETURN_IF_ERROR(state_->alone.Leave());
  // Tensor ranks compute the same loss together.
  MUSTER_RETURN_IF_ERROR(rig.GroupAlong(plan::kSameParts).AllReduce(BufferOf(sums)).Wait());
  if (sums[1] == 0) {
    return absl::FailedPreconditionError("no target counted on any rank, so there is no loss");
  }
  return Evaluation{.loss = sums[0] / sums[1], .num_tokens = static_cast<int64_t>(sums[1])};
}

void Engine::Abort(absl::string_view reason) { state_->rig->Abort(reason); }

absl::Status Engine::EndUse() { return state_->alone.Leave(); }

// --- the state, out and in ----------------------------------------------------------------------

absl::Status Engine::Save(const std::string& directory,
                          const std::map<std::string, std::string>& metadata) {
  return state_->checkpoints.Save(directory, metadata);
}
absl::StatusOr<Engine::Loaded> Engine::Load(const std::string& directory) {
  return state_->checkpoints.Load(directory);
}
absl::StatusOr<Engine::Loaded> Engine::LoadBase(const std::string& directory) {
  return state_->checkpoints.LoadBase(directory);
}
absl::Status Engine::LoadModel(const ModelFiles& files) {
  return state_->checkpoints.LoadModel(files);
}
absl::StatusOr<EngineSnapshot> Engine::TakeSnapshot() {
  MUSTER_ASSIGN_OR_RETURN(auto copy, state_->keeper.Copy());
  return EngineSnapshot(std::move(copy));
}
absl::StatusOr<Engine::Restored> Engine::Restore(const EngineSnapshot& own) {
  return state_->keeper.Restore(own.state_.get());
}
std::string WhoseState(const Engine::Restored& restored) {
  if (restored.num_ranks > 1) {
    return absl::StrCat("the state that ", restored.num_ranks, " ranks had together");
  }
  return absl::StrCat("rank ", restored.rank, "'s state");
}
absl::StatusOr<std::string> Engine::ParameterHash() const {
  return state_->keeper.HashParameters();
}

EngineSnapshot::EngineSnapshot() = default;
EngineSnapshot::EngineSnapshot(std::unique_ptr<const engine::StateCopy> state)
    : state_(std::move(state)) {}
EngineSnapshot::EngineSnapshot(EngineSnapshot&&) noexcept = default;
EngineSnapshot& EngineSnapshot::operator=(EngineSnapshot&&) noexcept = default;
EngineSnapshot::~EngineSnapshot() = default;
int64_t EngineSnapshot::step() const { return empty() ? 0 : state_->head.step; }

// --- what it is told and tells ------------------------------------------------------------------

void Engine::OnPhase(std::function<void(int64_t step, Phase phase)> listener) {
  state_->listeners.on_phase = std::move(listener);
}
void Engine::OnAction(std::function<void(const TimedAction& action)> listener) {
  state_->listeners.on_action = std::move(listener);
}
int64_t Engine::step() const { return state_->progress.step; }
const Plan& Engine::plan() const { return state_->rig->plan; }
TensorPool& Engine::pool() { return state_->rig->pool; }
const std::string& Engine::PlanHash() const { return state_->rig->plan_hash; }

int64_t Engine::bytes_sent() const {
  int64_t bytes = 0;
  for (const Communicator* group : state_->rig->Groups()) bytes += group->bytes_sent();
  return bytes;
}

}  // namespace muster
