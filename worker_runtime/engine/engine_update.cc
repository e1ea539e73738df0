#include <cmath>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/engine/engine_state.h"
#include "worker_runtime/engine/gradient_norm.h"
#include "worker_runtime/kernels/adamw.h"
#include "worker_runtime/nn/float_dispatch.h"

namespace muster {

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
  ApplyAdamW(learning_rate, engine::ClipFactor(norm, plan.max_gradient_norm) / total.num_tokens);
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

}  // namespace muster
