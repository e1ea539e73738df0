#include "worker_runtime/comm/nccl/cuda_resources.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace muster::comm {
namespace {

// Calls of CUDA's driver, which alone says whether a thread has a context without making one; null
// where it has no such function.
struct DriverCalls {
  decltype(&cuCtxGetCurrent) get_context = nullptr;
  decltype(&cuCtxSetCurrent) set_context = nullptr;
};
template <typename Function>
void Find(const char* name, Function& function) {
  constexpr unsigned kSince = 12000;
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &found, kSince, cudaEnableDefault, &result);
  if (error == cudaSuccess && result == cudaDriverEntryPointSuccess) {
    function = reinterpret_cast<Function>(found);
  }
}
const DriverCalls& Driver() {
  static const DriverCalls calls = [] {
    DriverCalls found;
    Find("cuCtxGetCurrent", found.get_context);
    Find("cuCtxSetCurrent", found.set_context);
    return found;
  }();
  return calls;
}

}  // namespace

absl::Status CudaStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const absl::string_view name = what.substr(0, what.find('('));
  const std::string text = absl::StrCat(name, " failed: ", cudaGetErrorString(error));
  return error == cudaErrorMemoryAllocation ? absl::ResourceExhaustedError(text)
                                            : absl::InternalError(text);
}

absl::StatusOr<int> ChooseDevice(int local_rank) {
  int num_devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&num_devices);
  if (error != cudaSuccess) cudaGetLastError();  // or it would show up in the next call of anybody
  if (error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice || num_devices == 0) {
    return absl::UnavailableError(absl::StrCat(
        error == cudaErrorInsufficientDriver
            ? "this machine has no NVIDIA driver, or one that is older than this program's CUDA"
            : "this process sees no NVIDIA GPU (does CUDA_VISIBLE_DEVICES name one?)",
        " (", cudaGetErrorString(error),
        "); use backend gloo, or run it where nvidia-smi lists a "
        "GPU"));
  }
  if (error != cudaSuccess) {
    return absl::UnavailableError(
        absl::StrCat("the GPUs cannot be counted: ", cudaGetErrorString(error)));
  }
  if (num_devices == 1) return 0;
  if (local_rank < num_devices) return local_rank;
  return absl::InvalidArgumentError(
      absl::StrCat("local rank ", local_rank, " has no GPU for itself: this process sees ",
                   num_devices, "; start one worker per GPU (--nproc_per_node=gpu)"));
}

void UseDevice(int device) { cudaSetDevice(device); }

DeviceGuard::DeviceGuard(int device) {
  const DriverCalls& driver = Driver();
  if (driver.get_context != nullptr) driver.get_context(&previous_);
  cudaSetDevice(device);
}

DeviceGuard::~DeviceGuard() {
  const DriverCalls& driver = Driver();
  if (driver.set_context != nullptr) driver.set_context(previous_);
}

bool IsDeviceMemory(const void* data) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, data) != cudaSuccess) {
    cudaGetLastError();  // older versions call plain host memory an error
    return false;
  }
  return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
}

absl::StatusOr<DeviceStream> DeviceStream::Make() {
  cudaStream_t stream = nullptr;
  // Kernels of collectives are few and awaited: they go before the waves of products that are under
  // way.
  int lowest = 0, highest = 0;
  MUSTER_CUDA_RETURN_IF_ERROR(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  MUSTER_CUDA_RETURN_IF_ERROR(
      cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest));
  return DeviceStream(stream);
}

DeviceStream::DeviceStream(DeviceStream&& other) noexcept
    : stream_(std::exchange(other.stream_, nullptr)),
      free_(std::move(other.free_)),
      all_(std::move(other.all_)),
      free_events_(std::move(other.free_events_)),
      all_events_(std::move(other.all_events_)) {}

DeviceStream::~DeviceStream() {
  if (stream_ == nullptr) return;
  for (const Block& block : all_) {
    if (block.on_host) {
      cudaFreeHost(block.data);
    } else {
      cudaFreeAsync(block.data, stream_);
    }
  }
  for (const cudaEvent_t event : all_events_) cudaEventDestroy(event);
  cudaStreamDestroy(stream_);
}

absl::StatusOr<DeviceStream::Block> DeviceStream::Take(size_t bytes, bool on_host) {
  const auto fits = std::find_if(free_.begin(), free_.end(), [&](const Block& block) {
    return block.on_host == on_host && block.bytes >= bytes;
  });
  if (fits != free_.end()) {
    const Block block = *fits;
    free_.erase(fits);
    return block;
  }
  Block block{.bytes = std::bit_ceil(std::max<size_t>(bytes, 4096)), .on_host = on_host};
  if (on_host) {
    MUSTER_CUDA_RETURN_IF_ERROR(cudaHostAlloc(&block.data, block.bytes, cudaHostAllocDefault));
  } else {
    MUSTER_CUDA_RETURN_IF_ERROR(cudaMallocAsync(&block.data, block.bytes, stream_));
  }
  all_.push_back(block);
  return block;
}

void DeviceStream::GiveBack(const std::vector<Block>& blocks) {
  free_.insert(free_.end(), blocks.begin(), blocks.end());
}

absl::StatusOr<cudaEvent_t> DeviceStream::TakeEvent() {
  if (!free_events_.empty()) {
    const cudaEvent_t event = free_events_.back();
    free_events_.pop_back();
    return event;
  }
  cudaEvent_t event = nullptr;
  MUSTER_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  all_events_.push_back(event);
  return event;
}

}  // namespace muster::comm
