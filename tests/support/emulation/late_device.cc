#include "tests/support/emulation/late_device.h"

#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "proto/base/status_macros.h"
#include "tests/support/emulation/counting_cuda.h"
#include "tests/support/emulation/emulated_stream.h"
#include "worker_runtime/cuda/cuda_device.h"
#include "worker_runtime/cuda/make_cuda_device.h"
#include "worker_runtime/nn/kernel_table.h"
#include "worker_runtime/nn/operation_arguments.h"
#include "worker_runtime/nn/operations.h"

namespace muster::testing {
namespace {

// Arguments as they are kept until the kernel runs. Of tensors only the place: as on a GPU, their
// memory may go back to its pool before.
struct Keep {
  Tensor operator()(const Tensor& x) const {
    return x.empty() ? Tensor() : Tensor::Borrow(x.raw_data(), x.dtype(), x.shape());
  }
  template <typename T>
  std::vector<T> operator()(absl::Span<const T> values) const {
    return {values.begin(), values.end()};
  }
  template <typename Other>
  Other operator()(const Other& other) const {
    return other;
  }
};

// The host's kernels for `kType`, put on the device's stream.
template <DType kType>
struct Late {
  template <auto kMember, Role... kRoles>
  struct Kernel;
  template <typename Result, typename... Args, Result (*Operations::*kMember)(Queue&, Args...),
            Role... kRoles>
  struct Kernel<kMember, kRoles...> {
    static Result Run(Queue& queue, Args... args) {
      const CudaDevice& device = CudaDevice::Of(queue);
      const Keep keep;
      const auto kept = std::make_tuple(MapParts(args, keep)...);
      const kernels::LaunchError error =
          EmulatedStream::Of(device.stream(queue)).Enqueue([kept]() -> std::string {
            Queue host(Device::Cpu());
            const auto kernel = Device::Cpu().operations(kType).*kMember;
            std::apply(
                [&](const auto&... each) { kernel(host, FromParts<std::decay_t<Args>>(each)...); },
                kept);
            return "";
          });
      device.Keep(error);
      if constexpr (!std::is_void_v<Result>) return {.loss = NAN, .num_tokens = -1};
    }
  };
};

const Operations& LateOperations(DType dtype) {
  static constexpr Operations kF32 = TableOfForm<Late<DType::kF32>>();
  static constexpr Operations kBf16 = TableOfForm<Late<DType::kBf16>>();
  static constexpr Operations kF16 = TableOfForm<Late<DType::kF16>>();
  if (dtype == DType::kF32) return kF32;
  if (dtype == DType::kBf16) return kBf16;
  MUSTER_CHECK(dtype == DType::kF16);
  return kF16;
}

}  // namespace

std::unique_ptr<Device> MakeLateDevice(CudaApi& cuda) {
  return *MakeCudaDevice({.cuda = std::make_unique<CountingCuda>(cuda),
                          .products = nullptr,
                          .operations = &LateOperations});
}

}  // namespace muster::testing
