#include "agent/watch/python_stack.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "agent/watch/process_modules.h"
#include "agent/watch/python_objects.h"
#include "rendezvous/hangs/evidence/incident_parts.h"

namespace muster::agent {
namespace {

// A memory that changes, or is none of CPython's, may hold lists that do not end.
constexpr int kInterpretersMax = 16;
constexpr int kThreadsWalkedMax = 4096;
constexpr int kFramesWalkedMax = 256;  // with those between calls of C, which are not shown

// 0: none.
uint64_t FindMainThread(const PythonMemory& memory, const PythonThreads& threads, uint64_t runtime,
                        pid_t main_thread) {
  uint64_t last = 0;
  uint64_t interpreter = memory.Pointer(runtime + threads.interpreters);
  for (int i = 0; interpreter != 0 && i < kInterpretersMax; ++i) {
    uint64_t thread = memory.Pointer(interpreter + threads.first);
    for (int j = 0; thread != 0 && j < kThreadsWalkedMax; ++j) {
      last = thread;
      if (threads.native_id &&
          memory.Pointer(thread + *threads.native_id) == static_cast<uint64_t>(main_thread)) {
        return thread;
      }
      thread = memory.Pointer(thread + threads.next);
    }
    interpreter = memory.Pointer(interpreter + threads.next_interpreter);
  }
  return threads.native_id ? 0 : last;
}

// The place of the interpreter in a process.
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
  const PythonThreads& threads = layout->threads;
  const PythonMemory memory(layout->strings, read);
  const PythonFrameReader reader(memory, *layout);
  const uint64_t thread = FindMainThread(memory, threads, runtime, main_thread);
  std::vector<std::string> frames;
  if (thread == 0) return frames;
  const uint64_t holder = threads.c_frame ? memory.Pointer(thread + *threads.c_frame) : thread;
  uint64_t frame = holder == 0 ? 0 : memory.Pointer(holder + threads.frame);
  for (int i = 0; frame != 0 && i < kFramesWalkedMax && frames.size() < hangs::kStackFramesMax;
       ++i) {
    if (std::optional<std::string> text = reader.Describe(frame))
      frames.push_back(*std::move(text));
    frame = reader.Back(frame);
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
