#include "worker_runtime/train/loss_curve.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace muster::train {
namespace {

constexpr size_t kMostPoints = 4096;  // even

// A character cell is this many dots wide and high.
struct CellSize {
  int width = 1;
  int height = 1;
};

struct Range {
  double low = 0;
  double high = 0;
  double length() const { return high - low; }
};

// A round distance (1, 2 or 5 times a power of ten) that cuts `length` into at most `parts`.
double RoundDistance(double length, int parts) {
  const double smallest = length / parts;
  const double decade = std::pow(10, std::floor(std::log10(smallest)));
  for (const double leading : {1, 2, 5}) {
    if (leading * decade >= smallest * (1 - 1e-9)) return leading * decade;
  }
  return 10 * decade;
}

std::vector<double> RoundValues(const Range& range, double distance) {
  std::vector<double> values;
  for (double i = std::ceil(range.low / distance - 1e-9); i * distance <= range.high * (1 + 1e-12);
       ++i) {
    values.push_back(i * distance + 0.0);  // no -0
  }
  return values;
}

std::vector<LossPoint> FinitePoints(absl::Span<const LossPoint> points) {
  std::vector<LossPoint> finite;
  for (const LossPoint& point : points) {
    if (std::isfinite(point.loss)) finite.push_back(point);
  }
  return finite;
}

Range RangeOfLoss(absl::Span<const LossPoint> points) {
  Range range{points[0].loss, points[0].loss};
  for (const LossPoint& point : points) {
    range.low = std::min(range.low, point.loss);
    range.high = std::max(range.high, point.loss);
  }
  if (range.length() < 1e-6) {  // a flat line goes through the middle
    range.low -= 0.5;
    range.high += 0.5;
  }
  return range;
}

// The mean loss of each column of dots; a column without a point is a NaN.
std::vector<double> MeansOfColumns(absl::Span<const LossPoint> points, int num_columns) {
  const double first = static_cast<double>(points.front().step);
  const double steps = std::max(1.0, static_cast<double>(points.back().step) - first);
  std::vector<double> sums(num_columns), counts(num_columns);
  for (const LossPoint& point : points) {
    const double place = (static_cast<double>(point.step) - first) / steps;
    const int column = static_cast<int>(std::lround(place * (num_columns - 1)));
    sums[column] += point.loss;
    counts[column] += 1;
  }
  for (int i = 0; i < num_columns; ++i) sums[i] /= counts[i];
  return sums;
}

// Columns without a point lie on the line between their neighbours; the ends always have one.
void FillGaps(std::vector<double>& values) {
  size_t left = 0;
  for (size_t i = 1; i < values.size(); ++i) {
    if (std::isnan(values[i])) continue;
    for (size_t j = left + 1; j < i; ++j) {
      const double part = static_cast<double>(j - left) / static_cast<double>(i - left);
      values[j] = values[left] + part * (values[i] - values[left]);
    }
    left = i;
  }
}

// Dots, the first row on top.
class Canvas {
 public:
  Canvas(const LossCurveOptions& options, CellSize cell)
      : cell_(cell),
        columns_(options.columns),
        rows_(options.rows),
        dots_(static_cast<size_t>(width()) * height()) {}

  int width() const { return columns_ * cell_.width; }
  int height() const { return rows_ * cell_.height; }
  bool IsSet(int x, int y) const { return dots_[static_cast<size_t>(y) * width() + x]; }
  void Set(int x, int y) { dots_[static_cast<size_t>(y) * width() + x] = true; }

  // Which row of dots stands for `value`.
  int RowOf(double value, const Range& range) const {
    const double place = (range.high - value) / range.length();
    return std::clamp(static_cast<int>(std::lround(place * (height() - 1))), 0, height() - 1);
  }

  // Steep parts are drawn through, so that the line does not break.
  void DrawLine(const std::vector<double>& values, const Range& range) {
    int previous = RowOf(values[0], range);
    for (int x = 0; x < width(); ++x) {
      const int y = RowOf(values[x], range);
      const int from = y > previous ? previous + 1 : y;
      const int to = y < previous ? previous - 1 : y;
      for (int i = std::min(from, to); i <= std::max(from, to); ++i) Set(x, i);
      previous = y;
    }
  }

