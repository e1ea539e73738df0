#include "agent/watch/python_stack.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "agent/watch/process_modules.h"
#include "rendezvous/hangs/evidence/incident_parts.h"

namespace muster::agent {
namespace {

// A memory that changes, or is none of CPython's, may hold lists that do not end.
constexpr int kInterpretersMax = 16;
constexpr int kThreadsMax = 4096;
constexpr int kFramesWalkedMax = 256;  // with those between calls of C, which are not shown
constexpr int64_t kNameCharactersMax = 64;
constexpr int64_t kPathCharactersMax = 1024;
constexpr int64_t kLineTableBytesMax = 1 << 20;

void AppendUtf8(uint32_t point, std::string& out) {
  if (point < 0x80) {
    out.push_back(static_cast<char>(point));
    return;
  }
  const int following = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
  constexpr uint32_t kHeads[] = {0, 0xC0, 0xE0, 0xF0};
  out.push_back(static_cast<char>(kHeads[following] | (point >> (6 * following))));
  for (int i = following - 1; i >= 0; --i) {
    out.push_back(static_cast<char>(0x80 | ((point >> (6 * i)) & 0x3F)));
  }
}

// Objects of one interpreter, as far as they can be read.
class PythonMemory {
 public:
  PythonMemory(const PythonLayout& layout, ReadMemory read) : layout_(layout), read_(read) {}

  // 0: it cannot be read, or is null.
  uint64_t Pointer(uint64_t address) const {
    uint64_t value = 0;
    return read_(address, &value, sizeof(value)) ? value : 0;
  }

