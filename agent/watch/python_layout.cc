#include "agent/watch/python_layout.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace muster::agent {
namespace {

constexpr PythonVersion kMinorMask = 0xFFFF0000;
constexpr PythonVersion k310 = 0x030A0000;
constexpr PythonVersion k311 = 0x030B0000;
constexpr PythonVersion k312 = 0x030C0000;
constexpr PythonVersion k313 = 0x030D0000;
constexpr PythonVersion k314 = 0x030E0000;

absl::Status NotKnown(absl::string_view what) {
  return absl::UnimplementedError(
      absl::StrCat("cannot read the stack of ", what, "; Python 3.10 to 3.14 are supported"));
}

const PythonLayout kLayout310 = {
    .threads = {.interpreters = 32, .next_interpreter = 0, .first = 8, .next = 8, .frame = 24},
    .frames = {.back = 24, .code = 32, .instruction = 96},
    .code = {.file = 104,
             .name = 112,
             .first_line = 40,
             .line_table = 120,
             .lines = PythonLines::kDeltas},
    .strings = {.ascii_bytes = 48, .other_bytes = 72}};

const PythonLayout kLayout311 = {
    .threads = {.interpreters = 40,
                .next_interpreter = 0,
                .first = 16,
                .next = 8,
                .native_id = 160,
                .c_frame = 56,
                .frame = 8},
    .frames = {.back = 48, .code = 32, .instruction = 56},
    .code = {.file = 112, .name = 120, .first_line = 72, .line_table = 136, .instructions = 184},
    .strings = {.ascii_bytes = 48, .other_bytes = 72}};

const PythonLayout kLayout312 = {
    .threads = {.interpreters = 40,
                .next_interpreter = 0,
                .first = 72,
                .next = 8,
                .native_id = 144,
                .c_frame = 56,
                .frame = 0},
    .frames = {.back = 8, .code = 0, .instruction = 56},
    .code = {.file = 112, .name = 120, .first_line = 68, .line_table = 136, .instructions = 192},
    .strings = {.ascii_bytes = 40, .other_bytes = 56}};

// The offsets in _Py_DebugOffsets of the tables of each kind of object; each begins with its size.
struct OffsetTables {
  size_t runtime, interpreter, thread, frame, code, end;
};

// Objects are at most this large; what is larger is no offset.
constexpr uint64_t kObjectBytesMax = 16 << 20;

bool AreOffsets(const PythonOffsets& words, size_t table, size_t end) {
  const uint64_t size = words[table];
  if (size == 0 || size > kObjectBytesMax) return false;
  for (size_t i = table + 1; i < end; ++i) {
    if (words[i] >= size) return false;
  }
  return true;
}

absl::StatusOr<PythonLayout> LayoutByItself(PythonVersion version, const PythonOffsets& words) {
  const std::string name = absl::StrCat("Python ", ToString(version));
  if (words.size() < kPythonOffsetWords ||
      std::memcmp(words.data(), kPythonCookie.data(), kPythonCookie.size()) != 0) {
    return NotKnown(name);
  }
  if (words[2] != 0) return NotKnown(absl::StrCat("free-threaded ", name));
  const OffsetTables at = (version & kMinorMask) == k313 ? OffsetTables{3, 6, 19, 28, 34, 44}
                                                         : OffsetTables{3, 6, 22, 31, 39, 50};
  if (!AreOffsets(words, at.runtime, at.interpreter) ||
      !AreOffsets(words, at.interpreter, at.thread) || !AreOffsets(words, at.thread, at.frame) ||
      !AreOffsets(words, at.frame, at.code) || !AreOffsets(words, at.code, at.end)) {
    return NotKnown(name);
  }
  return PythonLayout{.threads = {.interpreters = words[at.runtime + 2],
                                  .next_interpreter = words[at.interpreter + 2],
                                  .first = words[at.interpreter + 3],
                                  .next = words[at.thread + 2],
                                  .native_id = words[at.thread + 6],
                                  .frame = words[at.thread + 4]},
                      .frames = {.back = words[at.frame + 1],
                                 .code = words[at.frame + 2],
                                 .instruction = words[at.frame + 3]},
                      .code = {.file = words[at.code + 1],
                               .name = words[at.code + 2],
                               .first_line = words[at.code + 5],
                               .line_table = words[at.code + 4],
                               .instructions = words[at.code + 9]},
                      .strings = {.ascii_bytes = 40, .other_bytes = 56}};
}

// Pairs of bytes: for how many bytes of code, and how many lines further they are; -128: none.
int LineByDeltas(absl::string_view table, int first_line, int64_t offset) {
  constexpr int kNoLine = -128;
  int line = first_line;
  int64_t end = 0;
  for (size_t i = 0; i + 1 < table.size(); i += 2) {
    end += static_cast<uint8_t>(table[i]);
    const int delta = static_cast<int8_t>(table[i + 1]);
    if (delta != kNoLine) line += delta;
    if (offset < end) return delta == kNoLine ? first_line : line;
  }
  return first_line;
}

// Six bits a byte, lowest first; the seventh says that more follow.
class Varints {
 public:
  explicit Varints(absl::string_view bytes) : bytes_(bytes) {}

