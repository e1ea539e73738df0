#include "worker_runtime/checkpoint/safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/status_macros.h"

namespace muster::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr absl::string_view kMetadata = "__metadata__";
constexpr size_t kDimensionsMax = 64;

struct DTypeName {
  DType dtype;
  absl::string_view name;
};
constexpr std::array<DTypeName, 7> kDTypeNames = {{{DType::kF64, "F64"},
                                                   {DType::kF32, "F32"},
                                                   {DType::kBf16, "BF16"},
                                                   {DType::kF16, "F16"},
                                                   {DType::kI64, "I64"},
                                                   {DType::kI32, "I32"},
                                                   {DType::kU8, "U8"}}};

std::optional<DType> DTypeNamed(absl::string_view name) {
  for (const DTypeName& entry : kDTypeNames) {
    if (entry.name == name) return entry.dtype;
  }
  return std::nullopt;
}

absl::string_view NameOf(DType dtype) {
  for (const DTypeName& entry : kDTypeNames) {
    if (entry.dtype == dtype) return entry.name;
  }
  return "?";
}

// Fit for a terminal, whatever a damaged file has in its names.
std::string Quoted(absl::string_view name) {
  constexpr size_t kShown = 100;
  const bool cut = name.size() > kShown;
  return absl::StrCat("\"", absl::CHexEscape(name.substr(0, kShown)), cut ? "..." : "", "\"");
}

// Nothing if a size is negative or the product does not fit.
std::optional<int64_t> ProductOf(absl::Span<const int64_t> shape) {
  int64_t product = 1;
  for (int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(product, size, &product)) return std::nullopt;
  }
  return product;
}

// One array's entry as it is read; offsets count from the start of the data.
struct Entry {
  std::optional<DType> dtype;
  std::optional<std::vector<int64_t>> shape;
  std::optional<std::vector<int64_t>> offsets;
};

// Follows the parser through the header and stops at the first thing that is out of place. Events
// rather than a tree: a tree would hide keys that come twice, and takes many times the memory.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  const std::string& error() const { return error_; }
  std::map<std::string, Entry>& entries() { return entries_; }
  std::map<std::string, std::string>& metadata() { return metadata_; }

  bool start_object(size_t) override {
    switch (expect_) {
      case Expect::kHeader:
        return Next(Expect::kName);
      case Expect::kEntry:
        return Next(Expect::kField);
      case Expect::kMetadata:
        return Next(Expect::kMetadataKey);
      default:
        return Misplaced("an object");
    }
  }

  bool key(std::string& key) override {
    switch (expect_) {
      case Expect::kName:
        name_ = key;
        if (!names_.insert(key).second) return Fail(absl::StrCat("it has ", Quoted(key), " twice"));
        return Next(key == kMetadata ? Expect::kMetadata : Expect::kEntry);
      case Expect::kField:
        return StartField(key);
      case Expect::kMetadataKey:
        metadata_key_ = key;
        if (metadata_.count(key) != 0) return FailInEntry(absl::StrCat(Quoted(key), " twice"));
        return Next(Expect::kMetadataText);
      default:
        return Misplaced("a key");
    }
  }

  bool end_object() override {
    switch (expect_) {
      case Expect::kField:
        return EndEntry();
      case Expect::kMetadataKey:
        return Next(Expect::kName);
      default:
        return Next(Expect::kEnd);
    }
  }

  bool start_array(size_t) override {
    switch (expect_) {
      case Expect::kShape:
        return Next(Expect::kSize);
      case Expect::kOffsets:
        return Next(Expect::kOffset);
      default:
        return Misplaced("a list");
    }
  }

  bool end_array() override {
    if (expect_ == Expect::kOffset && entry_.offsets->size() != 2) {
      return FailInEntry("data_offsets without exactly two numbers");
    }
    return Next(Expect::kField);
  }

  bool string(std::string& text) override {
    switch (expect_) {
      case Expect::kDType:
        entry_.dtype = DTypeNamed(text);
        if (!entry_.dtype) {
          return FailInEntry(absl::StrCat("the dtype ", Quoted(text),
                                          ", which this version cannot hold (it can F64, F32, "
                                          "BF16, F16, I64, I32 and U8)"));
        }
        return Next(Expect::kField);
      case Expect::kMetadataText:
        metadata_[metadata_key_] = text;
        return Next(Expect::kMetadataKey);
      default:
        return Misplaced("a string");
    }
  }

  bool number_unsigned(uint64_t value) override {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Misplaced(absl::StrCat("the number ", value));
    }
    switch (expect_) {
      case Expect::kSize:
        if (entry_.shape->size() == kDimensionsMax) return FailInEntry("more than 64 dimensions");
        entry_.shape->push_back(static_cast<int64_t>(value));
        return true;
      case Expect::kOffset:
        if (entry_.offsets->size() == 2) return FailInEntry("more than two data_offsets");
        entry_.offsets->push_back(static_cast<int64_t>(value));
        return true;
      default:
        return Misplaced("a number");
    }
  }

  bool number_integer(int64_t value) override {
    return Misplaced(absl::StrCat("the number ", value));
  }
  bool number_float(double, const std::string& text) override {
    return Misplaced(absl::StrCat("the number ", text.substr(0, 40)));
  }
  bool null() override { return Misplaced("null"); }
  bool boolean(bool) override { return Misplaced("a truth value"); }
  bool binary(Json::binary_t&) override { return Misplaced("binary data"); }
  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    return Fail(absl::StrCat("it is no JSON from byte ", position, " of it on"));
  }

 private:
  // What comes next.
  enum class Expect {
    kHeader,
    kName,
    kEntry,
    kField,
    kDType,
    kShape,
    kSize,
    kOffsets,
    kOffset,
    kMetadata,
    kMetadataKey,
    kMetadataText,
    kEnd,
  };

  bool Next(Expect expect) {
    expect_ = expect;
    return true;
  }
  bool Fail(std::string error) {
    error_ = std::move(error);
    return false;
  }
  bool FailInEntry(absl::string_view what) {
    return Fail(absl::StrCat(Quoted(name_), " has ", what));
  }
  bool Misplaced(absl::string_view what) {
    if (expect_ == Expect::kHeader) return Fail(absl::StrCat("it is ", what, ", no object"));
    return FailInEntry(absl::StrCat(what, " where none may be"));
  }

  bool StartField(const std::string& key) {
    if (key == "dtype" && !entry_.dtype) return Next(Expect::kDType);
    if (key == "shape" && !entry_.shape) {
      entry_.shape.emplace();
      return Next(Expect::kShape);
    }
    if (key == "data_offsets" && !entry_.offsets) {
      entry_.offsets.emplace();
      return Next(Expect::kOffsets);
    }
    const bool known = key == "dtype" || key == "shape" || key == "data_offsets";
    return FailInEntry(absl::StrCat(known ? "" : "the unknown key ", Quoted(key), known ? " twice" : ""));
  }

  bool EndEntry() {
    if (!entry_.dtype) return FailInEntry("no dtype");
    if (!entry_.shape) return FailInEntry("no shape");
    if (!entry_.offsets) return FailInEntry("no data_offsets");
    entries_[name_] = std::exchange(entry_, Entry());
    return Next(Expect::kName);
  }

  Expect expect_ = Expect::kHeader;
  std::string error_;
  std::string name_;
  std::string metadata_key_;
  Entry entry_;
  std::set<std::string> names_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

