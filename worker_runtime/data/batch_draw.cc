#include "worker_runtime/data/batch_draw.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "muster/rng.h"
#include "proto/base/status_macros.h"

namespace muster {
namespace {

// A draw's index is the micro-batch above the row, 32 bits each.
constexpr int kRowBits = 32;
constexpr int64_t kMicroBatchesMax = int64_t{1} << 32;
// 2 GiB of ids in a batch: far beyond any training, and no sum of these options overflows.
constexpr int64_t kBatchTokensMax = int64_t{1} << 28;
constexpr int64_t kStepMax = int64_t{1} << 62;

}  // namespace

namespace data {

absl::Status ValidateBatchOptions(const BatchOptions& options, int64_t num_tokens) {
  const auto refuse = [](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat(why...));
  };
  if (options.size < 1) return refuse("the number of ranks is ", options.size, ", less than 1");
  if (options.rank < 0 || options.rank >= options.size) {
    return refuse("rank ", options.rank, " is not one of ", options.size);
  }
  if (options.accumulation < 1 || options.accumulation > kMicroBatchesMax / options.size) {
    return refuse("accumulation is ", options.accumulation, " micro-batches per rank; between 1",
                  " and ", kMicroBatchesMax / options.size, " are possible with ", options.size,
                  " ranks");
  }
  if (options.batch < 1) return refuse("the batch size is ", options.batch, ", less than 1");
  if (options.sequence < 1) {
    return refuse("the sequence length is ", options.sequence, ", less than 1");
  }
  if (options.batch > kBatchTokensMax / options.sequence) {
    return refuse("a batch of ", options.batch, " rows of ", options.sequence,
                  " tokens has more than ", kBatchTokensMax, " tokens");
  }
  if (options.first_step < 0 || options.first_step > kStepMax) {
    return refuse("the first step is ", options.first_step, ", outside 0 to ", kStepMax);
  }
  if (num_tokens <= options.sequence) {
    return refuse("the data has ", num_tokens, " tokens, but a row of ", options.sequence,
                  " tokens and the one that follows need ", options.sequence + 1,
                  "; take more data or a shorter sequence");
  }
  return absl::OkStatus();
}

}  // namespace data

int64_t DrawWindow(const BatchOptions& options, int64_t num_tokens, int64_t step,
                   int64_t micro_batch, int64_t row) {
  MUSTER_CHECK(num_tokens > options.sequence);
  MUSTER_CHECK(micro_batch >= 0 && micro_batch < kMicroBatchesMax);
  MUSTER_CHECK(row >= 0 && row >> kRowBits == 0);
  const uint64_t index = static_cast<uint64_t>(micro_batch) << kRowBits | row;
  return Rng(options.seed, "data").Below(num_tokens - options.sequence, step, index);
}

absl::Status FillBatch(const TokenSource& source, const BatchOptions& options, int64_t step,
                       int64_t micro_batch, Batch& out) {
  const int64_t num_tokens = source.num_tokens();
  const int64_t sequence = options.sequence;
  MUSTER_RETURN_IF_ERROR(data::ValidateBatchOptions(options, num_tokens));
  out.step = step;
  out.micro_batch = micro_batch;
  out.batch = options.batch;
  out.sequence = sequence;
  out.inputs.resize(options.batch * sequence);
  out.targets.resize(options.batch * sequence);
  std::vector<int32_t> window(sequence + 1);
  for (int64_t row = 0; row < options.batch; ++row) {
    const int64_t first = DrawWindow(options, num_tokens, step, micro_batch, row);
    MUSTER_RETURN_IF_ERROR(source.Read(first, absl::MakeSpan(window)));
    std::copy(window.begin(), window.end() - 1, out.inputs.begin() + row * sequence);
    std::copy(window.begin() + 1, window.end(), out.targets.begin() + row * sequence);
  }
  return absl::OkStatus();
}

}  // namespace muster
