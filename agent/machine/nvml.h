// NVIDIA's management library, opened at run time. Where it is not there, or no driver is loaded,
// nothing is known of GPUs, and that is no error.
//
// Its calls can take tens of milliseconds, and with a broken GPU may never return: not on the loop,
// but for a job's start. NVML may start threads, so the guardian must have been forked before.
//
// Threads: compatible.
// Source: NVML API reference; its versioned names never change meaning.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/io/optional_library.h"

namespace muster::agent {

using NvmlDevice = void*;
inline constexpr int kNvmlSuccess = 0;
inline constexpr char kNvmlLibrary[] = "libnvidia-ml.so.1";

class Nvml {
 public:
  explicit Nvml(const std::string& library = kNvmlLibrary);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  bool is_open() const { return is_open_; }

  // nullptr: this version does not have it.
  template <typename Function>
  Function Find(const char* name) const {
    return library_.ok() ? library_->Find<Function>(name) : nullptr;
  }

  // The GPUs that this process may use, in PCI order. Only while it is open, as below.
  std::vector<NvmlDevice> Devices() const;
  // "0000:3b:00.0", as sysfs spells it; empty: not known.
  std::string PciAddressOf(NvmlDevice device) const;
  // A field of nvmlDeviceGetFieldValues; none: the driver does not say.
  std::optional<unsigned long long> FieldOf(NvmlDevice device, unsigned field,
                                            unsigned scope = 0) const;
  // What the driver says that the device needs: "a reset"; empty: nothing, or it does not say.
  std::string NeedOf(NvmlDevice device) const;

 private:
  const absl::StatusOr<OptionalLibrary> library_;
  bool is_open_ = false;
};

}  // namespace muster::agent
