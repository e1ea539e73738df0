#include "tests/support/emulation/guarded_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace muster::testing {
namespace {

constexpr size_t kAlignment = 256;

size_t RoundedUp(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

GuardedMemory::~GuardedMemory() {
  for (const auto* areas : {&live_, &freed_}) {
    for (const auto& [address, area] : *areas) munmap(area.pages, area.page_bytes);
  }
}

// Its end lies as near the guard behind it as its alignment allows.
void* GuardedMemory::Allocate(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t aligned = RoundedUp(std::max<size_t>(bytes, 1), kAlignment);
  Area area = {.bytes = bytes, .pages = nullptr, .page_bytes = RoundedUp(aligned, page) + 2 * page};
  void* pages =
      mmap(nullptr, area.page_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  MUSTER_CHECK(pages != MAP_FAILED);
  area.pages = static_cast<unsigned char*>(pages);
  unsigned char* memory = area.pages + area.page_bytes - page - aligned;
  live_.emplace(reinterpret_cast<uintptr_t>(memory), area);
  bytes_ += bytes;
  Protect(area, PROT_READ | PROT_WRITE);
  std::memset(memory, kMemoryPoison, aligned);
  Protect(area, PROT_NONE);
  return memory;
}

std::string GuardedMemory::Free(void* memory) {
  const auto found = live_.find(reinterpret_cast<uintptr_t>(memory));
  if (found == live_.end()) return "memory is freed that was not allocated, or was freed before";
  const Area area = found->second;
  Protect(area, PROT_READ | PROT_WRITE);
  const auto* slack = static_cast<const unsigned char*>(memory) + area.bytes;
  const size_t slack_bytes = RoundedUp(std::max<size_t>(area.bytes, 1), kAlignment) - area.bytes;
  const bool untouched = std::all_of(slack, slack + slack_bytes,
                                     [](unsigned char byte) { return byte == kMemoryPoison; });
  Protect(area, PROT_NONE);
  freed_.insert(live_.extract(found));
  MUSTER_CHECK(madvise(area.pages, area.page_bytes, MADV_DONTNEED) == 0);
  bytes_ -= area.bytes;
  if (untouched) return "";
  return absl::StrCat("something was written right behind an allocation of ", area.bytes, " bytes");
}

bool GuardedMemory::Holds(const void* memory, size_t bytes) const {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  auto after = live_.upper_bound(address);
  if (after == live_.begin()) return false;
  const auto& [first, area] = *--after;
  return address - first <= area.bytes && bytes <= area.bytes - (address - first);
}

void GuardedMemory::Protect(const Area& area, int protection) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  MUSTER_CHECK(mprotect(area.pages + page, area.page_bytes - 2 * page, protection) == 0);
}

void GuardedMemory::ProtectAll(int protection) const {
  for (const auto& [address, area] : live_) Protect(area, protection);
}

}  // namespace muster::testing
