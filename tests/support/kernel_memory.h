// The memory in which tests of a CUDA device's kernels run them: on the block emulator, over the
// host's memory (tests/support/emulation/emulated_memory.cc), or on a GPU
// (tests/gpu/device_memory.cc). The tests are the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace muster::testing {

// Empty, or why not.
std::string WhyKernelsCannotRun();

// Another seed, another order of blocks and threads, where the order can be chosen.
void SetKernelSchedule(uint64_t seed);

// What a block may ask for.
size_t KernelSharedBytesMax();

// Memory of exactly so many bytes, aligned to 16, that begins with anything. Null: there is no
// more.
void* TakeKernelMemory(size_t bytes);
void GiveBackKernelMemory(void* memory);
void CopyToKernels(const void* from, void* to, size_t bytes);
// Copies after all kernels that were launched. Null, or what one of them failed with.
const char* CopyFromKernels(const void* from, void* to, size_t bytes);

// An array that kernels work on.
template <typename T>
class KernelArray {
 public:
  explicit KernelArray(const std::vector<T>& numbers)
      : data_(static_cast<T*>(TakeKernelMemory(numbers.size() * sizeof(T)))),
        size_(numbers.size()) {
    CopyToKernels(numbers.data(), data_, size_ * sizeof(T));
  }
  // Every byte 0xff: of float and bf16 not a number.
  static KernelArray Poisoned(size_t size) {
    std::vector<T> poison(size);
    if (size > 0) std::memset(static_cast<void*>(poison.data()), 0xff, size * sizeof(T));
    return KernelArray(poison);
  }
  KernelArray(const KernelArray&) = delete;
  KernelArray& operator=(const KernelArray&) = delete;
  ~KernelArray() { GiveBackKernelMemory(data_); }

  T* data() const { return data_; }
  size_t size() const { return size_; }
  // Nothing if a kernel failed.
  std::vector<T> Read() const {
    std::vector<T> numbers(size_);
    if (CopyFromKernels(data_, numbers.data(), size_ * sizeof(T)) != nullptr) numbers.clear();
    return numbers;
  }

 private:
  T* data_;
  size_t size_;
};

}  // namespace muster::testing
