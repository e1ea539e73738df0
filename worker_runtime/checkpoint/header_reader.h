// Takes the JSON of a safetensors header apart. Whether its numbers make sense is for ParseHeader.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "muster/dtype.h"

namespace muster::checkpoint {

inline constexpr absl::string_view kMetadataName = "__metadata__";
inline constexpr size_t kDimensionsMax = 64;

struct HeaderEntry {
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;           // no size is negative
  std::array<int64_t, 2> offsets = {};  // begin and end, from the start of the data; not negative
};

struct HeaderEntries {
  std::map<std::string, std::string> metadata;
  std::map<std::string, HeaderEntry> arrays;
};

// Safe for any bytes: takes memory in proportion to `text` and does not recurse.
//
// Errors: kInvalidArgument: not JSON, a key twice or missing or unknown, a value of another kind,
//         more than kDimensionsMax dimensions, a dtype that this version has not.
absl::StatusOr<HeaderEntries> ReadHeaderEntries(absl::string_view text);

// The format's name of `dtype`, and what has that name.
absl::string_view NameOf(DType dtype);
std::optional<DType> DTypeNamed(absl::string_view name);

// `name` in quotes, cut to 100 bytes and fit for a terminal, whatever a damaged file has in its
// names.
std::string Quoted(absl::string_view name);

}  // namespace muster::checkpoint
