// How a gradient becomes new parameters, as data: the optimizer's rule, the learning rate, groups
// of parameters that are treated in a way of their own, and the scale of the loss.
//
//   plan.update = {.kind = UpdateRule::Kind::kSgd, .weight_decay = 1e-4, .momentum = 0.9};
//   plan.groups = {{.parameters = "wpe.*", .frozen = true},
//                  {.parameters = "h.0.*", .learning_rate_scale = 0.1}};
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace muster {

// The rule by which a parameter p and its gradient g give the new p. `weight_decay` is that of
// parameters declared with it (matrices and tables).
struct UpdateRule {
  enum class Kind : uint8_t {
    kAdamW,  // moments of g; p shrinks by learning rate * weight_decay
    kAdam,   // moments of g + weight_decay * p
    kSgd,    // g + weight_decay * p, summed up with `momentum`
  };
  Kind kind = Kind::kAdamW;
  double weight_decay = 0.1;

  // kAdamW, kAdam
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;

  // kSgd
  double momentum = 0;
  bool nesterov = false;  // a step ahead along the momentum

  // Parameters of bf16 follow their masters in the mean and not to the nearest number: which way
  // each is rounded is drawn from Plan::seed, the number of the update and the element, so it is
  // the same on any number of ranks and after a restart.
  bool stochastic_rounding = false;

  friend bool operator==(const UpdateRule&, const UpdateRule&) = default;
};
absl::string_view ToString(UpdateRule::Kind kind);

// Numbers that the rule keeps per parameter element, each an array of a checkpoint: 0, 1 or 2.
int NumMoments(const UpdateRule& rule);

// The learning rate of each update.
//
// kConstant, kLinear, kCosine: it rises from 0 over the warm-up, then stays, or falls from `peak`
// to `floor` until `total_steps` and stays there. kWarmup and kWarmupDecay are DeepSpeed's WarmupLR
// and WarmupDecayLR: it rises from `floor`; then stays at `peak`, or falls in a straight line to
// `floor`.
struct LearningRateSchedule {
  enum class Kind : uint8_t { kConstant, kLinear, kCosine, kWarmup, kWarmupDecay };
  enum class Rise : uint8_t { kLog, kLinear };
  Kind kind = Kind::kConstant;
  double peak = 3e-4;
  double floor = 0;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;  // where the fall ends; needed by kLinear, kCosine and kWarmupDecay
  Rise rise = Rise::kLog;   // of kWarmup and kWarmupDecay

  // Whether it falls, and so needs `total_steps`.
  bool falls() const { return kind != Kind::kConstant && kind != Kind::kWarmup; }
  friend bool operator==(const LearningRateSchedule&, const LearningRateSchedule&) = default;
};
absl::string_view ToString(LearningRateSchedule::Kind kind);
absl::string_view ToString(LearningRateSchedule::Rise rise);

// The rate of update number `step`, counted from 0. With kConstant, kLinear and kCosine update
// t < warmup_steps uses peak * (t + 1) / warmup_steps; kWarmup and kWarmupDecay begin with two
// updates at `floor`, as DeepSpeed does.
double LearningRate(const LearningRateSchedule& schedule, int64_t step);

// Parameters that are treated in a way of their own. A parameter belongs to the first group whose
// pattern fits its name.
struct ParameterGroup {
  std::string parameters;  // a pattern: * stands for any letters, as in "h.*.bias"
  // Never changed: no gradient is computed, kept or sent, and no optimizer state is held.
  bool frozen = false;
  double learning_rate_scale = 1;      // times the schedule's learning rate
  std::optional<double> weight_decay;  // of all of the group; else as the rule says
  std::optional<double> beta1;         // of kAdamW and kAdam
  std::optional<double> beta2;

  friend bool operator==(const ParameterGroup&, const ParameterGroup&) = default;
};

// The mean loss of a micro-batch is multiplied by a scale before the backward pass, so that small
// gradients do not vanish in 16 bits, and the gradient divided by it afterwards. The mean is over
// the tokens that the sample of Engine::Create has, rounded to a power of two. A step whose
// gradient is not finite is skipped: it consumes its batch and leaves parameters and optimizer as
// they are. 20 skipped steps in a row of a static scale, or 50 of one that adapts, end the
// training.
//
//   plan.loss_scaling = LossScaling::Torch();
//
// Source: Micikevicius et al., "Mixed Precision Training", 2018, section 3.2
struct LossScaling {
  enum class Kind : uint8_t {
    kNone,       // a gradient that is not finite ends the training
    kStatic,     // always `initial`
    kDeepSpeed,  // as DeepSpeed's fp16 keys say; the learning rate's schedule waits in a skipped
                 // step
    kTorch,      // as torch.amp.GradScaler; the schedule goes on in a skipped step
  };
  Kind kind = Kind::kNone;
  double initial = 65536;
  // kDeepSpeed: the scale doubles with the (window + 1)th good step after an overflow. kTorch: it
  // is multiplied by `growth` with the window-th good step in a row.
  int64_t window = 1000;

  // kDeepSpeed: of `hysteresis` overflows only the last halves the scale. The count starts over
  // after a growth, or after any good step if `consecutive_hysteresis`. At `minimum` an overflow
  // ends the training.
  int64_t hysteresis = 2;
  bool consecutive_hysteresis = false;
  double minimum = 1;

  // kTorch: factors after `window` good steps and after an overflow.
  double growth = 2;
  double backoff = 0.5;

  // Each makes its kind with that kind's defaults.
  static LossScaling Static(double scale) { return {.kind = Kind::kStatic, .initial = scale}; }
  static LossScaling DeepSpeed() { return {.kind = Kind::kDeepSpeed}; }
  static LossScaling Torch() { return {.kind = Kind::kTorch, .window = 2000}; }

  friend bool operator==(const LossScaling&, const LossScaling&) = default;
};
absl::string_view ToString(LossScaling::Kind kind);

}  // namespace muster
