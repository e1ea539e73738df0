#include "worker_runtime/train/resumed_settings.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace muster::train {
namespace {

// Fields of the plan, and metadata of muster-train.
constexpr absl::string_view kLearns[] = {
    "seed",       "update.",       "learning_rate.", "groups", "loss_scaling.", "max_gradient_norm",
    "batch_size", "micro_batches", "mode",           "dtype",  "reduce_dtype",  "lora_dtype"};
constexpr char kData[] = "data";
constexpr char kDataHash[] = "data_sha256";

bool ChangesWhatIsLearned(absl::string_view name) {
  return std::any_of(std::begin(kLearns), std::end(kLearns),
                     [&](absl::string_view prefix) { return absl::StartsWith(name, prefix); });
}

std::string Change(absl::string_view name, const std::string& now, const std::string& saved) {
  return absl::StrCat(name, " is ", now, " and was ", saved);
}

}  // namespace

std::string DescribeChanges(const Settings& saved, const Settings& now) {
  std::vector<std::string> changes;
  const auto of = [](const Settings& settings, const char* name) -> std::string {
    const auto found = settings.find(name);
    return found == settings.end() ? "" : found->second;
  };
  for (const auto& [name, value] : now) {
    const auto before = saved.find(name);
    if (before == saved.end() || before->second == value) continue;
    if (name == kDataHash) {
      const bool looks_alike = of(now, kData) == of(saved, kData);
      changes.push_back(looks_alike ? absl::StrCat("data holds other tokens than before (SHA-256 ",
                                                   value.substr(0, 8), " and was ",
                                                   before->second.substr(0, 8), ")")
                                    : Change(kData, of(now, kData), of(saved, kData)));
    } else if (ChangesWhatIsLearned(name)) {
      changes.push_back(Change(name, value, before->second));
    }
  }
  return absl::StrJoin(changes, "; ");
}

}  // namespace muster::train
