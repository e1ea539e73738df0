#include "worker_runtime/plan/gpt_parameters.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/nearest_name.h"

namespace muster::plan {
namespace {

struct NamedConfig {
  const char* name;
  DecoderConfig config;
};

constexpr int64_t kContext = 1024;
constexpr int64_t kVocabulary = 50257;
constexpr NamedConfig kNamed[] = {
    {"gpt2-124m", {12, 12, 768, kContext, kVocabulary}},
    {"gpt2-350m", {24, 16, 1024, kContext, kVocabulary}},
    {"gpt2-774m", {36, 20, 1280, kContext, kVocabulary}},
    {"gpt2-1558m", {48, 25, 1600, kContext, kVocabulary}},
};

}  // namespace

double GptFlopsPerToken(const DecoderConfig& config) {
  const double multiplied =
      static_cast<double>(config.num_parameters() - config.context * config.hidden_size);
  const double attention = static_cast<double>(config.layers) *
                           static_cast<double>(config.hidden_size) *
                           static_cast<double>(config.context);
  return 6 * multiplied + 12 * attention;
}

std::vector<std::string> NamedGpts() {
  std::vector<std::string> names;
  for (const NamedConfig& named : kNamed) names.push_back(named.name);
  return names;
}

absl::StatusOr<DecoderConfig> NamedGpt(absl::string_view name) {
  for (const NamedConfig& named : kNamed) {
    if (name == named.name) return named.config;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", absl::Utf8SafeCHexEscape(name), "' is not a known model; expected ",
      absl::StrJoin(NamedGpts(), ", "), DidYouMean(absl::AsciiStrToLower(name), NamedGpts())));
}

}  // namespace muster::plan
