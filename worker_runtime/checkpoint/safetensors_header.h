// The header of a safetensors file: values to text and back. Touches no file.
//
// Source: huggingface/safetensors, README "Format". Differs in that
// unknown keys of an array's entry are refused.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker_runtime/checkpoint/safetensors.h"

namespace muster::checkpoint {

inline constexpr int64_t kLengthBytes = 8;  // of the header's length, in front of it
inline constexpr int64_t kHeaderBytesMax = 100'000'000;

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::map<std::string, ArrayInfo> arrays;
};

// Reads the JSON of a file of `file_bytes`. Safe for any bytes: takes memory in proportion to
// `text` and does not recurse.
//
// Errors: kInvalidArgument: says what is wrong, and of which array; the caller names the file.
absl::StatusOr<SafetensorsHeader> ParseHeader(absl::string_view text, int64_t file_bytes);

// What an array takes in a file.
int64_t BytesOf(const NamedArray& array);

struct FileLayout {
  std::string prefix;         // length and header, padded so that the data is aligned to 8 bytes
  std::vector<size_t> order;  // of the arrays in the file, as indices
};

// Wide types come first, so that every array is aligned to its type; else the order is kept.
//
// Errors: kInvalidArgument: a name that is used twice, "__metadata__" or not UTF-8; a shape that
//         does not fit the number of elements; a header over kHeaderBytesMax.
absl::StatusOr<FileLayout> PlanFile(absl::Span<const NamedArray> arrays,
                                    const std::map<std::string, std::string>& metadata);

}  // namespace muster::checkpoint
