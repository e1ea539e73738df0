#include "agent/watch/gpu_look.h"

#include <algorithm>
#include <climits>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/machine/descendants.h"

namespace muster::agent {
namespace {

constexpr int kProcessesMax = 64;
// Below these it only waits. A kernel that waits polls a flag now and then.
constexpr int kIdleMemoryPercent = 1;

struct NvmlUtilization {
  unsigned gpu, memory;
};
struct NvmlProcess {
  unsigned pid;
  unsigned long long used_memory;
  unsigned gpu_instance, compute_instance;
};

constexpr unsigned kAllLinks = UINT_MAX;
constexpr unsigned kFieldNvlinkSent = 138;  // NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, in KiB
constexpr unsigned kFieldNvlinkReceived = 139;
constexpr int kPcieSent = 0;  // NVML_PCIE_UTIL_TX_BYTES
constexpr int kPcieReceived = 1;

std::optional<int64_t> PcieOf(const Nvml& nvml, NvmlDevice device) {
  const auto get = nvml.Find<int (*)(NvmlDevice, int, unsigned*)>("nvmlDeviceGetPcieThroughput");
  unsigned sent = 0;
  unsigned received = 0;
  if (!get || get(device, kPcieSent, &sent) != kNvmlSuccess ||
      get(device, kPcieReceived, &received) != kNvmlSuccess) {
    return std::nullopt;
  }
  return int64_t{sent} + received;
}

std::vector<int> ProcessesOn(const Nvml& nvml, NvmlDevice device) {
  const auto get = nvml.Find<int (*)(NvmlDevice, unsigned*, NvmlProcess*)>(
      "nvmlDeviceGetComputeRunningProcesses_v3");
  std::vector<NvmlProcess> processes(kProcessesMax);
  unsigned count = kProcessesMax;
  std::vector<int> pids;
  if (!get || get(device, &count, processes.data()) != kNvmlSuccess) return pids;
  for (unsigned i = 0; i < std::min<unsigned>(count, kProcessesMax); ++i) {
    pids.push_back(static_cast<int>(processes[i].pid));
  }
  return pids;
}

GpuLook LookAt(const Nvml& nvml, NvmlDevice device, MonoTime now) {
  GpuLook look{.pci_address = nvml.PciAddressOf(device), .at = now};
  look.pids = ProcessesOn(nvml, device);
  const auto get_rates =
      nvml.Find<int (*)(NvmlDevice, NvmlUtilization*)>("nvmlDeviceGetUtilizationRates");
  NvmlUtilization rates = {};
  if (get_rates && get_rates(device, &rates) == kNvmlSuccess) {
    look.kernel_percent = static_cast<int>(rates.gpu);
    look.memory_percent = static_cast<int>(rates.memory);
  }
  const auto sent = nvml.FieldOf(device, kFieldNvlinkSent, kAllLinks);
  const auto received = nvml.FieldOf(device, kFieldNvlinkReceived, kAllLinks);
  if (sent && received) look.nvlink_kib = static_cast<int64_t>(*sent + *received);
  look.pcie_kib = PcieOf(nvml, device);
  look.needs = nvml.NeedOf(device);
  return look;
}

// Two looks at each GPU.
using Looks = std::vector<std::pair<GpuLook, GpuLook>>;

Looks LookTwice(const GpuLookOptions& options) {
  const Nvml nvml(options.library);
  Looks looks;
  if (!nvml.is_open()) return looks;
  for (GpuLook& look : LookAtGpus(nvml, MonoNow())) looks.emplace_back(std::move(look), GpuLook{});
  if (looks.empty()) return looks;
  absl::SleepFor(options.between);
  std::vector<GpuLook> second = LookAtGpus(nvml, MonoNow());
  looks.resize(std::min(looks.size(), second.size()));
  for (size_t i = 0; i < looks.size(); ++i) looks[i].second = std::move(second[i]);
  return looks;
}

}  // namespace

std::vector<GpuLook> LookAtGpus(const Nvml& nvml, MonoTime now) {
  std::vector<GpuLook> looks;
  for (const NvmlDevice device : nvml.Devices()) looks.push_back(LookAt(nvml, device, now));
  return looks;
}

std::string InWords(const GpuLook& look, const GpuLook& before) {
  std::string text = absl::StrCat("GPU ", look.pci_address);
  if (look.kernel_percent && look.memory_percent) {
    const bool runs = *look.kernel_percent > 0;
    const bool moves = *look.memory_percent > kIdleMemoryPercent;
    absl::StrAppend(&text, !runs   ? " runs nothing"
                           : moves ? " computes"
                                   : " runs a kernel that moves no memory: it waits");
    if (runs && moves) absl::StrAppend(&text, " (memory busy ", *look.memory_percent, " %)");
  }
  if (look.nvlink_kib && before.nvlink_kib && look.at > before.at) {
    const double seconds = absl::ToDoubleSeconds(look.at - before.at);
    const double rate = static_cast<double>(*look.nvlink_kib - *before.nvlink_kib) / seconds;
    absl::StrAppend(&text, ", NVLink ", static_cast<int64_t>(rate), " KiB/s");
  }
  if (look.pcie_kib) absl::StrAppend(&text, ", PCIe ", *look.pcie_kib, " KiB/s");
  if (!look.needs.empty()) absl::StrAppend(&text, "; its driver says that it needs ", look.needs);
  return text;
}

void AddGpusOfRanks(std::vector<hangs::RankReport>& ranks, const GpuLookOptions& options) {
  const Looks looks = LookTwice(options);
  for (hangs::RankReport& rank : ranks) {
    if (rank.pid == 0) continue;
    absl::btree_set<int> own = {rank.pid};
    for (const ProcessInfo& process : ListDescendants(rank.pid)) own.insert(process.pid);
    for (const auto& [before, look] : looks) {
      const bool is_its = std::any_of(look.pids.begin(), look.pids.end(),
                                      [&](int pid) { return own.contains(pid); });
      if (!is_its) continue;
      absl::StrAppend(&rank.doing, rank.doing.empty() ? "" : "; ", InWords(look, before));
    }
  }
}

}  // namespace muster::agent
