#include "tests/support/fake_nvml.h"

#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

// Source: NVML API reference.
namespace {

constexpr int kSuccess = 0;
constexpr int kUninitialized = 1;
constexpr int kNotSupported = 3;
constexpr int kNoPermission = 4;

struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};
struct Utilization {
  unsigned gpu, memory;
};
struct Memory {
  unsigned long long total, free, used;
};
struct Process {
  unsigned pid;
  unsigned long long used_memory;
  unsigned gpu_instance, compute_instance;
};
struct FieldValue {
  unsigned field, scope;
  long long timestamp, latency_us;
  int type, result;
  unsigned long long value;
};

// One "name=value" of FAKE_NVML.
void Take(FakeNvml& state, const std::string& name, const std::string& value) {
  const unsigned long long number = std::strtoull(value.c_str(), nullptr, 0);
  if (name == "num_gpus") state.num_gpus = static_cast<int>(number);
  if (name == "has_driver") state.has_driver = number != 0;
  if (name.size() < 6 || name.compare(0, 3, "gpu") != 0) return;
  FakeGpu& gpu = state.gpus[(name[3] - '0') & 3];
  const std::string field = name.substr(5);
  if (field == "name") {
    static std::array<std::string, 4> names;
    gpu.name = (names[(name[3] - '0') & 3] = value).c_str();
  }
  if (field == "pid_file") {
    static std::array<std::string, 4> files;
    gpu.pid_file = (files[(name[3] - '0') & 3] = value).c_str();
  }
  if (field == "memory_mib") gpu.memory_mib = number;
  if (field == "used_mib") gpu.used_mib = number;
  if (field == "pcie_width") gpu.pcie_width = static_cast<unsigned>(number);
  if (field == "links") gpu.links = static_cast<unsigned>(number);
  if (field == "links_up") gpu.links_up = static_cast<unsigned>(number);
  if (field == "uncorrected") gpu.uncorrected = number;
  if (field == "rows_pending") gpu.rows_pending = number != 0;
  if (field == "slow_reasons") gpu.slow_reasons = number;
  if (field == "recovery_action") gpu.recovery_action = static_cast<unsigned>(number);
}

FakeNvml* MakeState() {
  static FakeNvml state;
  const char* const described = std::getenv("FAKE_NVML");
  constexpr const char* kBusIds[] = {"00000000:3B:00.0", "00000000:5E:00.0", "00000000:86:00.0",
                                     "00000000:AF:00.0"};
  for (int i = 0; described != nullptr && i < 4; ++i) state.gpus[i].bus_id = kBusIds[i];
  std::istringstream words(described == nullptr ? "" : described);
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    if (equals != std::string::npos) Take(state, word.substr(0, equals), word.substr(equals + 1));
  }
  return &state;
}

FakeNvml& State() {
  static FakeNvml* const state = MakeState();
  return *state;
}

int Copy(const char* text, char* to, unsigned size) {
  std::snprintf(to, size, "%s", text);
  return kSuccess;
}
FakeGpu& GpuOf(void* device) { return *static_cast<FakeGpu*>(device); }

}  // namespace

