#include "tests/support/fake_nvml.h"

#include <unistd.h>

#include <cstdio>

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

FakeNvml& State() {
  static FakeNvml state;
  return state;
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
int nvmlDeviceGetUtilizationRates(void* device, Utilization* rates) {
  *rates = {GpuOf(device).kernel_percent, GpuOf(device).memory_percent};
  return State().tells_utilization ? kSuccess : kNotSupported;
}
int nvmlDeviceGetPcieThroughput(void* device, int counter, unsigned* kib) {
  *kib = counter == 0 ? GpuOf(device).pcie_kib : 0;
  return State().tells_fields ? kSuccess : kNotSupported;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, Process* processes) {
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
