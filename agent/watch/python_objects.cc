#include "agent/watch/python_objects.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/base/words.h"

namespace muster::agent {
namespace {

constexpr int64_t kNameCharactersMax = 64;
constexpr int64_t kPathCharactersMax = 1024;
constexpr int64_t kLineTableBytesMax = 1 << 20;

}  // namespace

uint64_t PythonMemory::Pointer(uint64_t address) const {
  uint64_t value = 0;
  return read_(address, &value, sizeof(value)) ? value : 0;
}

std::optional<int32_t> PythonMemory::Int(uint64_t address) const {
  int32_t value = 0;
  if (!read_(address, &value, sizeof(value))) return std::nullopt;
  return value;
}

std::optional<std::string> PythonMemory::Text(uint64_t object, int64_t characters_max) const {
  int64_t length = 0;
  uint32_t state = 0;
  if (object == 0 || !read_(object + kPythonLengthAt, &length, sizeof(length)) ||
      !read_(object + kPythonStringKindAt, &state, sizeof(state))) {
    return std::nullopt;
  }
  const uint32_t width = (state >> 2) & 7;
  const bool is_compact = ((state >> 5) & 1) != 0;
  const bool is_ascii = ((state >> 6) & 1) != 0;
  if (length < 0 || !is_compact || (width != 1 && width != 2 && width != 4)) return std::nullopt;
  std::string raw(std::min(length, characters_max) * width, '\0');
  const uint64_t header = is_ascii ? strings_.ascii_bytes : strings_.other_bytes;
  if (!read_(object + header, raw.data(), raw.size())) return std::nullopt;
  std::string text;
  for (size_t i = 0; i < raw.size(); i += width) {
    uint32_t point = 0;
    std::memcpy(&point, raw.data() + i, width);
    if (point < 0x20 || point > 0x10FFFF) return std::nullopt;
    AppendUtf8(point, text);
  }
  return text;
}

std::optional<std::string> PythonMemory::Bytes(uint64_t object, int64_t bytes_max) const {
  int64_t size = 0;
  if (object == 0 || !read_(object + kPythonLengthAt, &size, sizeof(size)) || size < 0 ||
      size > bytes_max) {
    return std::nullopt;
  }
  std::string bytes(size, '\0');
  if (!read_(object + kPythonBytesAt, bytes.data(), bytes.size())) return std::nullopt;
  return bytes;
}

bool PythonMemory::IsCode(uint64_t object) const {
  const uint64_t name = Pointer(Pointer(object + kPythonTypeAt) + kPythonTypeNameAt);
  char text[5] = {};
  return name != 0 && read_(name, text, sizeof(text)) && std::memcmp(text, "code", 5) == 0;
}

std::optional<std::string> PythonFrameReader::Describe(uint64_t frame) const {
  // Its lowest bits are flags in some versions.
  const uint64_t code = memory_.Pointer(frame + frames_.code) & ~uint64_t{7};
  if (code == 0 || !memory_.IsCode(code)) return std::nullopt;
  const auto name = memory_.Text(memory_.Pointer(code + code_.name), kNameCharactersMax);
  const auto file = memory_.Text(memory_.Pointer(code + code_.file), kPathCharactersMax);
  if (!name || !file || absl::StartsWith(*name, "<interpreter")) return std::nullopt;
  return absl::StrCat(*name, " at ", *file, ":", Line(frame, code));
}

int PythonFrameReader::Line(uint64_t frame, uint64_t code) const {
  const int first_line = memory_.Int(code + code_.first_line).value_or(0);
  const auto table = memory_.Bytes(memory_.Pointer(code + code_.line_table), kLineTableBytesMax);
  return table ? PythonLineAt(*table, code_.lines, first_line, Offset(frame, code)) : first_line;
}

int64_t PythonFrameReader::Offset(uint64_t frame, uint64_t code) const {
  if (code_.lines == PythonLines::kDeltas) {
    return int64_t{memory_.Int(frame + frames_.instruction).value_or(-1)} * 2;
  }
  const uint64_t at = memory_.Pointer(frame + frames_.instruction);
  return static_cast<int64_t>(at - (code + code_.instructions));
}

}  // namespace muster::agent
