// Objects of CPython in the memory of another process, as far as they can be read: strings, code
// and the frames that execute it. What does not look like the object asked for gives nothing.
//
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "agent/watch/python_layout.h"

namespace muster::agent {

// Copies `size` bytes of a process; false: it has none there.
using ReadMemory = absl::FunctionRef<bool(uint64_t address, void* into, size_t size)>;

class PythonMemory {
 public:
  // What `read` refers to outlives this object.
  PythonMemory(PythonStrings strings, ReadMemory read) : strings_(strings), read_(read) {}

  // 0: it cannot be read, or is null.
  uint64_t Pointer(uint64_t address) const;
  std::optional<int32_t> Int(uint64_t address) const;
  // The first `characters_max` of a string, in UTF-8. Nothing also if it has control characters.
  std::optional<std::string> Text(uint64_t object, int64_t characters_max) const;
  std::optional<std::string> Bytes(uint64_t object, int64_t bytes_max) const;
  bool IsCode(uint64_t object) const;

 private:
  PythonStrings strings_;
  const ReadMemory read_;
};

class PythonFrameReader {
 public:
  // `memory` outlives this object.
  PythonFrameReader(const PythonMemory& memory, const PythonLayout& layout)
      : memory_(memory), frames_(layout.frames), code_(layout.code) {}

  // The frame that called it; 0: none.
  uint64_t Back(uint64_t frame) const { return memory_.Pointer(frame + frames_.back); }
  // "function at file:line". Nothing: it is no code of Python, or a frame of the interpreter's own.
  std::optional<std::string> Describe(uint64_t frame) const;

 private:
  int Line(uint64_t frame, uint64_t code) const;
  // Bytes of code before the instruction; negative: it has begun none.
  int64_t Offset(uint64_t frame, uint64_t code) const;

  const PythonMemory& memory_;
  PythonFrames frames_;
  PythonCode code_;
};

}  // namespace muster::agent