extern "C" {

FakeNvml* fake_nvml() { return &State(); }

int nvmlInit_v2() {
  if (!State().has_driver) return kUninitialized;
  ++State().num_open;
  ++State().num_opened;
  return kSuccess;
}
int nvmlInitWithFlags(unsigned) { return nvmlInit_v2(); }
int nvmlShutdown() {
  --State().num_open;
  return kSuccess;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  if (State().delay_ms > 0) ::usleep(static_cast<unsigned>(State().delay_ms) * 1000);
  *count = static_cast<unsigned>(State().num_gpus);
  return kSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  FakeGpu& gpu = State().gpus[index];
  *device = &gpu;
  return gpu.is_hidden ? kNoPermission : kSuccess;
}
int nvmlDeviceGetPciInfo_v3(void* device, PciInfo* pci) {
  std::snprintf(pci->bus_id, sizeof(pci->bus_id), "%s", GpuOf(device).bus_id);
  return kSuccess;
}
int nvmlSystemGetDriverVersion(char* text, unsigned size) { return Copy("580.65.06", text, size); }
int nvmlSystemGetNVMLVersion(char* text, unsigned size) { return Copy("13.580.65.06", text, size); }
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return kSuccess;
}
int nvmlSystemGetCudaDriverVersion(int* version) {
  return nvmlSystemGetCudaDriverVersion_v2(version);
}
int nvmlDeviceGetName(void* device, char* text, unsigned size) {
  return Copy(GpuOf(device).name, text, size);
}
int nvmlDeviceGetUUID(void* device, char* text, unsigned size) {
  const int index = static_cast<int>(&GpuOf(device) - State().gpus);
  const std::string uuid = "GPU-00000000-0000-0000-0000-00000000000" + std::to_string(index);
  return Copy(uuid.c_str(), text, size);
}
int nvmlDeviceGetIndex(void* device, unsigned* index) {
  *index = static_cast<unsigned>(&GpuOf(device) - State().gpus);
  return kSuccess;
}
int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  const FakeGpu& gpu = GpuOf(device);
  *memory = {.total = gpu.memory_mib << 20,
             .free = (gpu.memory_mib - gpu.used_mib) << 20,
             .used = gpu.used_mib << 20};
  return kSuccess;
}
int nvmlDeviceGetCurrPcieLinkWidth(void* device, unsigned* width) {
  *width = GpuOf(device).pcie_width;
  return kSuccess;
}
int nvmlDeviceGetMaxPcieLinkWidth(void* device, unsigned* width) {
  *width = GpuOf(device).pcie_width_max;
  return kSuccess;
}
int nvmlDeviceGetNvLinkState(void* device, unsigned link, unsigned* is_up) {
  if (link >= GpuOf(device).links) return kNotSupported;
  *is_up = link < GpuOf(device).links_up ? 1 : 0;
  return kSuccess;
}
int nvmlDeviceGetTotalEccErrors(void* device, int type, int, unsigned long long* count) {
  *count = type == 1 ? GpuOf(device).uncorrected : 0;
  return kSuccess;
}
int nvmlDeviceGetRemappedRows(void* device, unsigned* corrected, unsigned* uncorrected,
                              unsigned* is_pending, unsigned* has_failed) {
  *corrected = *uncorrected = *has_failed = 0;
  *is_pending = GpuOf(device).rows_pending ? 1 : 0;
  return kSuccess;
}
int nvmlDeviceGetCurrentClocksEventReasons(void* device, unsigned long long* reasons) {
  *reasons = GpuOf(device).slow_reasons;
  return kSuccess;
}
int nvmlDeviceGetUtilizationRates(void* device, Utilization* rates) {
  *rates = {GpuOf(device).kernel_percent, GpuOf(device).memory_percent};
  return State().tells_utilization ? kSuccess : kNotSupported;
}
int nvmlDeviceGetPcieThroughput(void* device, int counter, unsigned* kib) {
  *kib = counter == 0 ? GpuOf(device).pcie_kib : 0;
  return State().tells_fields ? kSuccess : kNotSupported;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, Process* processes) {
  FakeGpu& gpu = GpuOf(device);
  if (gpu.pid == 0 && gpu.pid_file != nullptr) std::ifstream(gpu.pid_file) >> gpu.pid;
  *count = GpuOf(device).pid == 0 ? 0 : 1;
  if (*count > 0) processes[0].pid = GpuOf(device).pid;
  return kSuccess;
}
int nvmlDeviceGetFieldValues(void* device, int count, FieldValue* values) {
  FakeGpu& gpu = GpuOf(device);
  for (int i = 0; i < count; ++i) {
    FieldValue& value = values[i];
    const bool is_nvlink = value.field == 138 || value.field == 139;
    value.result =
        State().tells_fields && (is_nvlink || value.field == 230) ? kSuccess : kNotSupported;
    if (value.field == 138) {
      value.value = gpu.nvlink_kib;
      gpu.nvlink_kib += gpu.nvlink_kib_more;
    }
    if (value.field == 139) value.value = 0;
    if (value.field == 230) value.value = gpu.recovery_action;
  }
  return kSuccess;
}

}  // extern "C"