 private:
  const CellSize cell_;
  const int columns_;
  const int rows_;
  std::vector<bool> dots_;
};

// Source: the Unicode Standard, section 21.1 "Braille Patterns": U+2800 plus one bit per dot.
std::string BrailleCell(const Canvas& canvas, int column, int row) {
  constexpr std::array<std::array<unsigned, 2>, 4> kBits = {
      {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}};
  unsigned bits = 0;
  for (int y = 0; y < 4; ++y) {
    for (int x = 0; x < 2; ++x) {
      if (canvas.IsSet(2 * column + x, 4 * row + y)) bits |= kBits[y][x];
    }
  }
  if (bits == 0) return " ";
  return {'\xE2', static_cast<char>(0xA0 | bits >> 6), static_cast<char>(0x80 | (bits & 0x3F))};
}

std::string Cell(const Canvas& canvas, bool unicode, int column, int row) {
  if (unicode) return BrailleCell(canvas, column, row);
  return canvas.IsSet(column, row) ? "*" : " ";
}

// Writes a loss with as many digits behind the point as multiples of `distance` need.
std::string LossLabel(double value, double distance) {
  const int digits = std::clamp(static_cast<int>(-std::floor(std::log10(distance) + 1e-9)), 1, 6);
  return absl::StrFormat("%.*f", digits, value);
}

// Labels of the rows of characters, empty where there is none.
std::vector<std::string> LossLabels(const Canvas& canvas, const Range& range,
                                    const LossCurveOptions& options, CellSize cell) {
  const double distance = RoundDistance(range.length(), std::max(2, options.rows / 2));
  std::vector<std::string> labels(options.rows);
  for (const double value : RoundValues(range, distance)) {
    labels[canvas.RowOf(value, range) / cell.height] = LossLabel(value, distance);
  }
  return labels;
}

// The axis of steps with its labels: two lines.
std::string StepAxis(const Range& steps, const LossCurveOptions& options, size_t indent) {
  std::vector<bool> ticks(options.columns);
  std::string labels;
  const double distance = std::max(1.0, RoundDistance(steps.length(), options.columns / 12));
  for (const double value : RoundValues(steps, distance)) {
    const double place = (value - steps.low) / steps.length();
    const size_t column = std::lround(place * (options.columns - 1));
    const std::string label = absl::StrCat(static_cast<int64_t>(value));
    if (!labels.empty() && column < labels.size() + 2) continue;
    labels.resize(column, ' ');
    absl::StrAppend(&labels, label);
    ticks[column] = true;
  }
  std::string axis = options.unicode ? "└" : "+";
  for (const bool tick : ticks) {
    absl::StrAppend(&axis, options.unicode ? (tick ? "┬" : "─") : (tick ? "+" : "-"));
  }
  const std::string space(indent, ' ');
  return absl::StrCat(space, axis, "\n", space, " ", labels, "  step\n");
}

}  // namespace

void LossHistory::Add(int64_t step, double loss) {
  open_.step = step;
  open_.loss += loss;
  if (++num_open_ < stride_) return;
  points_.push_back({step, open_.loss / static_cast<double>(num_open_)});
  open_ = {};
  num_open_ = 0;
  if (points_.size() < kMostPoints) return;
  for (size_t i = 0; i < kMostPoints / 2; ++i) {
    const LossPoint &left = points_[2 * i], &right = points_[2 * i + 1];
    points_[i] = {right.step, (left.loss + right.loss) / 2};
  }
  points_.resize(kMostPoints / 2);
  stride_ *= 2;
}

void LossHistory::ForgetAfter(int64_t step) {
  while (!points_.empty() && points_.back().step > step) points_.pop_back();
  if (num_open_ == 0 || open_.step <= step) return;
  open_ = {};
  num_open_ = 0;
}

std::vector<LossPoint> LossHistory::points() const {
  std::vector<LossPoint> points = points_;
  if (num_open_ > 0) points.push_back({open_.step, open_.loss / static_cast<double>(num_open_)});
  return points;
}

std::string DrawLossCurve(absl::Span<const LossPoint> points, const LossCurveOptions& options) {
  const std::vector<LossPoint> finite = FinitePoints(points);
  if (finite.size() < 2 || options.columns < 10 || options.rows < 3) return "";
  const CellSize cell = options.unicode ? CellSize{2, 4} : CellSize{1, 1};
  Canvas canvas(options, cell);
  std::vector<double> values = MeansOfColumns(finite, canvas.width());
  FillGaps(values);
  std::vector<LossPoint> shown;
  for (const double value : values) shown.push_back({.loss = value});
  const Range range = RangeOfLoss(shown);
  canvas.DrawLine(values, range);

  const std::vector<std::string> labels = LossLabels(canvas, range, options, cell);
  size_t label_width = 0;
  for (const std::string& label : labels) label_width = std::max(label_width, label.size());
  std::string drawing;
  for (int row = 0; row < options.rows; ++row) {
    const char* edge = options.unicode ? (labels[row].empty() ? "│" : "┤") : "|";
    std::string line =
        absl::StrFormat("  %*s %s", static_cast<int>(label_width), labels[row], edge);
    for (int column = 0; column < options.columns; ++column) {
      line += Cell(canvas, options.unicode, column, row);
    }
    absl::StripTrailingAsciiWhitespace(&line);
    absl::StrAppend(&drawing, line, "\n");
  }
  const Range steps{static_cast<double>(finite.front().step),
                    static_cast<double>(finite.back().step)};
  return drawing + StepAxis(steps, options, label_width + 3);
}

}  // namespace muster::train
