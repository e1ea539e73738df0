#include "agent/process/gpu_inventory.h"

#include <dlfcn.h>
#include <sched.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "agent/process/device_binding.h"

namespace muster::agent {
namespace {

// The part of NVML's ABI that is used; its versioned names never change meaning.
// Source: NVML API reference, nvmlInit_v2 to nvmlDeviceGetUUID; nvmlPciInfo_t.
struct NvmlPciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};
using NvmlDevice = void*;
constexpr int kNvmlSuccess = 0;

class Nvml {
 public:
  Nvml() : library_(::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    const auto init = Find<int (*)()>("nvmlInit_v2");
    is_open_ = init != nullptr && init() == kNvmlSuccess;
  }
  ~Nvml() {
    if (is_open_) {
      if (const auto shutdown = Find<int (*)()>("nvmlShutdown")) shutdown();
    }
    if (library_ != nullptr) ::dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  bool is_open() const { return is_open_; }

  template <typename Function>
  Function Find(const char* name) const {
    return reinterpret_cast<Function>(::dlsym(library_, name));
  }

 private:
  void* const library_;
  bool is_open_ = false;
};

int ReadNumaNode(const std::string& pci_address) {
  std::ifstream file(absl::StrCat("/sys/bus/pci/devices/", pci_address, "/numa_node"));
  int node = -1;
  return file >> node ? node : -1;
}

// NVML writes the domain with eight digits, sysfs with four.
std::string ToSysfsAddress(absl::string_view bus_id) {
  if (bus_id.size() > 12) bus_id.remove_prefix(bus_id.size() - 12);
  return absl::AsciiStrToLower(bus_id);
}

std::vector<Gpu> ListByNvml(const Nvml& nvml) {
  const auto count = nvml.Find<int (*)(unsigned*)>("nvmlDeviceGetCount_v2");
  const auto by_index = nvml.Find<int (*)(unsigned, NvmlDevice*)>("nvmlDeviceGetHandleByIndex_v2");
  const auto get_uuid = nvml.Find<int (*)(NvmlDevice, char*, unsigned)>("nvmlDeviceGetUUID");
  const auto get_pci = nvml.Find<int (*)(NvmlDevice, NvmlPciInfo*)>("nvmlDeviceGetPciInfo_v3");
  unsigned total = 0;
  std::vector<Gpu> gpus;
  if (!count || !by_index || count(&total) != kNvmlSuccess) return gpus;
  for (unsigned i = 0; i < total; ++i) {
    NvmlDevice device = nullptr;
    // The count includes GPUs that a container or a Slurm step hides; only a usable one has a
    // handle.
    if (by_index(i, &device) != kNvmlSuccess) continue;
    Gpu gpu;
    char uuid[96] = {};
    if (get_uuid && get_uuid(device, uuid, sizeof(uuid)) == kNvmlSuccess) gpu.uuid = uuid;
    NvmlPciInfo pci = {};
    if (get_pci && get_pci(device, &pci) == kNvmlSuccess) {
      pci.bus_id[sizeof(pci.bus_id) - 1] = '\0';
      gpu.pci_address = ToSysfsAddress(pci.bus_id);
      gpu.numa_node = ReadNumaNode(gpu.pci_address);
    }
    gpus.push_back(gpu);
  }
  return gpus;
}

std::vector<Gpu> ListByDeviceFiles() {
  std::vector<Gpu> gpus;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename().string();
    absl::string_view number = name;
    if (absl::ConsumePrefix(&number, "nvidia") && !number.empty() &&
        std::all_of(number.begin(), number.end(), absl::ascii_isdigit)) {
      gpus.emplace_back();
    }
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

std::vector<Gpu> ListGpus() {
  const Nvml nvml;
  return nvml.is_open() ? ListByNvml(nvml) : ListByDeviceFiles();
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

int CountCpus() {
  // The kernel refuses a set that is smaller than its own.
  for (int num_cpus = 1024; num_cpus <= 1 << 20; num_cpus *= 2) {
    cpu_set_t* const set = CPU_ALLOC(num_cpus);
    const size_t bytes = CPU_ALLOC_SIZE(num_cpus);
    const bool ok = ::sched_getaffinity(0, bytes, set) == 0;
    const int count = ok ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (ok) return std::max(count, 1);
  }
  return std::max(::get_nprocs(), 1);
}

}  // namespace muster::agent
