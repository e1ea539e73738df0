#include "worker_runtime/plan/gpt_activations.h"

#include <algorithm>

namespace muster::plan {
namespace {

// What the pool gives out is a multiple of this (TensorPool::kAlignment).
constexpr int64_t kAlignment = 64;
// Queries that are worked on at once, each with scores of every key, twice (kernels/attention.h).
constexpr int64_t kQueryBlock = 64;
// The tape's own records: the function objects with their handles of tensors, in blocks of the
// pool. Of a block's eight operations, and of the five others.
constexpr int64_t kRecordBytesPerBlock = 1920;
constexpr int64_t kRecordBytesOfRest = 768;

// Bytes of the arrays of a micro-batch.
struct Arrays {
  int64_t narrow;   // [rows, width]
  int64_t wide;     // [rows, 4 * width]
  int64_t qkv;      // [rows, 3 * width]
  int64_t norm;     // mean and deviation of each row
  int64_t softmax;  // largest score and sum of each row and head
  int64_t scores;   // scratch of attention
  int64_t logits;   // [rows, vocabulary]
};

Arrays ArraysOf(const GptConfig& config, const MicroBatch& micro_batch) {
  const int64_t rows = micro_batch.batch * micro_batch.sequence;
  const auto bytes = [&](int64_t num_elements) {
    const int64_t exact = num_elements * static_cast<int64_t>(SizeOf(micro_batch.dtype));
    return (exact + kAlignment - 1) / kAlignment * kAlignment;
  };
  return {.narrow = bytes(rows * config.hidden_size),
          .wide = bytes(rows * 4 * config.hidden_size),
          .qkv = bytes(rows * 3 * config.hidden_size),
          .norm = bytes(2 * rows),
          .softmax = bytes(2 * rows * config.heads),
          .scores = bytes(2 * kQueryBlock * micro_batch.sequence),
          .logits = bytes(rows * config.vocabulary)};
}

}  // namespace

int64_t GptActivationBytes(const GptConfig& config, const MicroBatch& micro_batch) {
  const Arrays a = ArraysOf(config, micro_batch);
  const int64_t before_mlp = 3 * a.narrow + a.qkv + a.norm + a.softmax;
  const int64_t mlp = 2 * a.narrow + 2 * a.wide + a.norm;
  const int64_t block = before_mlp + mlp + kRecordBytesPerBlock;
  const int64_t head = 2 * a.narrow + a.norm + a.logits + kRecordBytesOfRest;
  const int64_t at_head = block + head + a.narrow;
  const int64_t at_mlp = block + a.narrow + a.wide;
  const int64_t at_attention = before_mlp + 2 * a.narrow + a.qkv + a.scores;
  return (config.layers - 1) * block + std::max({at_head, at_mlp, at_attention});
}

double EstimateGptActivationBytes(const GptConfig& config, const MicroBatch& micro_batch) {
  const double rows =
      static_cast<double>(micro_batch.batch) * static_cast<double>(micro_batch.sequence);
  const double width = static_cast<double>(config.hidden_size);
  const double blocks = static_cast<double>(config.layers) * (24 * width + 2.0 * config.heads + 4);
  const double scores = 2.0 * kQueryBlock * static_cast<double>(micro_batch.sequence);
  return (rows * (blocks + 8 * width + static_cast<double>(config.vocabulary)) + scores) *
         static_cast<double>(SizeOf(micro_batch.dtype));
}

}  // namespace muster::plan
