// A GPU's memory, for the tests of its kernels.
#include <cuda_runtime_api.h>

#include <string>

#include "tests/support/kernel_memory.h"

namespace muster::testing {

std::string WhyKernelsCannotRun() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return "";
  return std::string("no GPU to run kernels on: ") + cudaGetErrorString(error);
}

void SetKernelSchedule(uint64_t) {}  // a GPU has its own, another every time

size_t KernelSharedBytesMax() {
  int device = 0, bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return static_cast<size_t>(bytes);
}

void* TakeKernelMemory(size_t bytes) {
  void* memory = nullptr;
  return cudaMalloc(&memory, bytes > 0 ? bytes : 1) == cudaSuccess ? memory : nullptr;
}

void GiveBackKernelMemory(void* memory) { cudaFree(memory); }

void CopyToKernels(const void* from, void* to, size_t bytes) {
  cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice);
}

const char* CopyFromKernels(const void* from, void* to, size_t bytes) {
  const cudaError_t error = cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace muster::testing
