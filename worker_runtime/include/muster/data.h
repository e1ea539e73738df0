// Tokens to train on: the files, the window that each row of a batch takes, and a reader that works
// ahead of the training.
//
//   MUSTER_ASSIGN_OR_RETURN(auto tokens, OpenTokens({"a.txt", "b.txt"}));
//   MUSTER_ASSIGN_OR_RETURN(auto reader, BatchReader::Create(*tokens, {.size = 2, .batch = 4}));
//   MUSTER_ASSIGN_OR_RETURN(const Batch* batch, reader->Next());
//
// What micro-batch g of step s holds depends on (seed, s, g) alone, so it does not matter how many
// ranks share the work, nor whether the job was restarted in between (worker_runtime/README.md
// "Bits").
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "muster/layers.h"

namespace muster {

// A long row of token ids.
//
// Threads: safe.
class TokenSource {
 public:
  virtual ~TokenSource() = default;

  virtual int64_t num_tokens() const = 0;
  virtual int64_t vocabulary() const = 0;  // ids are in [0, vocabulary)
  // A description for messages: "3 files, 1.2 MB of text".
  virtual std::string Describe() const = 0;

  // Copies tokens [first, first + out.size()) to `out`; the range must lie in [0, num_tokens).
  //
  // Errors: kInvalidArgument: an id outside the vocabulary (names file and position); kUnavailable:
  //         the file can no longer be read, or not that far. What was copied until then is in
  //         `out`.
  virtual absl::Status Read(int64_t first, absl::Span<int32_t> out) const = 0;
};

// SHA-256 over the tokens of a source, 64 hex digits. Up to 2^24 tokens it covers all; of longer
// sources it covers 4096 evenly spread windows of 4096 tokens, the first and the last among them.
// The place of the files and how they are cut do not matter.
//
// Errors: TokenSource::Read's. Threads: safe.
absl::StatusOr<std::string> TokenDigest(const TokenSource& source);

// Opens files as one row of tokens. Each file is text, taken as bytes (vocabulary 256), or tokens
// in one of llm.c's formats: of GPT-2 (vocabulary 50257), or of 32 bits (`vocabulary`; 0: 128256,
// that of Llama 3). They are told apart by their first bytes. Directories are not read. A file
// named several times counts as often. Ids are checked when they are read. A few files stay open,
// the others are opened for each read; all keep the length they had at this call.
//
// Errors: all name the file. kNotFound; kPermissionDenied; kInvalidArgument: no file, an empty one,
//         a directory, pipe or device, a token file whose header contradicts its length or has an
//         unknown version, another file of llm.c's, or text and token files mixed; kUnavailable:
//         the disk fails, or no descriptor is left.
// Source: karpathy/llm.c, dataloader.h and dev/data/data_common.py
absl::StatusOr<std::unique_ptr<TokenSource>> OpenTokens(absl::Span<const std::string> paths,
                                                        int64_t vocabulary = 0);

struct BatchOptions {
  uint64_t seed = 1;
  int rank = 0;
  int size = 1;
  int64_t accumulation = 1;  // micro-batches per rank and step; at most 2^32 over all ranks
  int64_t batch = 4;         // rows per micro-batch; at most 2^28 tokens
  int64_t sequence = 256;    // tokens per row
  int64_t first_step = 0;    // the first step of a resumed job
};

// Rows of tokens, and for each token the one that follows it.
struct Batch {
  int64_t step = 0;
  int64_t micro_batch = 0;       // among those of all ranks
  std::vector<int32_t> inputs;   // [batch * sequence]
  std::vector<int32_t> targets;  // [batch * sequence]
  int64_t batch = 0;
  int64_t sequence = 0;

  TokenBatch tokens() const { return {.tokens = inputs, .batch = batch, .sequence = sequence}; }
};

// The first token of row `row` of micro-batch `micro_batch` of step `step`, uniform in
// [0, num_tokens - sequence), which must not be empty. Of the options only the seed and the
// sequence matter. Threads: pure.
int64_t DrawWindow(const BatchOptions& options, int64_t num_tokens, int64_t step,
                   int64_t micro_batch, int64_t row);

// Fills one batch at once. Errors: TokenSource::Read's and BatchReader::Create's.
absl::Status FillBatch(const TokenSource& source, const BatchOptions& options, int64_t step,
                       int64_t micro_batch, Batch& out);

// This rank's batches in order, read ahead by a thread of its own: micro-batches
// [rank * accumulation, (rank + 1) * accumulation) of first_step, then those of the next step.
//
// Threads: thread-compatible.
class BatchReader {
 public:
  // `source` outlives the reader. Errors: kInvalidArgument: a count below 1 or beyond its limit, a
  // rank outside [0, size), or fewer than sequence + 1 tokens (names both numbers);
  // kResourceExhausted: no thread can be started.
  static absl::StatusOr<std::unique_ptr<BatchReader>> Create(const TokenSource& source,
                                                             const BatchOptions& options);
  // Waits for the batch that is being read.
  ~BatchReader();

  // Valid until the next call. Errors: FillBatch's, after all batches that were read before it;
  // then every later call returns it too. Waits for the disk without a deadline.
  absl::StatusOr<const Batch*> Next();

  const BatchOptions& options() const;

 private:
  struct State;
  explicit BatchReader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The examples of a data set that a rank takes in an epoch: exactly those that
// torch.utils.data.DistributedSampler gives, for programs ported from PyTorch.
//
// Threads: pure. Source: pytorch, torch/utils/data/distributed.py.
struct DistributedSamplerOptions {
  int64_t num_examples = 0;
  int rank = 0;
  int size = 1;
  bool shuffle = true;
  uint64_t seed = 0;
  bool drop_last = false;
};
// Errors: kInvalidArgument: size < 1, rank outside [0, size), a negative count, 2^32 / 20 examples
//         or more when shuffling (torch draws otherwise there) or for this rank, or a seed + epoch
//         beyond 2^64 - 1 (torch refuses it too).
absl::StatusOr<std::vector<int64_t>> DistributedSample(const DistributedSamplerOptions& options,
                                                       int64_t epoch);

}  // namespace muster
