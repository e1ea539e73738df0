// Text that a decoder writes, a token at a time.
#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "muster/decoder.h"
#include "muster/rng.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/nn/float_dispatch.h"

namespace muster {
namespace {

absl::Status Validate(const Decoder& model, absl::Span<const int32_t> prompt,
                      const GenerateOptions& options) {
  if (prompt.empty()) {
    return absl::InvalidArgumentError("a sample needs at least one token of prompt");
  }
  if (options.num_tokens < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the number of tokens to generate must be 0 or more, not ", options.num_tokens));
  }
  if (!(options.temperature >= 0) || std::isinf(options.temperature)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "temperature must be 0 (always the likeliest token) or more, not ", options.temperature));
  }
  return ValidateTokens(
      {.tokens = prompt, .batch = 1, .sequence = static_cast<int64_t>(prompt.size())},
      model.config().vocabulary);
}

// The draw of a token from logits: the likeliest for temperature 0, else softmax(logits /
// temperature) at quantile `u`.
int32_t Choose(const std::vector<double>& logits, double temperature, double u) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (temperature == 0) return static_cast<int32_t>(best - logits.begin());
  std::vector<double> weights(logits.size());
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    weights[i] = std::exp((logits[i] - *best) / temperature);
    total += weights[i];
  }
  double left = u * total;
  for (size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return static_cast<int32_t>(i);
  }
  return static_cast<int32_t>(best - logits.begin());
}

// Reads text piece by piece and tells what may come next.
class Reader {
 public:
  Reader(const Decoder& model, TensorPool& pool)
      : model_(model), tape_(pool, Tape::Mode::kInference), caches_(model.blocks().size()) {}

  int64_t length() const { return length_; }
  void Forget() {
    caches_.assign(caches_.size(), KeyValueCache());
    length_ = 0;
  }

  // Logits after the last of `tokens`.
  absl::StatusOr<std::vector<double>> Read(absl::Span<const int32_t> tokens) {
    const int64_t rows = tokens.size();
    const int64_t width = model_.config().hidden_size;
    Activation x = model_.Embed(tape_, {.tokens = tokens, .batch = 1, .sequence = rows}, length_);
    for (size_t i = 0; i < caches_.size(); ++i) {
      x = model_.blocks()[i]->ForwardCached(tape_, x, caches_[i]);
    }
    length_ += rows;
    const Tensor last = x.value.Slice((rows - 1) * width, {1, width});
    const Tensor logits = model_.Head(tape_, {last}).value;
    std::vector<std::byte> bytes(logits.num_bytes());
    MUSTER_RETURN_IF_ERROR(tape_.queue().device().Download(tape_.queue(), logits.raw_data(),
                                                           bytes.data(), bytes.size()));
    std::vector<double> values;
    const Tensor on_host = Tensor::Borrow(bytes.data(), logits.dtype(), logits.shape());
    WithElements(on_host, [&](auto read, auto) {
      for (int64_t i = 0; i < on_host.num_elements(); ++i) values.push_back(read(i));
    });
    return values;
  }

 private:
  const Decoder& model_;  // of the caller of Generate
  Tape tape_;
  std::vector<KeyValueCache> caches_;
  int64_t length_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<int32_t>> Generate(const Decoder& model, TensorPool& pool,
                                              absl::Span<const int32_t> prompt,
                                              const GenerateOptions& options) {
  MUSTER_RETURN_IF_ERROR(Validate(model, prompt, options));
  const size_t context = model.config().context;
  const Rng rng(options.seed, "sample");
  Reader reader(model, pool);
  std::vector<int32_t> text(prompt.begin(), prompt.end());
  size_t unread = std::min(text.size(), context);
  for (int64_t i = 0; i < options.num_tokens; ++i) {
    if (reader.length() + unread > context) {
      reader.Forget();
      unread = std::max<size_t>(1, context / 2);
    }
    MUSTER_ASSIGN_OR_RETURN(const std::vector<double> logits,
                            reader.Read(absl::MakeConstSpan(text).last(unread)));
    text.push_back(Choose(logits, options.temperature, rng.Uniform(0, i)));
    unread = 1;
  }
  return std::vector<int32_t>(text.begin() + prompt.size(), text.end());
}

}  // namespace muster
