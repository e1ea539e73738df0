#include "agent/machine/gpu_inventory.h"

#include <algorithm>
#include <cctype>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "agent/machine/device_binding.h"
#include "agent/machine/nvml.h"
#include "proto/io/read_file.h"

namespace muster::agent {
namespace {

int ReadNumaNode(const std::string& pci_address) {
  int node = -1;
  const std::string text = TextOf(absl::StrCat("/sys/bus/pci/devices/", pci_address, "/numa_node"));
  return absl::SimpleAtoi(text, &node) ? node : -1;
}

std::vector<Gpu> ListByNvml(const Nvml& nvml) {
  const auto get_uuid = nvml.Find<int (*)(NvmlDevice, char*, unsigned)>("nvmlDeviceGetUUID");
  std::vector<Gpu> gpus;
  for (const NvmlDevice device : nvml.Devices()) {
    Gpu gpu{.pci_address = nvml.PciAddressOf(device)};
    char uuid[96] = {};
    if (get_uuid && get_uuid(device, uuid, sizeof(uuid)) == kNvmlSuccess) gpu.uuid = uuid;
    if (!gpu.pci_address.empty()) gpu.numa_node = ReadNumaNode(gpu.pci_address);
    gpus.push_back(gpu);
  }
  return gpus;
}

// The GPU that one entry of CUDA_VISIBLE_DEVICES names; a UUID may be shortened.
const Gpu* FindGpu(const std::vector<Gpu>& gpus, const std::string& entry) {
  size_t index = 0;
  if (absl::SimpleAtoi(entry, &index)) return index < gpus.size() ? &gpus[index] : nullptr;
  const auto named = std::find_if(
      gpus.begin(), gpus.end(), [&](const Gpu& gpu) { return absl::StartsWith(gpu.uuid, entry); });
  return named != gpus.end() ? &*named : nullptr;
}

}  // namespace

size_t CountGpuFiles() {
  return absl::c_count_if(NamesIn("/dev"), [](absl::string_view name) {
    return absl::ConsumePrefix(&name, "nvidia") && !name.empty() &&
           absl::c_all_of(name, absl::ascii_isdigit);
  });
}

std::vector<Gpu> ListGpus() {
  const Nvml nvml;
  return nvml.is_open() ? ListByNvml(nvml) : std::vector<Gpu>(CountGpuFiles());
}

std::vector<Gpu> SelectVisibleGpus(const std::vector<Gpu>& gpus,
                                   const std::optional<std::string>& visible_devices) {
  if (!visible_devices) return gpus;
  std::vector<Gpu> visible;
  if (gpus.empty()) return visible;
  const bool uuids_known = !gpus.front().uuid.empty();
  for (const std::string& entry : SplitVisibleDevices(*visible_devices)) {
    const bool is_mig = absl::StartsWith(entry, "MIG");
    const bool is_unknown_uuid = !uuids_known && absl::StartsWith(entry, "GPU-");
    const Gpu* const gpu = FindGpu(gpus, entry);
    if (gpu == nullptr && !is_mig && !is_unknown_uuid) break;
    visible.push_back(gpu != nullptr ? *gpu : Gpu{.uuid = entry});
  }
  return visible;
}

int CountGpus(const std::optional<std::string>& visible_devices) {
  if (visible_devices && SplitVisibleDevices(*visible_devices).empty()) return 0;
  return static_cast<int>(SelectVisibleGpus(ListGpus(), visible_devices).size());
}

}  // namespace muster::agent
