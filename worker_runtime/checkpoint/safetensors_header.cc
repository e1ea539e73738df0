#include "worker_runtime/checkpoint/safetensors_header.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/checkpoint/header_reader.h"

namespace muster::checkpoint {
namespace {

using Json = nlohmann::json;

// Nothing if a size is negative or the product does not fit.
std::optional<int64_t> ProductOf(absl::Span<const int64_t> shape) {
  int64_t product = 1;
  for (int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(product, size, &product)) return std::nullopt;
  }
  return product;
}

absl::StatusOr<ArrayInfo> ArrayOf(const std::string& name, const HeaderEntry& entry,
                                  int64_t data_start, int64_t file_bytes) {
  const int64_t begin = entry.offsets[0];
  const int64_t end = entry.offsets[1];
  const std::optional<int64_t> count = ProductOf(entry.shape);
  const int64_t size = static_cast<int64_t>(SizeOf(entry.dtype));
  int64_t bytes = 0;
  if (!count || __builtin_mul_overflow(*count, size, &bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(name), " has the impossible shape [",
                                                   absl::StrJoin(entry.shape, ", "), "]"));
  }
  if (end < begin || end - begin != bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(name), " lies at data_offsets [", begin, ", ", end,
                     "], but its shape [", absl::StrJoin(entry.shape, ", "), "] of ",
                     NameOf(entry.dtype), " takes ", bytes, " bytes"));
  }
  // Asked here, because sums with larger offsets could overflow.
  if (end > file_bytes - data_start) {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(name), " ends at byte ", end,
                                                   " of the data, of which the file has ",
                                                   file_bytes - data_start, ": it is cut off"));
  }
  return ArrayInfo{entry.dtype, entry.shape, data_start + begin, bytes};
}

// The arrays must cover the data from its first to its last byte, each byte once.
absl::Status CheckCoverage(const std::map<std::string, ArrayInfo>& arrays, int64_t data_start,
                           int64_t file_bytes) {
  std::vector<std::pair<const std::string*, const ArrayInfo*>> sorted;
  for (const auto& [name, info] : arrays) sorted.emplace_back(&name, &info);
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->offset, a.second->bytes) <
           std::pair(b.second->offset, b.second->bytes);
  });
  int64_t end = data_start;
  for (const auto& [name, info] : sorted) {
    if (info->offset != end) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(*name), " begins at byte ", info->offset - data_start,
                       " of the data, but what is before it ends at ", end - data_start,
                       info->offset > end ? " (a hole)" : " (they overlap)"));
    }
    end += info->bytes;
  }
  if (end == file_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the file has ", file_bytes - end, " bytes after the last array"));
}

absl::Status CheckArray(const NamedArray& array, std::set<absl::string_view>& names) {
  if (array.name == kMetadataName) {
    return absl::InvalidArgumentError(
        absl::StrCat("an array cannot be named ", kMetadataName, ": the file format keeps it"));
  }
  if (!names.insert(array.name).second) {
    return absl::InvalidArgumentError(absl::StrCat("two arrays are named ", Quoted(array.name)));
  }
  const std::optional<int64_t> count = ProductOf(array.shape);
  if (count && *count == array.elements.count && array.shape.size() <= kDimensionsMax) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(Quoted(array.name), " has the shape [",
                                                 absl::StrJoin(array.shape, ", "), "] but ",
                                                 array.elements.count, " elements"));
}

// nlohmann_json throws for text that is not UTF-8.
absl::StatusOr<std::string> Dump(const Json& json) {
  try {
    return json.dump();
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("a name or metadata of the arrays is not UTF-8: ", error.what()));
  }
}

}  // namespace

int64_t BytesOf(const NamedArray& array) {
  return array.elements.count * static_cast<int64_t>(SizeOf(array.elements.dtype));
}

absl::StatusOr<SafetensorsHeader> ParseHeader(absl::string_view text, int64_t file_bytes) {
  MUSTER_ASSIGN_OR_RETURN(HeaderEntries read, ReadHeaderEntries(text));
  const int64_t data_start = kLengthBytes + static_cast<int64_t>(text.size());
  SafetensorsHeader header;
  header.metadata = std::move(read.metadata);
  for (const auto& [name, entry] : read.arrays) {
    MUSTER_ASSIGN_OR_RETURN(header.arrays[name], ArrayOf(name, entry, data_start, file_bytes));
  }
  MUSTER_RETURN_IF_ERROR(CheckCoverage(header.arrays, data_start, file_bytes));
  return header;
}

absl::StatusOr<FileLayout> PlanFile(absl::Span<const NamedArray> arrays,
                                    const std::map<std::string, std::string>& metadata) {
  FileLayout layout;
  layout.order.resize(arrays.size());
  std::iota(layout.order.begin(), layout.order.end(), 0);
  std::stable_sort(layout.order.begin(), layout.order.end(), [&](size_t a, size_t b) {
    return SizeOf(arrays[a].elements.dtype) > SizeOf(arrays[b].elements.dtype);
  });

  std::vector<std::string> members;
  if (!metadata.empty()) {
    MUSTER_ASSIGN_OR_RETURN(std::string text, Dump(metadata));
    members.push_back(absl::StrCat("\"", kMetadataName, "\":", text));
  }
  std::set<absl::string_view> names;
  int64_t end = 0;
  for (size_t index : layout.order) {
    const NamedArray& array = arrays[index];
    MUSTER_RETURN_IF_ERROR(CheckArray(array, names));
    MUSTER_ASSIGN_OR_RETURN(std::string name, Dump(array.name));
    const int64_t begin = std::exchange(end, end + BytesOf(array));
    members.push_back(absl::StrCat(name, ":{\"dtype\":\"", NameOf(array.elements.dtype),
                                   "\",\"shape\":[", absl::StrJoin(array.shape, ","),
                                   "],\"data_offsets\":[", begin, ",", end, "]}"));
  }
  std::string text = absl::StrCat("{", absl::StrJoin(members, ","), "}");
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (static_cast<int64_t>(text.size()) > kHeaderBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("the header of ", arrays.size(),
                                                   " arrays takes ", text.size(), " bytes, over ",
                                                   kHeaderBytesMax));
  }
  for (size_t i = 0; i < kLengthBytes; ++i) {
    layout.prefix.push_back(static_cast<char>(text.size() >> (8 * i) & 0xff));
  }
  layout.prefix += text;
  return layout;
}

}  // namespace muster::checkpoint
