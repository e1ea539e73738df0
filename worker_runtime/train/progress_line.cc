#include "worker_runtime/train/progress_line.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker_runtime/train/figures.h"

namespace muster::train {
namespace {

constexpr int64_t kMostLines = 40;

}  // namespace

int64_t StepsPerLine(int64_t num_steps) {
  for (int64_t decade = 1;; decade *= 10) {
    for (const int64_t leading : {1, 2, 5}) {
      if (num_steps / (leading * decade) <= kMostLines) return leading * decade;
    }
  }
}

ProgressLine::ProgressLine(const ProgressOptions& options, MonoTime start)
    : options_(options),
      steps_per_line_(options.log_every > 0
                          ? options.log_every
                          : StepsPerLine(options.total_steps - options.first_step)),
      since_(start) {}

bool ProgressLine::IsDue(int64_t step, MonoTime now) const {
  if (step == options_.first_step + 1 || step >= options_.total_steps) return true;
  if (step % steps_per_line_ == 0) return true;
  return options_.longest_silence > absl::ZeroDuration() &&
         now - since_ >= options_.longest_silence;
}

std::optional<std::string> ProgressLine::Add(const StepResult& result, MonoTime now) {
  if (!result.skipped) {
    loss_sum_ += result.loss * static_cast<double>(result.num_tokens);
    loss_tokens_ += result.num_tokens;
  }
  num_skipped_ += result.skipped ? 1 : 0;
  num_tokens_ += result.num_tokens;
  ++num_steps_;
  if (!IsDue(result.step, now)) return std::nullopt;
  std::string line = Format(result, now - since_);
  since_ = now;
  loss_sum_ = 0;
  loss_tokens_ = 0;
  num_tokens_ = 0;
  num_steps_ = 0;
  num_skipped_ = 0;
  return line;
}

std::string ProgressLine::Format(const StepResult& result, absl::Duration elapsed) const {
  const std::string total = absl::StrCat(options_.total_steps);
  const double seconds = absl::ToDoubleSeconds(elapsed);
  const double loss =
      loss_tokens_ > 0 ? loss_sum_ / static_cast<double>(loss_tokens_) : result.loss;
  const double speed = seconds > 0 ? static_cast<double>(num_tokens_) / seconds : 0;
  const absl::Duration per_step = elapsed / num_steps_;
  const int64_t steps_left = std::max<int64_t>(0, options_.total_steps - result.step);
  const std::string norm =
      result.skipped ? "skipped" : absl::StrFormat("%5.2f", result.gradient_norm);
  std::string line = absl::StrFormat(
      "step %*d/%s  loss %.4f  norm %s  lr %.1e  %5s tok/s  %7s/step  left %s",
      static_cast<int>(total.size()), result.step, total, loss, norm, result.learning_rate,
      ShortCount(speed), ShortDuration(per_step), ClockTime(per_step * steps_left));
  if (options_.tokens_peak > 0) {
    absl::StrAppendFormat(&line, "  MFU %.1f%%", 100 * speed / options_.tokens_peak);
  }
  if (result.loss_scale != 1) absl::StrAppend(&line, "  scale ", result.loss_scale);
  if (num_skipped_ > 0) absl::StrAppend(&line, "  skipped ", num_skipped_);
  return line;
}

}  // namespace muster::train
