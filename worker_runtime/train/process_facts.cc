#include "worker_runtime/train/process_facts.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

#include "worker_runtime/train/loss_curve.h"
#include "worker_runtime/train/training_report.h"

namespace muster::train {
namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

int64_t OwnResidentBytes() {
  std::ifstream file("/proc/self/status");
  return ResidentBytes(std::string(std::istreambuf_iterator<char>(file), {}));
}

int64_t MachineBytes() {
  const int64_t pages = sysconf(_SC_PHYS_PAGES);
  const int64_t page_bytes = sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page_bytes <= 0) return std::numeric_limits<int64_t>::max();
  return pages * page_bytes;
}

bool TerminalIsUtf8() {
  return IsUtf8Locale(Variable("LC_ALL"), Variable("LC_CTYPE"), Variable("LANG"));
}

}  // namespace muster::train
