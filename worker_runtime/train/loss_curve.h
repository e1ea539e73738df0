// The loss over the steps as a drawing of characters.
//
//   5.0 ┤⠢⡀
//       │ ⠈⠢⣀
//   4.0 ┤    ⠉⠒⠤⣀
//       └┬─────────┬─────
//        0         100  step
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace muster::train {

struct LossPoint {
  int64_t step = 0;  // ascending
  double loss = 0;
};

// The losses of a run of any length in a few thousand points: when there are too many, neighbours
// are merged into their mean.
class LossHistory {
 public:
  // `step` is behind those added before.
  void Add(int64_t step, double loss);
  // Steps behind `step` are made again. What was merged with them is forgotten too.
  void ForgetAfter(int64_t step);
  std::vector<LossPoint> points() const;

 private:
  std::vector<LossPoint> points_;  // each the mean of stride_ steps
  int64_t stride_ = 1;
  LossPoint open_;  // the sum of the steps since the last point
  int64_t num_open_ = 0;
};

struct LossCurveOptions {
  int columns = 60;  // of the drawing, without its labels; at least 10
  int rows = 12;     // at least 3
  // Braille dots and lines; false: nothing beyond ASCII.
  bool unicode = true;
};

// Lines that end with \n; empty for fewer than two finite points. Where points outnumber the dots,
// each dot stands for the mean of its points.
std::string DrawLossCurve(absl::Span<const LossPoint> points, const LossCurveOptions& options);

}  // namespace muster::train
