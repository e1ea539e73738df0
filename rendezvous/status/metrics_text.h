// Figures in Prometheus's text format, family by family.
//
// Threads: compatible; pure.
// Source: Prometheus, "Exposition formats", text format version 0.0.4, and "Metric and label
//         naming".
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace muster::status {

inline constexpr char kMetricsContentType[] = "text/plain; version=0.0.4; charset=utf-8";

using MetricLabels = std::vector<std::pair<absl::string_view, std::string>>;

class MetricsText {
 public:
  // What follows belongs to this family. Each has one place in a text, so it is begun once; a
  // family without a sample is left out. A counter's name ends with _total.
  void BeginGauge(absl::string_view name, absl::string_view help) { Begin(name, help, "gauge"); }
  void BeginCounter(absl::string_view name, absl::string_view help) {
    Begin(name, help, "counter");
  }
  void Add(const MetricLabels& labels, double value);
  // A figure that is not known is less than zero, and has no sample.
  void AddIfKnown(const MetricLabels& labels, double value) {
    if (value >= 0) Add(labels, value);
  }

  std::string Take() { return std::move(text_); }

 private:
  void Begin(absl::string_view name, absl::string_view help, absl::string_view type);

  std::string text_;
  std::string name_;
  std::string head_;  // of the family, until its first sample
};

}  // namespace muster::status
