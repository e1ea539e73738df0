#include "muster/engine.h"

#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "proto/io/sha256.h"
#include "worker_runtime/engine/agreement.h"
#include "worker_runtime/engine/engine_state.h"
#include "worker_runtime/plan/plan_text.h"

namespace muster {
namespace {

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

Engine::State::State(Communicator& the_world, ParameterStore& the_store, Plan the_plan,
                     const std::vector<plan::ParameterInfo>& parameters)
    : world(the_world),
      store(the_store),
      plan(std::move(the_plan)),
      sum(world, store, plan),
      flat(store, plan::PlanFlatLayout(parameters), sum.num_slots()),
      reducer(BucketsOf(parameters, flat.layout(), plan, store.dtype())) {}

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
  // Both are waited for even if one fails: they use memory of the engine until they have ended.
  const absl::Status gradients = state.reducer.Wait();
  const absl::StatusOr<engine::LossSum> total = state.sum.WaitForLoss();
  MUSTER_RETURN_IF_ERROR(gradients);
  MUSTER_RETURN_IF_ERROR(total.status());
  const MonoTime reduced = MonoNow();
  state.Mark(Phase::kUpdate);
  MUSTER_ASSIGN_OR_RETURN(StepResult result, state.Update(*total));
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

// --- what it holds ------------------------------------------------------------------------------

void Engine::OnPhase(std::function<void(int64_t step, Phase phase)> listener) {
  state_->on_phase = std::move(listener);
}
int64_t Engine::step() const { return state_->step; }
const Plan& Engine::plan() const { return state_->plan; }
TensorPool& Engine::pool() { return state_->pool; }
const std::string& Engine::PlanHash() const { return state_->plan_hash; }

EngineMemory Engine::memory() const {
  const engine::FlatState& flat = state_->flat;
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

}  // namespace muster
