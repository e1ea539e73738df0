// Finds the GPUs of this node: through NVML, opened at run time, or else by their device files.
//
// Asking NVML can take tens of milliseconds; callers ask once, and only if the answer matters
// (`NeedsGpuCount`).
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace muster::agent {

struct Gpu {
  std::string uuid;         // "GPU-…"; empty if NVML is not there
  std::string pci_address;  // "0000:3b:00.0", as sysfs spells it; empty if NVML is not there
  int numa_node = -1;       // -1: not known
};

// The GPUs that this process may use, in PCI order; empty without any.
//
// Threads: safe. NVML may start threads, so the guardian must have been forked before.
std::vector<Gpu> ListGpus();

// The GPUs that the driver has made files for. Threads: safe.
size_t CountGpuFiles();

// Those that CUDA shows under `visible_devices` (a CUDA_VISIBLE_DEVICES value; none: not set), in
// its order. A MIG device stands for itself, without an address. Indices mean PCI order here, while
// CUDA puts the fastest first: they differ only on nodes with unlike GPUs.
//
// Threads: pure.
std::vector<Gpu> SelectVisibleGpus(const std::vector<Gpu>& gpus,
                                   const std::optional<std::string>& visible_devices);

// SelectVisibleGpus(ListGpus(), visible_devices).size()
int CountGpus(const std::optional<std::string>& visible_devices);

}  // namespace muster::agent
