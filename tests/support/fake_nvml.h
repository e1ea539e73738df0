// A library that looks like NVML, with GPUs that tests describe: in its memory, or for another
// program in FAKE_NVML, a list of "name=value" with the names of the fields below:
// "num_gpus=2 gpu1.pcie_width=8". Opened like the real one, by its path or its name.
#pragma once

#include <atomic>

struct FakeGpu {
  const char* bus_id = "00000000:3B:00.0";  // as NVML spells it
  unsigned pid = 0;                         // of the process on it; 0: none
  const char* pid_file = nullptr;           // that has it, once it is known
  unsigned kernel_percent = 0;
  unsigned memory_percent = 0;
  unsigned long long nvlink_kib = 0;
  unsigned long long nvlink_kib_more = 0;  // with each look
  unsigned pcie_kib = 0;
  unsigned recovery_action = 0;
  bool is_hidden = false;  // counted, but without a handle
  const char* name = "Fake GPU";
  unsigned long long memory_mib = 80 << 10;
  unsigned long long used_mib = 0;
  unsigned pcie_width = 16;
  unsigned pcie_width_max = 16;
  unsigned links = 0;
  unsigned links_up = 0;
  unsigned long long uncorrected = 0;  // errors of its memory
  bool rows_pending = false;
  unsigned long long slow_reasons = 0;
};

struct FakeNvml {
  bool has_driver = true;  // else it does not open
  int num_gpus = 1;
  FakeGpu gpus[4];
  bool tells_fields = true;
  bool tells_utilization = true;
  int delay_ms = 0;  // of each count of GPUs
  std::atomic<int> num_opened = 0;
  std::atomic<int> num_open = 0;  // opened and not closed
};

// The one that the library answers from: "fake_nvml" in it.
using FakeNvmlFunction = FakeNvml* (*)();
