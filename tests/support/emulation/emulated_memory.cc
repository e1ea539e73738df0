// The host's memory as that of kernels. Each array is an allocation of its own, so that
// AddressSanitizer sees what is read or written beside it.
#include <cstring>
#include <string>

#include "tests/support/emulation/block_emulator.h"
#include "tests/support/kernel_memory.h"

namespace muster::testing {

std::string WhyKernelsCannotRun() { return ""; }

void SetKernelSchedule(uint64_t seed) { BlockEmulator::SetSchedule(seed); }

size_t KernelSharedBytesMax() { return BlockEmulator::shared_bytes_max; }

void* TakeKernelMemory(size_t bytes) { return new unsigned char[bytes]; }

void GiveBackKernelMemory(void* memory) { delete[] static_cast<unsigned char*>(memory); }

void CopyToKernels(const void* from, void* to, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

const char* CopyFromKernels(const void* from, void* to, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return nullptr;
}

}  // namespace muster::testing
