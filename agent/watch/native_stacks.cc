#include "agent/watch/native_stacks.h"

#include <cxxabi.h>
#include <dirent.h>
#include <elfutils/libdwfl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "agent/machine/descendants.h"
#include "agent/watch/process_look.h"
#include "agent/watch/process_modules.h"
#include "rendezvous/hangs/evidence/incident_parts.h"

namespace muster::agent {
namespace {

constexpr size_t kThreadsMax = 32;
constexpr size_t kNameBytesMax = 160;

std::string Demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> plain(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
  std::string text = status == 0 ? plain.get() : name;
  if (text.size() > kNameBytesMax) text = text.substr(0, kNameBytesMax) + "...";
  return text;
}

std::string NameOf(Dwfl* dwfl, Dwarf_Addr address) {
  Dwfl_Module* module = dwfl_addrmodule(dwfl, address);
  if (module == nullptr) return "?";
  if (const char* name = dwfl_module_addrname(module, address); name != nullptr) {
    return Demangled(name);
  }
  const char* file =
      dwfl_module_info(module, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr);
  std::string path = file == nullptr ? "?" : file;
  return absl::StrCat("? in ", path.substr(path.rfind('/') + 1));
}

struct Walk {
  Dwfl* dwfl = nullptr;
  MonoTime deadline;
  std::vector<ThreadStack> threads;
  std::vector<pid_t> held;  // for a moment, each
};

int TakeFrame(Dwfl_Frame* frame, void* argument) {
  Walk& walk = *static_cast<Walk*>(argument);
  Dwarf_Addr address = 0;
  bool is_call_site = false;
  if (!dwfl_frame_pc(frame, &address, &is_call_site)) return DWARF_CB_ABORT;
  // A return address lies behind the call.
  Frames& frames = walk.threads.back().frames;
  frames.push_back(NameOf(walk.dwfl, is_call_site ? address : address - 1));
  return frames.size() < hangs::kStackFramesMax && MonoNow() < walk.deadline ? DWARF_CB_OK
                                                                             : DWARF_CB_ABORT;
}

int TakeThread(Dwfl_Thread* thread, void* argument) {
  Walk& walk = *static_cast<Walk*>(argument);
  if (walk.threads.size() >= kThreadsMax || MonoNow() >= walk.deadline) return DWARF_CB_ABORT;
  walk.held.push_back(dwfl_thread_tid(thread));
  walk.threads.push_back({.thread = walk.held.back()});
  dwfl_thread_getframes(thread, TakeFrame, argument);
  if (walk.threads.back().frames.empty()) walk.threads.pop_back();
  return DWARF_CB_OK;
}

// A thread that is killed while ptrace holds it stays until its tracer has waited for it, and its
// process ends for nobody else before. Who lives, was let go. A child of this process is left to
// its parent's wait.
void LetGoOfTheDead(pid_t pid, const std::vector<pid_t>& held) {
  const std::optional<ProcessInfo> process = ReadProcess(pid);
  if (!process || process->parent == getpid()) return;
  for (const pid_t thread : held) {
    while (waitpid(thread, nullptr, __WALL | __WNOTHREAD) < 0 && errno == EINTR) {
    }
  }
}

// A thread in state D does not stop for ptrace before the kernel lets it go.
bool HasUninterruptibleThread(pid_t pid) {
  const std::string tasks = absl::StrCat("/proc/", pid, "/task");
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(tasks.c_str()), &closedir);
  if (directory == nullptr) return false;
  while (const dirent* entry = readdir(directory.get())) {
    int thread = 0;
    if (!absl::SimpleAtoi(entry->d_name, &thread)) continue;
    const auto look = LookAtProcess(thread, MonoTime(), CountedThreads::kAll, tasks);
    if (look && look->state == 'D') return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<std::vector<ThreadStack>> ReadStacks(pid_t pid, MonoTime deadline) {
  if (HasUninterruptibleThread(pid)) {
    return absl::UnavailableError("it is in uninterruptible sleep");
  }
  absl::StatusOr<ProcessModules> modules = OpenProcessModules(pid);
  if (!modules.ok()) return modules.status();
  Dwfl* dwfl = modules->get();
  if (dwfl_linux_proc_attach(dwfl, pid, /*assume_ptrace_stopped=*/false) != 0) {
    const char* why = dwfl_errmsg(-1);
    return absl::UnavailableError(why == nullptr ? "it cannot be looked into" : why);
  }
  Walk walk{.dwfl = dwfl, .deadline = deadline};
  dwfl_getthreads(dwfl, TakeThread, &walk);
  LetGoOfTheDead(pid, walk.held);
  if (walk.threads.empty()) return absl::UnavailableError("none of its threads could be read");
  std::stable_sort(walk.threads.begin(), walk.threads.end(),
                   [pid](const ThreadStack& a, const ThreadStack& b) {
                     return (a.thread == pid) > (b.thread == pid);
                   });
  return walk.threads;
}

}  // namespace muster::agent