  uint32_t Next() {
    uint32_t value = 0;
    for (int shift = 0; !bytes_.empty() && shift < 32; shift += 6) {
      const uint32_t byte = static_cast<uint8_t>(bytes_.front());
      bytes_.remove_prefix(1);
      value |= (byte & 0x3F) << shift;
      if ((byte & 0x40) == 0) break;
    }
    return value;
  }
  // The lowest bit is the sign.
  int NextSigned() {
    const uint32_t value = Next();
    const int magnitude = static_cast<int>(value >> 1);
    return (value & 1) != 0 ? -magnitude : magnitude;
  }

 private:
  absl::string_view bytes_;
};

// Entries whose first byte has its highest bit set: a form, and for how many units of code, of two
// bytes each.
int LineByLocations(absl::string_view table, int first_line, int64_t offset) {
  constexpr int kNone = 15, kLong = 14, kNoColumns = 13, kOneLineLast = 12, kOneLineFirst = 10;
  int line = first_line;
  int64_t end = 0;
  for (size_t i = 0; i < table.size();) {
    const int head = static_cast<uint8_t>(table[i++]);
    const size_t begin = i;
    while (i < table.size() && (static_cast<uint8_t>(table[i]) & 0x80) == 0) ++i;
    const int form = (head >> 3) & 0xF;
    if (form == kLong || form == kNoColumns) {
      line += Varints(table.substr(begin, i - begin)).NextSigned();
    } else if (form >= kOneLineFirst && form <= kOneLineLast) {
      line += form - kOneLineFirst;
    }
    end += 2 * ((head & 7) + 1);
    if (offset < end) return form == kNone ? first_line : line;
  }
  return first_line;
}

}  // namespace

std::string ToString(PythonVersion version) {
  return absl::StrCat(version >> 24, ".", (version >> 16) & 0xFF);
}

absl::StatusOr<PythonLayout> LayoutOfPython(PythonVersion version, const PythonOffsets& offsets) {
  switch (version & kMinorMask) {
    case k310:
      return kLayout310;
    case k311:
      return kLayout311;
    case k312:
      return kLayout312;
    case k313:
    case k314:
      return LayoutByItself(version, offsets);
    default:
      return NotKnown(absl::StrCat("Python ", ToString(version)));
  }
}

int PythonLineAt(absl::string_view table, PythonLines lines, int first_line, int64_t offset) {
  if (offset < 0) return first_line;
  return lines == PythonLines::kDeltas ? LineByDeltas(table, first_line, offset)
                                       : LineByLocations(table, first_line, offset);
}

}  // namespace muster::agent
