// Memory of an emulated device: out of the host's reach but while the device works, and between
// pages that nobody may touch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace muster::testing {

inline constexpr unsigned char kMemoryPoison = 0xff;  // of float and bf16: not a number

// Threads: thread-compatible.
class GuardedMemory {
 public:
  // How pages are kept from everyone. Marks need Linux 6.13 and leave all memory one mapping, which
  // opens and closes in one step; with protection each allocation is a mapping of its own.
  enum class Guards { kMarks, kProtection };
  static Guards GuardsOfThisKernel();

  // `region_bytes`: of addresses, which are taken as many at a time or, for what is larger, more.
  explicit GuardedMemory(Guards guards = GuardsOfThisKernel(),
                         size_t region_bytes = size_t{1} << 30)
      : guards_(guards), region_bytes_(region_bytes) {}
  ~GuardedMemory();
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  // Aligned to 256 bytes and full of poison. Code that touches it outside of Open and Close, or a
  // page beside it, is ended by SIGSEGV.
  void* Allocate(size_t bytes);
  // Frees `memory`, which may not be touched from now on; its addresses are not used again. Returns
  // nothing, or what was wrong: there is none, or the few bytes up to its last page's end were
  // written to.
  std::string Free(void* memory);

  void Open() const;
  void Close() const;

  // Whether all of it lies in one allocation.
  bool Holds(const void* memory, size_t bytes) const;
  size_t bytes() const { return bytes_; }  // that were asked for
  size_t num_allocations() const { return live_.size(); }

 private:
  struct Pages {
    unsigned char* first;
    size_t bytes;
  };
  // Addresses, of which the first are used. They begin with a guard.
  struct Region {
    Pages pages;
    size_t used_bytes;
  };
  struct Area {
    size_t bytes;
    Pages pages;
  };
  Pages Take(size_t bytes);
  void Seal(Pages pages) const;
  void ProtectAll(int protection) const;

  const Guards guards_;
  const size_t region_bytes_;
  std::vector<Region> regions_;
  std::map<uintptr_t, Area> live_;
  size_t bytes_ = 0;
};

}  // namespace muster::testing
