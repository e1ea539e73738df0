// Data for the tests of this room: files as llm.c writes them, and a source without a file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "muster/data.h"

namespace muster::testing {

inline void AppendLittleEndian(uint32_t value, int bytes, std::string& out) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

struct TokenHeader {
  uint32_t magic = 20240520;
  uint32_t version = 1;
  uint32_t count = 0;
};

// 256 int32, of which three mean something.
inline std::string HeaderBytes(TokenHeader header) {
  std::string bytes;
  AppendLittleEndian(header.magic, 4, bytes);
  AppendLittleEndian(header.version, 4, bytes);
  AppendLittleEndian(header.count, 4, bytes);
  bytes.resize(1024);
  return bytes;
}

inline std::string Gpt2File(const std::vector<uint16_t>& ids) {
  std::string bytes = HeaderBytes({.count = static_cast<uint32_t>(ids.size())});
  for (const uint16_t id : ids) AppendLittleEndian(id, 2, bytes);
  return bytes;
}

// Token i is i modulo the vocabulary.
class CountingSource : public TokenSource {
 public:
  explicit CountingSource(int64_t num_tokens) : num_tokens_(num_tokens) {}

  int64_t num_tokens() const override { return num_tokens_; }
  int64_t vocabulary() const override { return 1 << 20; }
  std::string Describe() const override { return "numbers"; }
  absl::Status Read(int64_t first, absl::Span<int32_t> out) const override {
    for (int32_t& token : out) token = static_cast<int32_t>(first++ % vocabulary());
    return absl::OkStatus();
  }

 private:
  const int64_t num_tokens_;
};

}  // namespace muster::testing
