#include "agent/watch/process_modules.h"

namespace muster::agent {
namespace {

int NoDebugInfo(Dwfl_Module*, void**, const char*, Dwarf_Addr, const char*, const char*, GElf_Word,
                char**) {
  return -1;
}

}  // namespace

absl::StatusOr<ProcessModules> OpenProcessModules(pid_t pid) {
  // elfutils keeps the address.
  static constexpr Dwfl_Callbacks kCallbacks = {.find_elf = dwfl_linux_proc_find_elf,
                                                .find_debuginfo = NoDebugInfo};
  ProcessModules modules(dwfl_begin(&kCallbacks), &dwfl_end);
  if (modules != nullptr) {
    dwfl_report_begin(modules.get());
    if (dwfl_linux_proc_report(modules.get(), pid) == 0 &&
        dwfl_report_end(modules.get(), nullptr, nullptr) == 0) {
      return modules;
    }
  }
  const char* why = dwfl_errmsg(-1);
  return absl::UnavailableError(why == nullptr ? "it cannot be looked into" : why);
}

}  // namespace muster::agent
