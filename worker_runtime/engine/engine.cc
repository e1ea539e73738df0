#include "muster/engine.h"

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "proto/base/status_macros.h"
#include "proto/io/sha256.h"
#include "worker_runtime/checkpoint/whole_checkpoint.h"
#include "worker_runtime/engine/agreement.h"
#include "worker_runtime/engine/bucket_reducer.h"
#include "worker_runtime/engine/flat_state.h"
#include "worker_runtime/engine/gradient_norm.h"
#include "worker_runtime/engine/gradient_sum.h"
#include "worker_runtime/engine/state_file.h"
#include "worker_runtime/kernels/adamw.h"
#include "worker_runtime/nn/float_dispatch.h"
#include "worker_runtime/plan/canonical_text.h"

namespace muster {
namespace {

using engine::BucketReducer;
using engine::FlatState;
using engine::GradientSum;

std::vector<plan::ParameterInfo> InfoOf(const ParameterStore& store) {
  std::vector<plan::ParameterInfo> parameters;
  for (const auto& parameter : store.parameters()) {
    plan::ParameterInfo info = {.name = parameter->name(),
                                .unit = parameter->unit(),
                                .weight_decay = parameter->spec().weight_decay};
    for (int i = 0; i < parameter->shape().rank(); ++i) info.shape.push_back(parameter->shape()[i]);
    parameters.push_back(std::move(info));
  }
  return parameters;
}

// What this version executes; the plan's types know more.
absl::Status CheckSupported(const Plan& plan) {
  const std::pair<const char*, const StatePlan*> states[] = {{"parameters", &plan.parameters},
                                                             {"gradients", &plan.gradients},
                                                             {"optimizer", &plan.optimizer}};
  for (const auto& [name, state] : states) {
    if (*state == StatePlan{}) continue;
    return absl::UnimplementedError(absl::StrCat(
        "plan ", plan.preset, ": ", name, " are to be ", ToString(state->placement), " on ",
        ToString(state->residency), ", but this version only has replicate on device: use ddp"));
  }
  return absl::OkStatus();
}

std::vector<plan::Bucket> BucketsOf(const std::vector<plan::ParameterInfo>& parameters,
                                    const plan::FlatLayout& layout, const Plan& plan, DType dtype) {
  return plan::PlanBuckets(parameters, layout,
                           {.bytes_per_element = static_cast<int64_t>(SizeOf(dtype)),
                            .bytes_max = plan.bucket_bytes_max,
                            .first_bytes = plan.first_bucket_bytes});
}

}  // namespace

struct Engine::State {
  State(Communicator& the_world, ParameterStore& the_store, Plan the_plan,
        const std::vector<plan::ParameterInfo>& parameters)
      : world(the_world),
        store(the_store),
        plan(std::move(the_plan)),
        sum(world, store, plan),
        flat(store, plan::PlanFlatLayout(parameters), sum.num_slots()),
        reducer(BucketsOf(parameters, flat.layout(), plan, store.dtype())) {}

  void Mark(Phase phase) const {
    if (on_phase) on_phase(step, phase);
  }
  absl::Status RunMicroBatch(Forward forward, int64_t index, StepTimes& times);
  void RunBackward(const Loss& loss, bool is_last);
  absl::StatusOr<StepResult> Update(engine::LossSum total);
  void ApplyAdamW(double learning_rate, double gradient_scale);
  absl::Status CheckLoss(engine::LossSum total);
  absl::Status NormError() const;
  absl::StatusOr<std::string> ReadCheckpoint(const std::string& directory);

  // Constant after construction.
  Communicator& world;    // outlives the engine: the caller's
  ParameterStore& store;  // outlives the engine: the caller's
  const Plan plan;
  std::string plan_hash;

