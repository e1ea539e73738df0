#include "worker_runtime/checkpoint/header_reader.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace muster::checkpoint {
namespace {

using Json = nlohmann::json;

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

// The entry that is being read: the keys that it has had so far.
struct OpenEntry {
  std::optional<DType> dtype;
  std::optional<std::vector<int64_t>> shape;
  std::optional<std::vector<int64_t>> offsets;
};

// Follows the parser through the header and stops at the first thing that is out of place. Events
// rather than a tree: a tree would hide keys that come twice, and takes many times the memory.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  const std::string& error() const { return error_; }
  HeaderEntries& entries() { return entries_; }

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
        if (!names_.insert(key).second)
          return Fail(absl::StrCat("the header has ", Quoted(key), " twice"));
        return Next(key == kMetadataName ? Expect::kMetadata : Expect::kEntry);
      case Expect::kField:
        return StartField(key);
      case Expect::kMetadataKey:
        metadata_key_ = key;
        if (entries_.metadata.count(key) != 0)
          return FailInEntry(absl::StrCat(Quoted(key), " twice"));
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
        entries_.metadata[metadata_key_] = text;
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
    return Fail(absl::StrCat("the header is not JSON from byte ", position, " on"));
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
    if (expect_ == Expect::kHeader)
      return Fail(absl::StrCat("the header is ", what, ", not an object"));
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
    return FailInEntry(
        absl::StrCat(known ? "" : "the unknown key ", Quoted(key), known ? " twice" : ""));
  }

  bool EndEntry() {
    if (!entry_.dtype) return FailInEntry("no dtype");
    if (!entry_.shape) return FailInEntry("no shape");
    if (!entry_.offsets) return FailInEntry("no data_offsets");
    entries_.arrays[name_] = {
        *entry_.dtype, *std::move(entry_.shape), {entry_.offsets->at(0), entry_.offsets->at(1)}};
    entry_ = OpenEntry();
    return Next(Expect::kName);
  }

  Expect expect_ = Expect::kHeader;
  std::string error_;
  std::string name_;
  std::string metadata_key_;
  OpenEntry entry_;
  std::set<std::string> names_;
  HeaderEntries entries_;
};

}  // namespace

absl::StatusOr<HeaderEntries> ReadHeaderEntries(absl::string_view text) {
  // JSON may begin with spaces; this format may not.
  if (text.empty() || text.front() != '{') {
    return absl::InvalidArgumentError("the header does not begin with {");
  }
  HeaderReader reader;
  if (Json::sax_parse(text.begin(), text.end(), &reader)) return std::move(reader.entries());
  return absl::InvalidArgumentError(reader.error());
}

absl::string_view NameOf(DType dtype) {
  for (const DTypeName& entry : kDTypeNames) {
    if (entry.dtype == dtype) return entry.name;
  }
  return "?";
}

std::optional<DType> DTypeNamed(absl::string_view name) {
  for (const DTypeName& entry : kDTypeNames) {
    if (entry.name == name) return entry.dtype;
  }
  return std::nullopt;
}

std::string Quoted(absl::string_view name) {
  constexpr size_t kShown = 100;
  const bool cut = name.size() > kShown;
  return absl::StrCat("\"", absl::CHexEscape(name.substr(0, kShown)), cut ? "..." : "", "\"");
}

}  // namespace muster::checkpoint
