#include "agent/machine/nvml.h"

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"

namespace muster::agent {
namespace {

// Source: NVML API reference, nvmlPciInfo_t.
struct NvmlPciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

struct NvmlFieldValue {
  unsigned field, scope;
  long long timestamp, latency_us;
  int type, result;
  union {
    double real;
    unsigned number;
    unsigned long long large;
  } value;
};

constexpr unsigned kFieldRecoveryAction = 230;  // NVML_FI_DEV_GET_GPU_RECOVERY_ACTION

std::string NeedInWords(unsigned recovery_action) {
  switch (recovery_action) {
    case 0:
      return "";
    case 1:
      return "a reset";
    case 2:
      return "a reboot of its node";
    case 3:
      return "that traffic between GPUs ends";
    default:
      return "that nothing runs on it, and a reset";
  }
}

// NVML writes the domain with eight digits, sysfs with four.
std::string ToSysfsAddress(absl::string_view bus_id) {
  if (bus_id.size() > 12) bus_id.remove_prefix(bus_id.size() - 12);
  return absl::AsciiStrToLower(bus_id);
}

}  // namespace

Nvml::Nvml(const std::string& library)
    : library_(
          OptionalLibrary::Open({.name = "NVML", .file_names = {library}, .stays_loaded = false})) {
  if (!library_.ok()) return;
  const auto init = Find<int (*)()>("nvmlInit_v2");
  is_open_ = init != nullptr && init() == kNvmlSuccess;
}

Nvml::~Nvml() {
  if (is_open_) {
    if (const auto shutdown = Find<int (*)()>("nvmlShutdown")) shutdown();
  }
}

std::vector<NvmlDevice> Nvml::Devices() const {
  const auto count = Find<int (*)(unsigned*)>("nvmlDeviceGetCount_v2");
  const auto by_index = Find<int (*)(unsigned, NvmlDevice*)>("nvmlDeviceGetHandleByIndex_v2");
  unsigned total = 0;
  std::vector<NvmlDevice> devices;
  if (!count || !by_index || count(&total) != kNvmlSuccess) return devices;
  for (unsigned i = 0; i < total; ++i) {
    NvmlDevice device = nullptr;
    // The count includes GPUs that a container or a Slurm step hides; only a usable one has a
    // handle.
    if (by_index(i, &device) == kNvmlSuccess) devices.push_back(device);
  }
  return devices;
}

std::string Nvml::PciAddressOf(NvmlDevice device) const {
  const auto get = Find<int (*)(NvmlDevice, NvmlPciInfo*)>("nvmlDeviceGetPciInfo_v3");
  NvmlPciInfo pci = {};
  if (!get || get(device, &pci) != kNvmlSuccess) return "";
  pci.bus_id[sizeof(pci.bus_id) - 1] = '\0';
  return ToSysfsAddress(pci.bus_id);
}

std::optional<unsigned long long> Nvml::FieldOf(NvmlDevice device, unsigned field,
                                                unsigned scope) const {
  const auto get = Find<int (*)(NvmlDevice, int, NvmlFieldValue*)>("nvmlDeviceGetFieldValues");
  NvmlFieldValue value = {};
  value.field = field;
  value.scope = scope;
  if (!get || get(device, 1, &value) != kNvmlSuccess || value.result != kNvmlSuccess) {
    return std::nullopt;
  }
  return value.value.large;  // smaller types: the rest is zero
}

std::string Nvml::NeedOf(NvmlDevice device) const {
  return NeedInWords(static_cast<unsigned>(FieldOf(device, kFieldRecoveryAction).value_or(0)));
}

}  // namespace muster::agent
