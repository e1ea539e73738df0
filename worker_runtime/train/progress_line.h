// What muster-train says while it trains, and how often.
//
//   step  40/200  loss 2.4312  norm 0.71  lr 3.0e-04  38.2k tok/s  12.1 ms/step  left 0:38
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "muster/engine.h"
#include "proto/base/mono_time.h"

namespace muster::train {

struct ProgressOptions {
  int64_t first_step = 0;   // updates made before, by the job that is resumed
  int64_t total_steps = 0;  // after which training ends
  int64_t log_every = 0;    // steps per line; 0: as gives about 20 to 40 lines
  // Tokens a second at which the devices would be used in full, of which the line says the share;
  // 0: not known.
  double tokens_peak = 0;
  // A line comes at the latest after this time (0: never because of it).
  absl::Duration longest_silence = absl::Seconds(10);
};

// Steps from line to line, a round number, so that `num_steps` give about 20 to 40 lines.
int64_t StepsPerLine(int64_t num_steps);

class ProgressLine {
 public:
  // `start` is when the first step begins.
  ProgressLine(const ProgressOptions& options, MonoTime start);

  // Takes the step that ended at `now`, and returns the line that is due then, if any: after the
  // first and the last step, and at multiples of the steps per line.
  //
  // The loss is the mean of the steps since the line before, weighed by tokens, and so are speed
  // and time per step; norm, learning rate and loss scale are the last step's. Skipped steps are
  // counted, their loss is not.
  std::optional<std::string> Add(const StepResult& result, MonoTime now);

 private:
  bool IsDue(int64_t step, MonoTime now) const;
  std::string Format(const StepResult& result, absl::Duration elapsed) const;

  const ProgressOptions options_;
  const int64_t steps_per_line_;
  // The time and the sums since the line before.
  MonoTime since_;
  double loss_sum_ = 0;
  int64_t loss_tokens_ = 0;  // of the steps whose loss counts
  int64_t num_tokens_ = 0;
  int64_t num_steps_ = 0;
  int64_t num_skipped_ = 0;
};

}  // namespace muster::train
