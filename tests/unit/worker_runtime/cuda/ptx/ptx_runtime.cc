#include "tests/unit/worker_runtime/cuda/ptx/ptx_runtime.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/support/kernel_memory.h"

namespace muster::testing {
namespace {

// --- Where nvcc puts the code of a file. Source: the headers that cuda-gdb and cuobjdump read,
// seen in nvcc 13.0's output

struct Wrapper {
  int magic, version;
  const unsigned char* data;
  void* others;
};
struct FatHeader {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;  // behind the header
};
struct PartHeader {
  uint16_t kind, version;
  uint32_t header_bytes;
  uint64_t bytes;  // behind the header
};
constexpr uint32_t kFatMagic = 0xba55ed50;
constexpr uint16_t kPtxKind = 1;

template <typename T>
T ReadAt(const unsigned char* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

// Empty: it has none, or it is compressed.
std::string PtxOf(const unsigned char* fat) {
  const auto header = ReadAt<FatHeader>(fat);
  if (header.magic != kFatMagic) return "";
  const unsigned char* at = fat + header.header_bytes;
  const unsigned char* const end = at + header.bytes;
  while (at < end) {
    const auto part = ReadAt<PartHeader>(at);
    if (part.kind == kPtxKind) {
      const std::string text(reinterpret_cast<const char*>(at) + part.header_bytes, part.bytes);
      return text.find(".version") == text.npos ? "" : text;
    }
    at += part.header_bytes + part.bytes;
  }
  return "";
}

struct Module {
  const unsigned char* fat = nullptr;
  std::string ptx;  // read at the first launch
};
struct Kernel {
  Module* module = nullptr;
  std::string name;
  std::unique_ptr<PtxEntry> entry;  // parsed at the first launch
  size_t dynamic_shared_max = 48 * 1024;
};

// Objects register before main, in whatever order.
struct State {
  std::vector<std::unique_ptr<Module>> modules;
  std::map<const void*, std::unique_ptr<Kernel>> kernels;
  PtxMemory memory;
  std::map<std::string, PtxTraffic> traffic;
  uint64_t schedule = 1;
  std::string failure;  // of the last launch
  std::string told;     // lives as long as cudaGetErrorString says
  struct {
    dim3 grid, block;
    size_t shared_bytes = 0;
  } configuration;
};
State& TheState() {
  static auto& state = *new State();
  return state;
}

std::string Launch(Kernel& kernel, dim3 grid, dim3 block, void** arguments, size_t shared_bytes) {
  State& state = TheState();
  if (kernel.entry == nullptr) {
    if (kernel.module->ptx.empty()) kernel.module->ptx = PtxOf(kernel.module->fat);
    if (kernel.module->ptx.empty()) return "the object has no PTX that is not compressed";
    auto entry = ParsePtx(kernel.module->ptx, kernel.name);
    if (!entry.ok()) return absl::StrCat(kernel.name, ": ", entry.status().message());
    kernel.entry = std::make_unique<PtxEntry>(*std::move(entry));
  }
  if (grid.y > 65535 || grid.z != 1 || block.y != 1 || block.z != 1)
    return "a grid that no GPU takes";
  if (shared_bytes > kernel.dynamic_shared_max) {
    return absl::StrCat(shared_bytes, " bytes of shared memory without having asked for them");
  }
  const PtxEntry& entry = *kernel.entry;
  std::vector<unsigned char> bytes(entry.parameter_bytes);
  for (size_t i = 0; i < entry.parameters.size(); ++i) {
    std::memcpy(bytes.data() + entry.parameters[i].offset, arguments[i], entry.parameters[i].bytes);
  }
  return RunPtx(
      entry,
      {.blocks_x = grid.x, .blocks_y = grid.y, .threads = block.x, .shared_bytes = shared_bytes},
      bytes, state.memory, state.schedule, &state.traffic[kernel.name]);
}

}  // namespace

PtxMemory& KernelMemory() { return TheState().memory; }

std::map<std::string, PtxTraffic> TakeKernelTraffic() {
  return std::exchange(TheState().traffic, {});
}

// --- kernel_memory.h

std::string WhyKernelsCannotRun() {
  for (const auto& module : TheState().modules) {
    if (PtxOf(module->fat).empty())
      return "the kernels' PTX is compressed: this build is for several architectures";
    break;
  }
  return "";
}
void SetKernelSchedule(uint64_t seed) { TheState().schedule = seed; }
size_t KernelSharedBytesMax() { return size_t{227} << 10; }  // an H100's
void* TakeKernelMemory(size_t bytes) { return TheState().memory.Take(bytes); }
void GiveBackKernelMemory(void* memory) { TheState().memory.GiveBack(memory); }
// Poison is no number that was written: a kernel that reads it is told.
void CopyToKernels(const void* from, void* to, size_t bytes) {
  if (bytes == 0) return;
  std::memcpy(to, from, bytes);
  const auto* const begin = static_cast<const unsigned char*>(from);
  if (std::any_of(begin, begin + bytes, [](unsigned char byte) { return byte != 0xff; })) {
    TheState().memory.MarkWritten(to, bytes);
  }
}
const char* CopyFromKernels(const void* from, void* to, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return nullptr;
}

}  // namespace muster::testing

// --- What nvcc's objects call. Source: crt/host_runtime.h of CUDA 13.0

using muster::testing::Kernel;
using muster::testing::Module;
using muster::testing::TheState;

extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
  auto module = std::make_unique<Module>();
  module->fat = static_cast<const muster::testing::Wrapper*>(wrapper)->data;
  TheState().modules.push_back(std::move(module));
  return reinterpret_cast<void**>(TheState().modules.back().get());
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterFunction(void** module, const char* function, char*, const char* name, int,
                            void*, void*, void*, void*, int*) {
  auto kernel = std::make_unique<Kernel>();
  kernel->module = reinterpret_cast<Module*>(module);
  kernel->name = name;
  TheState().kernels[function] = std::move(kernel);
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, void*) {
  TheState().configuration = {grid, block, shared_bytes};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes,
                                       void* stream) {
  *grid = TheState().configuration.grid;
  *block = TheState().configuration.block;
  *shared_bytes = TheState().configuration.shared_bytes;
  *static_cast<void**>(stream) = nullptr;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* handle, const void* function) {
  *handle = reinterpret_cast<cudaKernel_t>(TheState().kernels.at(function).get());
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t handle, dim3 grid, dim3 block, void** arguments,
                               size_t shared_bytes, cudaStream_t) {
  auto& kernel = *reinterpret_cast<Kernel*>(handle);
  TheState().failure = muster::testing::Launch(kernel, grid, block, arguments, shared_bytes);
  return TheState().failure.empty() ? cudaSuccess : cudaErrorLaunchFailure;
}
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize ||
      static_cast<size_t>(value) > muster::testing::KernelSharedBytesMax()) {
    return cudaErrorInvalidValue;
  }
  TheState().kernels.at(function)->dynamic_shared_max = static_cast<size_t>(value);
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  TheState().told = std::exchange(TheState().failure, "");
  return TheState().told.empty() ? cudaSuccess : cudaErrorLaunchFailure;
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorLaunchFailure ? TheState().told.c_str()
                                         : "a call that this runtime refuses";
}

}  // extern "C"