  TensorPool pool;
  Tape tape{pool};
  GradientSum sum;
  FlatState flat;
  BucketReducer reducer;
  std::vector<double> norm_partials;
  int64_t step = 0;
  bool own_loss_finite = true;
  std::function<void(int64_t step, Phase phase)> on_phase;
};

Engine::Engine(std::unique_ptr<State> state) : state_(std::move(state)) {}
Engine::~Engine() = default;

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(Communicator& world, ParameterStore& store,
                                                       Plan plan) {
  MUSTER_RETURN_IF_ERROR(plan.Validate());
  MUSTER_RETURN_IF_ERROR(CheckSupported(plan));
  const std::vector<plan::ParameterInfo> parameters = InfoOf(store);
  if (parameters.empty()) {
    return absl::InvalidArgumentError(
        "the parameter store is empty: create the model before the engine");
  }
  const std::string text = plan::CanonicalText(plan, parameters, store.dtype());
  MUSTER_RETURN_IF_ERROR(engine::CheckAgreement(world, text));
  auto state = std::make_unique<State>(world, store, std::move(plan), parameters);
  state->plan_hash = Sha256().Add(text).Finish();
  store.Initialize(state->plan.seed);
  return std::unique_ptr<Engine>(new Engine(std::move(state)));
}

// --- one step -----------------------------------------------------------------------------------

absl::StatusOr<StepResult> Engine::Step(Forward forward) {
  State& state = *state_;
  StepTimes times;
  const MonoTime begin = MonoNow();
  state.own_loss_finite = true;
  for (int64_t index = 0; index < state.plan.accumulation; ++index) {
    const absl::Status status = state.RunMicroBatch(forward, index, times);
    if (!status.ok()) {
      state.tape.OnGradientReady(nullptr);
      state.world.Abort(absl::StrCat("rank ", state.world.rank(), ": ", status.message()));
      return status;
    }
  }
  const MonoTime computed = MonoNow();
  state.Mark(Phase::kReduce);
  MUSTER_RETURN_IF_ERROR(state.reducer.Wait());
  MUSTER_ASSIGN_OR_RETURN(const engine::LossSum total, state.sum.WaitForLoss());
  const MonoTime reduced = MonoNow();
  state.Mark(Phase::kUpdate);
  MUSTER_ASSIGN_OR_RETURN(StepResult result, state.Update(total));
  const MonoTime end = MonoNow();
  state.Mark(Phase::kIdle);
  times.wait = reduced - computed;
  times.update = end - reduced;
  times.total = end - begin;
  times.communication = state.reducer.busy();
  result.times = times;
  return result;
}

absl::Status Engine::State::RunMicroBatch(Forward forward, int64_t index, StepTimes& times) {
  const bool is_last = index + 1 == plan.accumulation;
  sum.BeginMicroBatch(flat, index);
  const MonoTime begin = MonoNow();
  Mark(Phase::kForward);
  absl::StatusOr<Loss> loss = forward(tape, index);
  if (!loss.ok()) {
    tape.Clear();
    return loss.status();
  }
  const MonoTime forwarded = MonoNow();
  Mark(Phase::kBackward);
  own_loss_finite = own_loss_finite && std::isfinite(loss->sum);
  sum.AddLoss(index, {.loss = loss->sum, .num_tokens = static_cast<double>(loss->num_tokens)});
  RunBackward(*loss, is_last);
  if (!is_last) sum.EndMicroBatch(flat, index);
  times.forward += forwarded - begin;
  times.backward += MonoNow() - forwarded;
  return absl::OkStatus();
}

void Engine::State::RunBackward(const Loss& loss, bool is_last) {
  if (!is_last) {
    tape.Backward(loss.output);
    return;
  }
  reducer.Begin([this](const plan::Bucket& bucket) { return sum.Reduce(flat, bucket); });
  if (plan.overlap) {
    tape.OnGradientReady([this](Parameter& parameter) {
      // It was used, but its output was not.
      if (!parameter.has_gradient()) parameter.BeginSparseGradient();
      reducer.MarkReady(parameter.index());
    });
  }
  tape.Backward(loss.output);
  tape.OnGradientReady(nullptr);
  store.ZeroUnwritten();
  reducer.StartRest();
}

absl::Status Engine::State::CheckLoss(engine::LossSum total) {
  if (std::isfinite(total.loss)) {
    if (total.num_tokens > 0) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "step ", step + 1, ": no target counted on any rank, so there is no loss to learn from"));
  }
  // Every rank has the same sum, so all of them come here.
  const std::vector<uint8_t> own = {own_loss_finite};
  std::vector<uint8_t> all(world.size());
  MUSTER_RETURN_IF_ERROR(world.AllGather(ConstBufferOf(own), BufferOf(all)).Wait());
  int rank = 0;
  while (rank + 1 < world.size() && all[rank] != 0) ++rank;
  return absl::FailedPreconditionError(
      absl::StrCat("step ", step + 1, ": the loss of rank ", rank,
                   " is not finite; the parameters are as they were; try a lower learning rate"));
}

absl::Status Engine::State::NormError() const {
  const std::string parameter = engine::FirstNotFinite(store, flat, sum.Result(flat));
  return absl::FailedPreconditionError(absl::StrCat(
      "step ", step + 1, ": ",
      parameter.empty() ? "the gradient is too large for its norm to be a number"
                        : absl::StrCat("the gradient is not finite, first in ", parameter),
      "; the parameters are as they were; try a lower learning rate"));
}

absl::StatusOr<StepResult> Engine::State::Update(engine::LossSum total) {
  MUSTER_RETURN_IF_ERROR(CheckLoss(total));
  const double norm = engine::GradientNorm(sum.Result(flat), norm_partials) / total.num_tokens;
  if (!std::isfinite(norm)) return NormError();
  const double learning_rate = LearningRate(plan.learning_rate, step);
  ++step;
  ApplyAdamW(learning_rate, engine::ClipFactor(norm, plan.gradient_norm_max) / total.num_tokens);
  return StepResult{.step = step,
                    .loss = total.loss / total.num_tokens,
                    .num_tokens = static_cast<int64_t>(total.num_tokens),
                    .gradient_norm = norm,
                    .learning_rate = learning_rate};
}

