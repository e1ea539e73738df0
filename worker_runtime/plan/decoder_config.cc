// Limits of the sizes of a decoder, and what follows from them.
#include "muster/decoder_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/base/field_error.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/plan/update_plan.h"

namespace muster {
namespace {

// Sizes above are surely mistakes, and their products would not fit 64 bits.
constexpr int64_t kLargestSize = int64_t{1} << 24;
constexpr int64_t kMostBlocks = int64_t{1} << 16;
constexpr double kMostParameters = 1e13;
// The kernel that turns pairs has a table of so many.
constexpr int64_t kWidestRotaryHead = 256;

absl::Status CheckSize(absl::string_view name, int64_t value, int64_t most = kLargestSize) {
  if (value >= 1 && value <= most) return absl::OkStatus();
  return FieldError(name, absl::StrCat(" must be between 1 and ", most, ", not ", value));
}

// A size that may be left out.
absl::Status CheckOptional(absl::string_view name, int64_t value) {
  return value == 0 ? absl::OkStatus() : CheckSize(name, value);
}

int64_t LargestDivisorUpTo(int64_t n, int64_t bound) {
  while (n % bound != 0) --bound;
  return bound;
}

absl::Status CheckHeads(const DecoderConfig& config) {
  if (config.head_size == 0 && config.hidden_size % config.heads != 0) {
    const int64_t fitting =
        LargestDivisorUpTo(config.hidden_size, std::min(config.heads, config.hidden_size));
    return FieldError(
        "heads",
        absl::StrCat(" must divide the hidden size: ", config.hidden_size, " is not a multiple of ",
                     config.heads, "; try heads ", fitting, " or hidden size ",
                     (config.hidden_size + config.heads - 1) / config.heads * config.heads));
  }
  if (config.heads % config.key_heads() != 0) {
    return FieldError(
        "kv_heads",
        absl::StrCat(" must divide the heads: ", config.heads, " is not a multiple of ",
                     config.kv_heads, "; try ",
                     LargestDivisorUpTo(config.heads, std::min(config.kv_heads, config.heads))));
  }
  if (!config.parts.rotary.has_value()) return absl::OkStatus();
  const int64_t width = config.head_width();
  if (width % 2 == 0 && width <= kWidestRotaryHead) return absl::OkStatus();
  return FieldError("head_size", absl::StrCat(" must be even and at most ", kWidestRotaryHead,
                                              " where positions are rotary, not ", width));
}

absl::Status CheckRotary(const RotaryPositions& rotary, int64_t context) {
  if (rotary.context_max > 0 && context > rotary.context_max) {
    return FieldError("context",
                      absl::StrCat(" must be at most ", rotary.context_max,
                                   ", the tokens that the model was made for, not ", context));
  }
  if (!(rotary.base > 0) || !(rotary.factor > 0)) {
    return FieldError("rotary", absl::StrCat(": base and factor must be above 0, not ", rotary.base,
                                             " and ", rotary.factor));
  }
  if (rotary.context_max < 0) {
    return FieldError("rotary", absl::StrCat(": context_max must be at least 1, or 0 where nothing "
                                             "is known, not ",
                                             rotary.context_max));
  }
  if (rotary.scaling != RotaryPositions::Scaling::kLlama3) return absl::OkStatus();
  if (rotary.original_context > 0 && 0 < rotary.low_factor &&
      rotary.low_factor < rotary.high_factor) {
    return absl::OkStatus();
  }
  return FieldError(
      "rotary",
      absl::StrCat(": low_factor must be above 0 and below high_factor, and "
                   "original_context above 0, not ",
                   rotary.low_factor, ", ", rotary.high_factor, " and ", rotary.original_context));
}

// Numbers of parameters, in a type that they are counted in: double cannot overflow.
template <typename Count>
struct Counts {
  explicit Counts(const DecoderConfig& config) : config(config) {}