  std::optional<std::string> Text(uint64_t object, int64_t characters_max) const {
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
    const uint64_t header = is_ascii ? layout_.ascii_bytes : layout_.other_bytes;
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

  // Nothing: it is no code of Python, or a frame of the interpreter's own.
  std::optional<std::string> Frame(uint64_t frame) const {
    // Its lowest bits are flags in some versions.
    const uint64_t code = Pointer(frame + layout_.code) & ~uint64_t{7};
    if (code == 0 || !IsCode(code)) return std::nullopt;
    const auto name = Text(Pointer(code + layout_.name), kNameCharactersMax);
    const auto file = Text(Pointer(code + layout_.file), kPathCharactersMax);
    if (!name || !file || absl::StartsWith(*name, "<interpreter")) return std::nullopt;
    return absl::StrCat(*name, " at ", *file, ":", Line(frame, code));
  }

 private:
  bool IsCode(uint64_t object) const {
    const uint64_t name = Pointer(Pointer(object + kPythonTypeAt) + kPythonTypeNameAt);
    char text[5] = {};
    return name != 0 && read_(name, text, sizeof(text)) && std::memcmp(text, "code", 5) == 0;
  }

  int Line(uint64_t frame, uint64_t code) const {
    int32_t first_line = 0;
    read_(code + layout_.first_line, &first_line, sizeof(first_line));
    const uint64_t table = Pointer(code + layout_.line_table);
    int64_t bytes = 0;
    if (table == 0 || !read_(table + kPythonLengthAt, &bytes, sizeof(bytes)) || bytes < 0 ||
        bytes > kLineTableBytesMax) {
      return first_line;
    }
    std::string lines(bytes, '\0');
    if (!read_(table + kPythonBytesAt, lines.data(), lines.size())) return first_line;
    return PythonLineAt(lines, layout_.lines, first_line, Offset(frame, code));
  }

  int64_t Offset(uint64_t frame, uint64_t code) const {
    if (layout_.lines == PythonLines::kDeltas) {
      int32_t index = 0;
      return read_(frame + layout_.instruction, &index, sizeof(index)) ? int64_t{index} * 2 : -1;
    }
    const uint64_t at = Pointer(frame + layout_.instruction);
    return static_cast<int64_t>(at - (code + layout_.instructions));
  }

  const PythonLayout& layout_;
  const ReadMemory read_;
};

// 0: none.
uint64_t FindMainThread(const PythonMemory& memory, const PythonLayout& layout, uint64_t runtime,
                        pid_t main_thread) {
  uint64_t last = 0;
  uint64_t interpreter = memory.Pointer(runtime + layout.interpreters);
  for (int i = 0; interpreter != 0 && i < kInterpretersMax; ++i) {
    uint64_t thread = memory.Pointer(interpreter + layout.threads);
    for (int j = 0; thread != 0 && j < kThreadsMax; ++j) {
      last = thread;
      if (layout.native_id &&
          memory.Pointer(thread + *layout.native_id) == static_cast<uint64_t>(main_thread)) {
        return thread;
      }
      thread = memory.Pointer(thread + layout.next_thread);
    }
    interpreter = memory.Pointer(interpreter + layout.next_interpreter);
  }
  return layout.native_id ? 0 : last;
}

// Where the interpreter lies in a process.
struct Runtime {
  uint64_t address = 0;
  PythonVersion version = 0;
};

// "python3.10", "libpython3.10.so.1.0", also behind folders.
PythonVersion VersionInName(absl::string_view path) {
  absl::string_view name = path.substr(path.rfind('/') + 1);
  absl::ConsumePrefix(&name, "lib");
  if (!absl::ConsumePrefix(&name, "python3.")) return 0;
  const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
  int minor = 0;
  if (!absl::SimpleAtoi(name.substr(0, digits), &minor) || minor > 0xFF) return 0;
  return 0x03000000 | (static_cast<PythonVersion>(minor) << 16);
}

// Others have no symbols of it; the program itself may have it linked in.
bool MayHoldPython(absl::string_view path) {
  const absl::string_view name = path.substr(path.rfind('/') + 1);
  return absl::StartsWith(name, "python") || absl::StartsWith(name, "libpython");
}

struct Search {
  ReadMemory read;
  Runtime found;
};

int TakeModule(Dwfl_Module* module, void**, const char* name, Dwarf_Addr, void* argument) {
  Search& search = *static_cast<Search*>(argument);
  if (name == nullptr || !MayHoldPython(name)) return DWARF_CB_OK;
  const int count = dwfl_module_getsymtab(module);
  Runtime runtime{.version = VersionInName(name)};
  for (int i = 0; i < count; ++i) {
    GElf_Sym symbol;
    GElf_Addr address = 0;
    const char* text =
        dwfl_module_getsym_info(module, i, &symbol, &address, nullptr, nullptr, nullptr);
    if (text == nullptr || symbol.st_shndx == SHN_UNDEF) continue;
    const absl::string_view symbol_name = text;
    if (symbol_name == "_PyRuntime") runtime.address = address;
    uint64_t version = 0;
    if (symbol_name == "Py_Version" && search.read(address, &version, sizeof(version))) {
      runtime.version = static_cast<PythonVersion>(version);
    }
  }
  if (runtime.address == 0) return DWARF_CB_OK;
  search.found = runtime;
  return DWARF_CB_ABORT;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> WalkPythonStack(uint64_t runtime, PythonVersion version,
                                                         pid_t main_thread, ReadMemory read) {
  PythonOffsets offsets(kPythonOffsetWords);
  if (!read(runtime, offsets.data(), offsets.size() * sizeof(uint64_t))) {
    return absl::UnavailableError("its memory cannot be read");
  }
  const absl::StatusOr<PythonLayout> layout = LayoutOfPython(version, offsets);
  if (!layout.ok()) return layout.status();
  const PythonMemory memory(*layout, read);
  const uint64_t thread = FindMainThread(memory, *layout, runtime, main_thread);
  std::vector<std::string> frames;
  if (thread == 0) return frames;
  const uint64_t holder = layout->c_frame ? memory.Pointer(thread + *layout->c_frame) : thread;
  uint64_t frame = holder == 0 ? 0 : memory.Pointer(holder + layout->frame);
  for (int i = 0; frame != 0 && i < kFramesWalkedMax && frames.size() < hangs::kStackFramesMax;
       ++i) {
    if (std::optional<std::string> text = memory.Frame(frame)) frames.push_back(*std::move(text));
    frame = memory.Pointer(frame + layout->back);
  }
  return frames;
}

absl::StatusOr<std::vector<std::string>> ReadPythonStack(pid_t pid) {
  const auto read = [pid](uint64_t address, void* into, size_t size) {
    const iovec local = {into, size};
    const iovec remote = {reinterpret_cast<void*>(address), size};
    return process_vm_readv(pid, &local, 1, &remote, 1, 0) == static_cast<ssize_t>(size);
  };
  absl::StatusOr<ProcessModules> modules = OpenProcessModules(pid);
  if (!modules.ok()) return modules.status();
  Search search{.read = read};
  dwfl_getmodules(modules->get(), TakeModule, &search, 0);
  if (search.found.address == 0) return absl::NotFoundError("it runs no Python interpreter");
  return WalkPythonStack(search.found.address, search.found.version, pid, read);
}

}  // namespace muster::agent