void Engine::State::ApplyAdamW(double learning_rate, double gradient_scale) {
  kernels::AdamWStep options = {.learning_rate = learning_rate,
                                .beta1 = plan.adamw.beta1,
                                .beta2 = plan.adamw.beta2,
                                .epsilon = plan.adamw.epsilon,
                                .gradient_scale = gradient_scale,
                                .step = step};
  WithFloat(store.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (const auto& parameter : store.parameters()) {
      options.weight_decay = parameter->spec().weight_decay ? plan.adamw.weight_decay : 0;
      kernels::AdamW<T>().update(
          options, flat.Of(*parameter, sum.Result(flat)).template data<T>(),
          {.value = parameter->value().template data<T>(),
           .first_moment = flat.Of(*parameter, flat.first_moments()).template data<T>(),
           .second_moment = flat.Of(*parameter, flat.second_moments()).template data<T>()},
          parameter->num_elements());
    }
  });
}

// --- what it holds ------------------------------------------------------------------------------

void Engine::OnPhase(std::function<void(int64_t step, Phase phase)> listener) {
  state_->on_phase = std::move(listener);
}
int64_t Engine::step() const { return state_->step; }
const Plan& Engine::plan() const { return state_->plan; }
TensorPool& Engine::pool() { return state_->pool; }
const std::string& Engine::PlanHash() const { return state_->plan_hash; }

EngineMemory Engine::memory() const {
  const FlatState& flat = state_->flat;
  const int64_t one = static_cast<int64_t>(flat.values().num_bytes());
  return {.parameters = one,
          .gradients = one * static_cast<int64_t>(flat.gradients().size()),
          .optimizer = 2 * one,
          .activations_peak = static_cast<int64_t>(state_->pool.usage().bytes_in_use_peak)};
}

std::string Engine::ParameterHash() const {
  Sha256 hash;
  for (const auto& parameter : state_->store.parameters()) {
    hash.Add(parameter->name()).Add("\n");
    hash.Add(parameter->value().raw_data(), parameter->value().num_bytes());
  }
  return hash.Finish();
}

// --- checkpoints --------------------------------------------------------------------------------

absl::Status Engine::Save(const std::string& directory,
                          const std::map<std::string, std::string>& metadata) {
  State& state = *state_;
  state.Mark(Phase::kSave);
  absl::StatusOr<std::string> written = std::string();
  if (state.world.rank() == 0) {
    checkpoint::TrainingState saved = {.step = state.step, .metadata = metadata};
    for (const auto& [key, value] : Describe(state.plan)) saved.plan[key] = value;
    written = checkpoint::WriteWholeCheckpoint(directory, saved,
                                               engine::ParameterArrays(state.store, state.flat),
                                               engine::MomentArrays(state.store, state.flat));
  }
  const absl::Status saved = engine::FromRankZero(state.world, std::move(written)).status();
  state.Mark(Phase::kIdle);
  return saved;
}

// Step and metadata as JSON, for the other ranks.
absl::StatusOr<std::string> Engine::State::ReadCheckpoint(const std::string& directory) {
  MUSTER_ASSIGN_OR_RETURN(const std::string path, checkpoint::FindWholeCheckpoint(directory));
  MUSTER_ASSIGN_OR_RETURN(const checkpoint::WholeCheckpoint from,
                          checkpoint::OpenWholeCheckpoint(path));
  MUSTER_RETURN_IF_ERROR(engine::ReadState(from, path, store, flat));
  const nlohmann::json head = {{"step", from.state.step}, {"metadata", from.state.metadata}};
  return head.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<std::map<std::string, std::string>> Engine::Load(const std::string& directory) {
  State& state = *state_;
  state.Mark(Phase::kLoad);
  absl::StatusOr<std::string> read = std::string();
  if (state.world.rank() == 0) read = state.ReadCheckpoint(directory);
  MUSTER_ASSIGN_OR_RETURN(const std::string head, engine::FromRankZero(state.world, read));
  for (const Tensor& flat :
       {state.flat.values(), state.flat.first_moments(), state.flat.second_moments()}) {
    const Buffer buffer = {flat.raw_data(), flat.num_elements(), flat.dtype()};
    MUSTER_RETURN_IF_ERROR(state.world.Broadcast(buffer, 0).Wait());
  }
  const nlohmann::json fields = nlohmann::json::parse(head);
  state.step = fields["step"].get<int64_t>();
  state.Mark(Phase::kIdle);
  return fields["metadata"].get<std::map<std::string, std::string>>();
}

}  // namespace muster
