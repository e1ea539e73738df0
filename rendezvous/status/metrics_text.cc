#include "rendezvous/status/metrics_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace muster::status {

void MetricsText::Begin(absl::string_view name, absl::string_view help, absl::string_view type) {
  name_ = std::string(name);
  head_ = absl::StrCat("# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
}

void MetricsText::Add(const MetricLabels& labels, double value) {
  absl::StrAppend(&text_, std::exchange(head_, ""), name_);
  bool is_first = true;
  for (const auto& [name, text] : labels) {
    absl::StrAppend(&text_, is_first ? "{" : ",", name, "=\"",
                    absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}}),
                    "\"");
    is_first = false;
  }
  absl::StrAppend(&text_, is_first ? " " : "} ", absl::StrFormat("%.10g", value), "\n");
}

}  // namespace muster::status
