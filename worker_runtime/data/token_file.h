// One file of tokens: what it holds, and any piece of it.
//
// Files are read with pread and never mapped: a file that shrinks while it is mapped ends the
// process (SIGBUS), while a read that comes short is an error with a name.
//
// Source: karpathy/llm.c, llmc/dataloader.h and dev/data/data_common.py (formats: gpt-2, llama-3)
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/io/unique_fd.h"

namespace muster::data {

enum class TokenFormat {
  kText,  // a byte is a token
  kGpt2,  // 256 int32 (magic 20240520, version 1, count), then uint16 ids; all little-endian
  kWide,  // 256 int32 (magic 20240801, version 7, count), then uint32 ids
};

// "text", "GPT-2 tokens", "tokens of 32 bits".
const char* NameOf(TokenFormat format);

// Threads: Read is safe.
class TokenFile {
 public:
  // Finds out what `path` holds, and keeps it open. `vocabulary`: as OpenTokens has it.
  //
  // Errors: those of OpenTokens.
  static absl::StatusOr<TokenFile> Open(const std::string& path, int64_t vocabulary = 0);

  const std::string& path() const { return path_; }
  TokenFormat format() const { return format_; }
  int64_t vocabulary() const { return vocabulary_; }  // ids are below it
  int64_t num_tokens() const { return num_tokens_; }

  // Gives the descriptor back; from then on each Read opens the file for itself.
  void CloseBetweenReads() { file_ = UniqueFd(); }

  // Copies tokens [first, first + out.size()), which must lie in [0, num_tokens).
  //
  // Errors: those of TokenSource::Read.
  absl::Status Read(int64_t first, absl::Span<int32_t> out) const;

 private:
  absl::Status Recognise(int64_t size);
  absl::Status ReadFrom(const UniqueFd& file, int64_t first, absl::Span<int32_t> out) const;
  // `bytes` are those of tokens [first, first + out.size()).
  absl::Status Decode(absl::Span<const uint8_t> bytes, int64_t first,
                      absl::Span<int32_t> out) const;

  // Constant after Open and CloseBetweenReads.
  std::string path_;
  TokenFormat format_ = TokenFormat::kText;
  int64_t vocabulary_ = 0;
  int64_t num_tokens_ = 0;
  UniqueFd file_;
};

}  // namespace muster::data