absl::StatusOr<ArrayInfo> ArrayOf(const std::string& name, const Entry& entry, int64_t data_start) {
  const int64_t begin = entry.offsets->at(0);
  const int64_t end = entry.offsets->at(1);
  const std::optional<int64_t> count = ProductOf(*entry.shape);
  const int64_t size = static_cast<int64_t>(SizeOf(*entry.dtype));
  int64_t bytes = 0;
  if (!count || __builtin_mul_overflow(*count, size, &bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(name), " has the impossible shape [",
                                                   absl::StrJoin(*entry.shape, ", "), "]"));
  }
  if (end < begin || end - begin != bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        Quoted(name), " lies at data_offsets [", begin, ", ", end, "], but its shape [",
        absl::StrJoin(*entry.shape, ", "), "] of ", NameOf(*entry.dtype), " takes ", bytes,
        " bytes"));
  }
  return ArrayInfo{*entry.dtype, *entry.shape, data_start + begin, bytes};
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
      absl::StrCat("its arrays end at byte ", end, " of the file, which has ", file_bytes,
                   end > file_bytes ? ": the file is cut off" : ""));
}

absl::Status CheckArray(const NamedArray& array, std::set<absl::string_view>& names) {
  if (array.name == kMetadata) {
    return absl::InvalidArgumentError(
        absl::StrCat("an array cannot be named ", kMetadata, ": the file format keeps it"));
  }
  if (!names.insert(array.name).second) {
    return absl::InvalidArgumentError(absl::StrCat("two arrays are named ", Quoted(array.name)));
  }
  const std::optional<int64_t> count = ProductOf(array.shape);
  if (count && *count == array.elements.count && array.shape.size() <= kDimensionsMax) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(Quoted(array.name), " has the shape [", absl::StrJoin(array.shape, ", "),
                   "] but ", array.elements.count, " elements"));
}

// nlohmann_json throws for text that is not UTF-8.
absl::StatusOr<std::string> Dump(const nlohmann::ordered_json& header) {
  try {
    return header.dump();
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("a name or metadata of the arrays is not UTF-8: ", error.what()));
  }
}

int64_t BytesOf(const NamedArray& array) {
  return array.elements.count * static_cast<int64_t>(SizeOf(array.elements.dtype));
}

}  // namespace

absl::StatusOr<SafetensorsHeader> ParseHeader(absl::string_view text, int64_t file_bytes) {
  HeaderReader reader;
  if (!Json::sax_parse(text.begin(), text.end(), &reader)) {
    return absl::InvalidArgumentError(reader.error());
  }
  const int64_t data_start = kLengthBytes + static_cast<int64_t>(text.size());
  SafetensorsHeader header;
  header.metadata = std::move(reader.metadata());
  for (const auto& [name, entry] : reader.entries()) {
    MUSTER_ASSIGN_OR_RETURN(header.arrays[name], ArrayOf(name, entry, data_start));
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

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[std::string(kMetadata)] = metadata;
  std::set<absl::string_view> names;
  int64_t end = 0;
  for (size_t index : layout.order) {
    const NamedArray& array = arrays[index];
    MUSTER_RETURN_IF_ERROR(CheckArray(array, names));
    const int64_t begin = std::exchange(end, end + BytesOf(array));
    header.emplace(array.name, nlohmann::ordered_json{{"dtype", NameOf(array.elements.dtype)},
                                                      {"shape", array.shape},
                                                      {"data_offsets", {begin, end}}});
  }
  MUSTER_ASSIGN_OR_RETURN(std::string text, Dump(header));
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
