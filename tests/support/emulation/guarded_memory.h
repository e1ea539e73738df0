// Memory of an emulated device: out of the host's reach but while the device works, and between
// pages that nobody may touch.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace muster::testing {

inline constexpr unsigned char kMemoryPoison = 0xff;  // of float and bf16: not a number

// Threads: thread-compatible.
class GuardedMemory {
 public:
  GuardedMemory() = default;
  ~GuardedMemory();
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  // Aligned to 256 bytes and full of poison. Whoever touches it outside of Open and Close, or a page beside
  // it, is ended by SIGSEGV.
  void* Allocate(size_t bytes);
  // From now on it may not be touched; its addresses are not used again. Empty, or what was wrong:
  // there is none, or the few bytes up to its last page's end were written to.
  std::string Free(void* memory);

  void Open() { ProtectAll(PROT_READ | PROT_WRITE); }
  void Close() { ProtectAll(PROT_NONE); }

  // Whether all of it lies in one allocation.
  bool Holds(const void* memory, size_t bytes) const;
  size_t bytes() const { return bytes_; }  // that were asked for
  size_t num_allocations() const { return live_.size(); }

 private:
  struct Area {
    size_t bytes;
    unsigned char* pages;  // the first is a guard
    size_t page_bytes;     // of all of them
  };
  static void Protect(const Area& area, int protection);
  void ProtectAll(int protection) const;

  std::map<uintptr_t, Area> live_;
  std::map<uintptr_t, Area> freed_;
  size_t bytes_ = 0;
};

}  // namespace muster::testing
