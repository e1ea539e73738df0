// What a step decides between its gradients and its update, in the device's memory: the host need
// not wait for it.
//
//   norm = sqrt(squares) / (tokens * loss_scale)
//   gradient_scale = min(1, max_norm / (norm + 1e-6)) / (tokens * loss_scale)
//
// Source: the clipping is PyTorch's clip_grad_norm_; Pascanu et al., "On the difficulty of training
// recurrent neural networks", 2013.
#pragma once

#include <cstdint>

#include "worker_runtime/kernels/adamw.h"

namespace muster::kernels {

struct UpdateDecision {
  double norm = 0;            // of the whole gradient
  double gradient_scale = 0;  // of a gradient before it is used
  int32_t skipped = 0;  // 1: loss or norm is not finite, and the update leaves everything as it is
  int64_t updates = 0;  // that were taken, this one included: t of adamw.h
  double learning_rate = 0;  // of this update

  // Factors on a device, rounded once: of adamw.h, and the weight decay that goes into a gradient.
  float rate = 0;
  float root = 0;
  float keep = 1;  // of a value that decays
  float beta1 = 0;
  float rest1 = 1;  // 1 - beta1
  float beta2 = 0;
  float rest2 = 1;
  float epsilon = 0;
  float decay = 0;
};

// Parameters that are updated alike, of a flat array: those behind the run before, up to `end`.
struct UpdateRun {
  int64_t end = 0;  // multiple of kElementsPerDraw, but of the last run
  int32_t group = 0;
};

// `step` and `gradient_scale` of `update` are the decision's to find, and `learning_rate` is its
// part of GradientTotals::learning_rate. The gradient is a sum over `tokens` tokens of a loss that
// was multiplied by `loss_scale`.
struct UpdateSettings {
  AdamWStep update;
  double max_norm = 0;  // 0: not clipped
};

// Totals of the gradient in the device's memory, one number each.
struct GradientTotals {
  const double* squares;  // of the whole gradient, as it is
  const double* tokens;
  const double* loss_scale;
  const double* loss = nullptr;           // looked at for being finite; null: it is
  const double* learning_rate = nullptr;  // of the step; null: 1
};

// The host twin. From the last decision to this one. Threads: thread-safe.
void DecideUpdate(const UpdateSettings& settings, GradientTotals totals, UpdateDecision* decision);

}  // namespace muster::kernels
