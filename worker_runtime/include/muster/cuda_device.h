// GPUs as devices.
//
//   MUSTER_ASSIGN_OR_RETURN(const std::unique_ptr<Device> gpu, OpenCudaDevice(0));
//   TensorPool pool(*gpu);
//
// It computes in f32, bf16 and f16. Its kernels run in the order of their queue, later than the
// call; what one of them failed with is said by Device::Download.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "muster/cuda_attention.h"
#include "muster/device.h"
#include "muster/dtype.h"

namespace muster {

constexpr bool CudaComputesIn(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBf16 || dtype == DType::kF16;
}

// What a device takes for itself, beside what pools do: of the GPU, for products to work in; and of
// the host at most, pinned, for copies to pass through, if one thread copies at a time.
inline constexpr int64_t kCudaWorkspaceBytes = int64_t{32} << 20;
inline constexpr int64_t kCudaPinnedBytesMax = int64_t{72} << 20;

struct CudaDeviceOptions {
  CudaAttention attention = CudaAttention::kAuto;
  // All has the same bits in every run. Else gradients of cuDNN's attention differ in their last
  // bits from run to run, and GELU may, which is computed in the way that was quicker when this
  // device did it first.
  bool same_bits = false;
};

// The number of GPUs that this process may use.
//
// Errors: kUnavailable: no driver. kUnimplemented: this program is linked without CUDA.
absl::StatusOr<int> CountCudaDevices();

// "NVIDIA H100 80GB HBM3". Errors: as below.
absl::StatusOr<std::string> CudaDeviceName(int number);

// The GPU of that number. Pools and queues of it must not outlive it.
//
// Errors: as above; kUnavailable: no GPU, one that the kernels are not compiled for, no cuBLASLt,
// or no cuDNN where it must be. kInvalidArgument: no GPU of that
//         number.
absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int number, CudaDeviceOptions options = {});

// The libraries that a GPU's programs open at run time, a line for each: the file that would be
// taken, "cuBLASLt (/usr/local/cuda/lib64/libcublasLt.so.13)", or why there is none. They are
// looked for where the dynamic loader looks, then in the pip packages of PyTorch in this program's
// Python environment or the active one.
std::vector<std::string> DescribeCudaLibraries();

}  // namespace muster