  Count hidden() const { return static_cast<Count>(config.hidden_size); }
  Count table() const { return static_cast<Count>(config.vocabulary) * hidden(); }
  Count positions() const {
    return config.parts.rotary.has_value() ? Count{0}
                                           : static_cast<Count>(config.num_positions()) * hidden();
  }
  Count norm() const { return config.parts.norm == NormKind::kLayer ? 2 * hidden() : hidden(); }
  Count block() const {
    const auto qkv = static_cast<Count>(config.qkv_width());
    const auto queries = static_cast<Count>(config.query_width());
    const auto mlp = static_cast<Count>(config.mlp_width());
    const Count widened = config.parts.mlp == Nonlinearity::kSwiGlu ? 2 * mlp : mlp;
    const Count matrices = (qkv + queries + widened + mlp) * hidden();
    const Count head_norms =
        config.parts.head_norms ? 2 * static_cast<Count>(config.head_width()) : 0;
    const bool has_all = config.parts.biases == DecoderParts::Biases::kAll;
    const Count biases = (config.parts.biases == DecoderParts::Biases::kNone ? 0 : qkv) +
                         (has_all ? widened + 2 * hidden() : 0);
    return matrices + biases + 2 * norm() + head_norms;
  }
  Count all() const {
    return table() * (config.parts.tied ? 1 : 2) + positions() +
           static_cast<Count>(config.layers) * block() + norm();
  }

  const DecoderConfig& config;  // of the caller
};

absl::Status CheckTotal(const DecoderConfig& config) {
  const double total = Counts<double>(config).all();
  if (total <= kMostParameters) return absl::OkStatus();
  return FieldError(
      "hidden_size",
      absl::StrCat(" must be smaller, not ", config.hidden_size, ", or layers fewer, not ",
                   config.layers, ": that makes about ", total, " parameters, and at most ",
                   kMostParameters, " can be planned"));
}

// Scales `frequency` as Llama 3 has it.
double ScaledAsLlama3(double frequency, const RotaryPositions& rotary) {
  const double waves = static_cast<double>(rotary.original_context) * frequency /
                       (2 * std::numbers::pi);  // in the original context
  const double kept =
      std::clamp((waves - rotary.low_factor) / (rotary.high_factor - rotary.low_factor), 0.0, 1.0);
  return frequency * (kept + (1 - kept) / rotary.factor);
}

}  // namespace

std::vector<double> RotaryPositions::Frequencies(int64_t head_size) const {
  std::vector<double> frequencies(head_size / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double power = 2 * static_cast<double>(i) / static_cast<double>(head_size);
    frequencies[i] = std::pow(base, -power);
    if (scaling == Scaling::kLinear) frequencies[i] /= factor;
    if (scaling == Scaling::kLlama3) frequencies[i] = ScaledAsLlama3(frequencies[i], *this);
  }
  return frequencies;
}

absl::Status DecoderConfig::Validate() const {
  MUSTER_RETURN_IF_ERROR(CheckSize("layers", layers, kMostBlocks));
  MUSTER_RETURN_IF_ERROR(CheckSize("heads", heads));
  MUSTER_RETURN_IF_ERROR(CheckSize("hidden_size", hidden_size));
  MUSTER_RETURN_IF_ERROR(CheckSize("context", context));
  MUSTER_RETURN_IF_ERROR(CheckSize("vocabulary", vocabulary));
  MUSTER_RETURN_IF_ERROR(CheckOptional("kv_heads", kv_heads));
  MUSTER_RETURN_IF_ERROR(CheckOptional("head_size", head_size));
  MUSTER_RETURN_IF_ERROR(CheckOptional("mlp_size", mlp_size));
  MUSTER_RETURN_IF_ERROR(CheckHeads(*this));
  if (parts.rotary.has_value()) MUSTER_RETURN_IF_ERROR(CheckRotary(*parts.rotary, context));
  if (context > num_positions()) {
    return FieldError("context",
                      absl::StrCat(" must be at most ", parts.positions,
                                   ", the positions that the model has learned, not ", context));
  }
  return CheckTotal(*this);
}

int64_t DecoderConfig::num_parameters() const { return Counts<int64_t>(*this).all(); }

double DecoderConfig::flops_per_token() const {
  const Counts<double> counts(*this);
  const double multiplied = counts.all() - counts.positions() - (parts.tied ? 0 : counts.table());
  return 6 * multiplied + 12 * static_cast<double>(layers) * static_cast<double>(query_width()) *
                              static_cast<double>(context);
}

bool DecoderAdapters::Fits(absl::string_view name) const {
  return rank > 0 && plan::FitsPattern(name, beside);
}

}  // namespace muster
