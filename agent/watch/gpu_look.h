// What a GPU does, seen from outside, as evidence in a hang: whether it computes, or only turns in
// a kernel that waits for another GPU, whether data moves, and what its driver says of it.
//
// Utilisation alone is no evidence: a kernel of NCCL that waits shows 100 %. One that waits reads
// and writes next to no memory, so that the memory controller tells the two apart.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agent/machine/nvml.h"
#include "proto/base/mono_time.h"
#include "rendezvous/hangs/evidence/incident_parts.h"

namespace muster::agent {

// What this GPU, driver or process may not be told is left empty.
struct GpuLook {
  std::string pci_address;
  std::vector<int> pids;              // of the processes that have a context on it
  std::optional<int> kernel_percent;  // of the last second or less: a kernel ran
  std::optional<int> memory_percent;  // its memory was read or written
  std::optional<int64_t> nvlink_kib;  // over all links, both ways, so far
  std::optional<int64_t> pcie_kib;    // per second, both ways
  std::string needs;                  // "a reset": in the driver's opinion; empty: nothing
  MonoTime at;
};

// Source: NVML API reference: nvmlDeviceGetUtilizationRates, nvmlDeviceGetPcieThroughput,
//         nvmlDeviceGetFieldValues, nvmlDeviceGetComputeRunningProcesses_v3.
std::vector<GpuLook> LookAtGpus(const Nvml& nvml, MonoTime now);

// "GPU 0000:3b:00.0 runs a kernel that moves no memory: it waits, NVLink 0 KiB/s". `before` is an
// earlier look at the same GPU.
//
// Threads: pure.
std::string InWords(const GpuLook& look, const GpuLook& before);

struct GpuLookOptions {
  std::string library = kNvmlLibrary;
  absl::Duration between = absl::Milliseconds(500);  // the two looks
};

// Adds to `doing` of each rank what the GPUs of its process, and of those below it, do. Adds
// nothing where NVML is not there, or does not know whose process is whose (in some containers).
//
// Threads: safe; blocks, for ever where the driver is stuck, so it is for a lane (rank_looks.h).
void AddGpusOfRanks(std::vector<hangs::RankReport>& ranks, const GpuLookOptions& options = {});

}  // namespace muster::agent
