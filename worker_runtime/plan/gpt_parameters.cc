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
  GptConfig config;
};

constexpr int64_t kContext = 1024;
constexpr int64_t kVocabulary = 50257;
constexpr NamedConfig kNamed[] = {
    {"gpt2-124m", {12, 12, 768, kContext, kVocabulary}},
    {"gpt2-350m", {24, 16, 1024, kContext, kVocabulary}},
    {"gpt2-774m", {36, 20, 1280, kContext, kVocabulary}},
    {"gpt2-1558m", {48, 25, 1600, kContext, kVocabulary}},
};

// Lists parameters as layers declare them.
class Declarations {
 public:
  void BeginUnit() { ++unit_; }
  void Table(absl::string_view name, int64_t rows, int64_t width) {
    Add(absl::StrCat(name, ".weight"), {rows, width}, /*weight_decay=*/true);
  }
  void Linear(absl::string_view name, int64_t inputs, int64_t outputs) {
    Table(name, outputs, inputs);
    Add(absl::StrCat(name, ".bias"), {outputs}, /*weight_decay=*/false);
  }
  void LayerNorm(absl::string_view name, int64_t width) {
    Add(absl::StrCat(name, ".weight"), {width}, /*weight_decay=*/false);
    Add(absl::StrCat(name, ".bias"), {width}, /*weight_decay=*/false);
  }
  std::vector<ParameterInfo> Take() { return std::move(parameters_); }

 private:
  void Add(std::string name, std::vector<int64_t> shape, bool weight_decay) {
    parameters_.push_back({.name = std::move(name),
                           .shape = std::move(shape),
                           .unit = unit_,
                           .weight_decay = weight_decay});
  }

  int unit_ = -1;
  std::vector<ParameterInfo> parameters_;
};

}  // namespace

std::vector<ParameterInfo> GptParameters(const GptConfig& config) {
  const int64_t width = config.hidden_size;
  Declarations model;
  model.BeginUnit();
  model.Table("wte", config.vocabulary, width);
  model.Table("wpe", config.context, width);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string block = absl::StrCat("h.", layer);
    model.BeginUnit();
    model.LayerNorm(block + ".ln_1", width);
    model.Linear(block + ".attn.c_attn", width, 3 * width);
    model.Linear(block + ".attn.c_proj", width, width);
    model.LayerNorm(block + ".ln_2", width);
    model.Linear(block + ".mlp.c_fc", width, 4 * width);
    model.Linear(block + ".mlp.c_proj", 4 * width, width);
  }
  model.BeginUnit();
  model.LayerNorm("ln_f", width);
  return model.Take();
}

double GptFlopsPerToken(const GptConfig& config) {
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

absl::StatusOr<GptConfig> NamedGpt(absl::string_view name) {
  for (const NamedConfig& named : kNamed) {
    if (name == named.name) return named.config;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", absl::Utf8SafeCHexEscape(name), "' is no model; expected ",
      absl::StrJoin(NamedGpts(), ", "), DidYouMean(absl::AsciiStrToLower(name), NamedGpts())));
}

}  // namespace muster::plan
