#include "tests/support/emulation/guarded_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace muster::testing {
namespace {

constexpr size_t kAlignment = 256;
// MADV_GUARD_INSTALL, which the C library may not know yet.
constexpr int kInstallGuard = 102;

size_t RoundedUp(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

size_t PageBytes() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

unsigned char* Reserve(size_t bytes) {
  void* pages = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  MUSTER_CHECK(pages != MAP_FAILED);
  return static_cast<unsigned char*>(pages);
}

void Protect(unsigned char* pages, size_t bytes, int protection) {
  MUSTER_CHECK(mprotect(pages, bytes, protection) == 0);
}

}  // namespace

GuardedMemory::Guards GuardedMemory::GuardsOfThisKernel() {
  static const Guards guards = [] {
    unsigned char* const page = Reserve(PageBytes());
    const bool marks = madvise(page, PageBytes(), kInstallGuard) == 0;
    munmap(page, PageBytes());
    return marks ? Guards::kMarks : Guards::kProtection;
  }();
  return guards;
}

GuardedMemory::~GuardedMemory() {
  for (const Region& region : regions_) munmap(region.pages.first, region.pages.bytes);
}

// The pages have a guard before them and one behind.
GuardedMemory::Pages GuardedMemory::Take(size_t bytes) {
  const size_t page = PageBytes();
  if (regions_.empty() || regions_.back().pages.bytes - regions_.back().used_bytes < bytes + page) {
    const size_t region_bytes = std::max(RoundedUp(region_bytes_, page), bytes + 2 * page);
    regions_.push_back(
        {.pages = {.first = Reserve(region_bytes), .bytes = region_bytes}, .used_bytes = 0});
    Seal({.first = regions_.back().pages.first, .bytes = page});
    regions_.back().used_bytes = page;
  }
  Region& region = regions_.back();
  const Pages taken = {.first = region.pages.first + region.used_bytes, .bytes = bytes};
  region.used_bytes += bytes + page;
  Seal({.first = taken.first + bytes, .bytes = page});
  return taken;
}

// Seals pages for good. What they held is lost.
void GuardedMemory::Seal(Pages pages) const {
  const int advice = guards_ == Guards::kMarks ? kInstallGuard : MADV_DONTNEED;
  MUSTER_CHECK(madvise(pages.first, pages.bytes, advice) == 0);
}

// Its end lies as near the guard behind it as its alignment allows.
void* GuardedMemory::Allocate(size_t bytes) {
  const size_t aligned = RoundedUp(std::max<size_t>(bytes, 1), kAlignment);
  const Pages pages = Take(RoundedUp(aligned, PageBytes()));
  unsigned char* memory = pages.first + pages.bytes - aligned;
  live_.emplace(reinterpret_cast<uintptr_t>(memory), Area{.bytes = bytes, .pages = pages});
  bytes_ += bytes;
  Protect(pages.first, pages.bytes, PROT_READ | PROT_WRITE);
  std::memset(memory, kMemoryPoison, aligned);
  Protect(pages.first, pages.bytes, PROT_NONE);
  return memory;
}

std::string GuardedMemory::Free(void* memory) {
  const auto found = live_.find(reinterpret_cast<uintptr_t>(memory));
  if (found == live_.end()) return "memory is freed that was not allocated, or was freed before";
  const Area area = found->second;
  Protect(area.pages.first, area.pages.bytes, PROT_READ | PROT_WRITE);
  const auto* slack = static_cast<const unsigned char*>(memory) + area.bytes;
  const size_t slack_bytes = RoundedUp(std::max<size_t>(area.bytes, 1), kAlignment) - area.bytes;
  const bool untouched = std::all_of(slack, slack + slack_bytes,
                                     [](unsigned char byte) { return byte == kMemoryPoison; });
  Protect(area.pages.first, area.pages.bytes, PROT_NONE);
  Seal(area.pages);
  live_.erase(found);
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

void GuardedMemory::Open() const { ProtectAll(PROT_READ | PROT_WRITE); }

void GuardedMemory::Close() const { ProtectAll(PROT_NONE); }

void GuardedMemory::ProtectAll(int protection) const {
  if (guards_ == Guards::kMarks) {
    for (const Region& region : regions_) {
      Protect(region.pages.first, region.used_bytes, protection);
    }
  } else {
    for (const auto& [address, area] : live_) {
      Protect(area.pages.first, area.pages.bytes, protection);
    }
  }
}

}  // namespace muster::testing
