// What `muster doctor` sees of a node, and what it makes of that. doctor/look.h looks.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::launcher {

// One GPU, by NVML. An empty optional: the driver does not say.
struct GpuHealth {
  std::string name;
  std::string pci_address;
  uint64_t memory_bytes = 0;
  uint64_t used_bytes = 0;
  std::optional<int> pcie_width;
  std::optional<int> pcie_width_max;
  int num_links = 0;  // NVLinks that it has
  int num_links_up = 0;
  std::optional<uint64_t> uncorrected_errors;  // of its memory, since the driver was loaded
  bool needs_row_remapping = false;            // waits for a reset to replace bad rows
  std::string needs;                           // "a reset"; empty: nothing
  std::string slowed_by;  // "heat", "a power brake"; empty: nothing but its own limit
};

struct NetworkHealth {
  std::string name;
  std::string address;
  int mtu = 0;
  bool is_loopback = false;
};

struct GpusHealth {
  std::string driver;     // version of NVIDIA's; empty: it is not loaded
  int num_gpu_files = 0;  // /dev/nvidia0 and so on
  std::vector<GpuHealth> gpus;
  std::vector<std::string> xids;  // in words, newest last
  bool kernel_log_is_readable = false;
};

struct MemoryHealth {
  uint64_t memory_bytes = 0;
  uint64_t shm_bytes = 0;  // size of /dev/shm; 0: there is none
  uint64_t shm_free_bytes = 0;
};

// Hard limits.
struct LimitsHealth {
  uint64_t open_files = 0;
  uint64_t locked_bytes = 0;
  uint64_t processes = 0;
};

struct NetworksHealth {
  std::string host_name;
  std::vector<std::string> host_addresses;  // that the name leads to; empty: none
  std::vector<NetworkHealth> interfaces;
  bool has_rdma = false;  // there is an InfiniBand device, or an Ethernet card that acts as one
  absl::Status ports;     // whether a port can be had and reached on this node's own address
};

struct NodeHealth {
  MemoryHealth memory;
  LimitsHealth limits;
  NetworksHealth networks;
  std::optional<bool> clock_is_synchronised;  // none: the kernel does not say
  absl::StatusOr<std::string> secret = "";    // where it comes from
  std::vector<std::string> variables;         // NotesOnVariables
};

enum class Severity { kOk, kWarning, kFault };
std::string ToString(Severity severity);

struct Finding {
  Severity severity = Severity::kOk;
  std::string check;   // "GPU memory"
  std::string text;    // what was seen
  std::string advice;  // what to do; empty with kOk
  friend bool operator==(const Finding&, const Finding&) = default;
};

// The findings, at least one of each check, in a fixed order.
std::vector<Finding> Diagnose(const NodeHealth& node, const GpusHealth& gpus);

// 0: no fault; warnings do not count.
int ExitCodeOfFindings(const std::vector<Finding>& findings);

// One line of each, with the node in front.
std::string FormatFindings(const std::string& node, const std::vector<Finding>& findings);
// One JSON object on a line: {"node": ..., "findings": [...], "ok": false}.
std::string FormatAsJson(const std::string& node, const std::vector<Finding>& findings);

}  // namespace muster::launcher
