// Limits of the sizes of a GPT, and its number of parameters.
#include "muster/decoder_config.h"

#include <algorithm>

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

absl::Status CheckSize(absl::string_view name, int64_t value, int64_t most = kLargestSize) {
  if (value >= 1 && value <= most) return absl::OkStatus();
  return FieldError(name, absl::StrCat(" must be between 1 and ", most, ", not ", value));
}

// Counts in double, which cannot overflow.
absl::Status CheckTotal(const DecoderConfig& config) {
  const double width = static_cast<double>(config.hidden_size);
  const double total = static_cast<double>(config.vocabulary + config.context) * width +
                       static_cast<double>(config.layers) * 12 * width * width;
  if (total <= kMostParameters) return absl::OkStatus();
  return FieldError(
      "hidden_size",
      absl::StrCat(" must be smaller, not ", config.hidden_size, ", or layers fewer, not ",
                   config.layers, ": that makes about ", total, " parameters, and at most ",
                   kMostParameters, " can be planned"));
}

int64_t LargestDivisorUpTo(int64_t n, int64_t bound) {
  while (n % bound != 0) --bound;
  return bound;
}

}  // namespace

absl::Status DecoderConfig::Validate() const {
  MUSTER_RETURN_IF_ERROR(CheckSize("layers", layers, kMostBlocks));
  MUSTER_RETURN_IF_ERROR(CheckSize("heads", heads));
  MUSTER_RETURN_IF_ERROR(CheckSize("hidden_size", hidden_size));
  MUSTER_RETURN_IF_ERROR(CheckSize("context", context));
  MUSTER_RETURN_IF_ERROR(CheckSize("vocabulary", vocabulary));
  if (hidden_size % heads != 0) {
    const int64_t fitting = LargestDivisorUpTo(hidden_size, std::min(heads, hidden_size));
    return FieldError("heads",
                      absl::StrCat(" must divide the hidden size: ", hidden_size,
                                   " is not a multiple of ", heads, "; try heads ", fitting,
                                   " or hidden size ", (hidden_size + heads - 1) / heads * heads));
  }
  return CheckTotal(*this);
}

bool DecoderAdapters::Fits(absl::string_view name) const {
  return rank > 0 && plan::FitsPattern(name, beside);
}

int64_t DecoderConfig::num_parameters() const {
  const int64_t block = 12 * hidden_size * hidden_size + 13 * hidden_size;
  return (vocabulary + context) * hidden_size + layers * block + 2 * hidden_size;
}

}  // namespace muster
