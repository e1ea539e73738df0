// The places where CPython keeps what its threads execute, by version: offsets in bytes on 64-bit
// machines.
//
// Source: CPython 3.10 to 3.14: Include/cpython and Include/internal/pycore_*.h (offsets printed by
// a program compiled with these headers); from 3.13 on the interpreter holds them itself
// (_Py_DebugOffsets); Objects/lnotab_notes.txt (3.10), Objects/locations.md (3.11 on).
//
// Pure values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster::agent {

// A version in the form of PY_VERSION_HEX: 0x030b07f0 is 3.11.7.
using PythonVersion = uint32_t;
// "3.11"
std::string ToString(PythonVersion version);

// Lines by bytecode.
enum class PythonLines { kDeltas /* 3.10 */, kLocations /* 3.11 on */ };

// Offsets on the way from _PyRuntime to the innermost frame of a thread.
struct PythonThreads {
  uint64_t interpreters = 0;  // in _PyRuntime; the next two in each interpreter
  uint64_t next_interpreter = 0;
  uint64_t first = 0;
  uint64_t next = 0;                  // in each thread, as those that follow
  std::optional<uint64_t> native_id;  // none: the main thread is the last in the list
  std::optional<uint64_t> c_frame;    // that holds `frame`; none: the thread does
  uint64_t frame = 0;
};

// Offsets in a frame.
struct PythonFrames {
  uint64_t back = 0;
  uint64_t code = 0;
  uint64_t instruction = 0;  // a pointer, or where there are `kDeltas` an int that counts them
};

// Offsets in a code object.
struct PythonCode {
  uint64_t file = 0;
  uint64_t name = 0;
  uint64_t first_line = 0;
  uint64_t line_table = 0;
  uint64_t instructions = 0;  // where they begin, if a frame's instruction is a pointer
  PythonLines lines = PythonLines::kLocations;
};

// Bytes of a string's header, before its characters.
struct PythonStrings {
  uint64_t ascii_bytes = 0;
  uint64_t other_bytes = 0;
};

struct PythonLayout {
  PythonThreads threads;
  PythonFrames frames;
  PythonCode code;
  PythonStrings strings;
};

// The same in all of them.
inline constexpr uint64_t kPythonTypeAt = 8;         // in an object
inline constexpr uint64_t kPythonTypeNameAt = 24;    // in a type, to a C string
inline constexpr uint64_t kPythonLengthAt = 16;      // in bytes and strings
inline constexpr uint64_t kPythonBytesAt = 32;       // in bytes
inline constexpr uint64_t kPythonStringKindAt = 32;  // in strings

// What begins _PyRuntime from 3.13 on, as far as it is read: the size of `PythonOffsets`.
inline constexpr absl::string_view kPythonCookie = "xdebugpy";
inline constexpr size_t kPythonOffsetWords = 50;
using PythonOffsets = std::vector<uint64_t>;  // kPythonOffsetWords, with the cookie

// `offsets` is looked at from 3.13 on.
//
// Errors: kUnimplemented: "Python 3.9", "free-threaded Python 3.14": its layout is not known here.
absl::StatusOr<PythonLayout> LayoutOfPython(PythonVersion version, const PythonOffsets& offsets);

// The line of the instruction that lies `offset` bytes behind the first; the function's first where
// the table does not tell.
int PythonLineAt(absl::string_view table, PythonLines lines, int first_line, int64_t offset);

}  // namespace muster::agent
