// Decides by what the loss is multiplied in the next step, and whether a step is skipped.
//
//   tape.Backward(loss, scaler.scale());
//   switch (scaler.Judge(/*overflow=*/!std::isfinite(gradient_norm))) { ... }
//
// Threads: thread-compatible; pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "muster/update.h"

namespace muster::plan {

class LossScaler {
 public:
  enum class Verdict {
    kUpdate,
    kSkip,
    kAtLowest,  // an overflow at the lowest scale that there is: nothing is changed by it
  };

  explicit LossScaler(const LossScaling& options);

  bool is_on() const { return options_.kind != LossScaling::Kind::kNone; }
  double scale() const { return scale_; }
  // Steps that were skipped since the last that was not.
  int64_t skipped_in_a_row() const { return skipped_in_a_row_; }

  // What becomes of a step of this scale, and the scale of the next one.
  //
  // Source: DeepSpeed, DynamicLossScaler.update_scale; torch.amp.GradScaler.update. Differs in:
  // where GradScaler's scale would become 0, and every later gradient NaN, the verdict is
  // kAtLowest.
  Verdict Judge(bool overflow);

  // The state that a checkpoint keeps. Loading what another kind of scaling saved changes nothing.
  std::map<std::string, std::string> Save() const;
  // Errors: kInvalidArgument: not what Save of this kind gave (names the first field).
  absl::Status Load(const std::map<std::string, std::string>& saved);

 private:
  Verdict JudgeByKind(bool overflow);
  Verdict JudgeAsDeepSpeed(bool overflow);
  Verdict JudgeAsTorch(bool overflow);

  LossScaling options_;
  double scale_ = 1;
  int64_t steps_ = 0;           // kDeepSpeed: judged so far
  int64_t last_overflow_ = -1;  // kDeepSpeed: the number of that step
  int64_t tolerated_ = 0;       // kDeepSpeed: overflows until the scale is halved
  int64_t good_steps_ = 0;      // kTorch: since the scale was changed
  int64_t skipped_in_a_row_ = 0;
};

// The gradient of the sum of a micro-batch's losses that its backward pass begins with. Users give
// the scale of a mean, as PyTorch and DeepSpeed take it; here a loss is a sum over tokens, so the
// scale is divided by the tokens that a micro-batch declares, rounded to a power of two: no bit of
// a gradient in f32 or bf16 depends on it, and it is the same for every number of ranks.
//
// Source: Micikevicius et al., "Mixed Precision Training", 2018, section 3.2
double SeedOfBackward(double scale, int64_t tokens_of_micro_batch);

// So many skipped steps in a row end a training: a static scale stays too large, and one that
// adapts has come down by more than the range of f16.
int64_t SkippedStepsMax(LossScaling::Kind kind);

// Whether the schedule of the learning rate counts skipped steps too.
bool CountsSkippedSteps(LossScaling::Kind kind);

}  // namespace muster::plan
