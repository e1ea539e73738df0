#include "launcher/doctor/node_health.h"

#include <algorithm>
#include <map>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "proto/base/exit_codes.h"
#include "proto/base/numeric_address.h"

namespace muster::launcher {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;
// NCCL needs a few MiB of /dev/shm for each pair of local ranks, and a data loader a batch for each
// of its workers.
constexpr uint64_t kShmOfGpu = kGiB;
constexpr uint64_t kShmMin = 64 * kMiB;  // what containers get by default
// A driver and a display use so much of an idle GPU.
constexpr uint64_t kIdleGpuBytes = kGiB;
constexpr uint64_t kOpenFilesMin = 4096;
constexpr uint64_t kProcessesMin = 4096;

using Findings = std::vector<Finding>;

std::string Gib(uint64_t bytes) {
  if (bytes < kGiB) return absl::StrCat((bytes + kMiB / 2) / kMiB, " MiB");
  return absl::StrCat((bytes + kGiB / 2) / kGiB, " GiB");
}

std::string NameOf(size_t index, const GpuHealth& gpu) {
  return absl::StrCat("GPU ", index,
                      gpu.pci_address.empty() ? "" : absl::StrCat(" (", gpu.pci_address, ")"));
}

// Adds `ok` as a finding, unless `fault_of` finds something with a GPU.
template <typename FaultOf>
void CheckEachGpu(const GpusHealth& gpus, const std::string& check, const std::string& ok,
                  const FaultOf& fault_of, Findings& out) {
  if (gpus.gpus.empty()) return;
  const size_t before = out.size();
  for (size_t i = 0; i < gpus.gpus.size(); ++i) {
    std::optional<Finding> finding = fault_of(gpus.gpus[i]);
    if (!finding) continue;
    finding->check = check;
    finding->text = absl::StrCat(NameOf(i, gpus.gpus[i]), " ", finding->text);
    out.push_back(*std::move(finding));
  }
  if (out.size() == before) out.push_back({.check = check, .text = ok});
}

void CheckDriver(const GpusHealth& gpus, Findings& out) {
  const int seen = static_cast<int>(gpus.gpus.size());
  if (gpus.driver.empty() && gpus.num_gpu_files == 0) {
    out.push_back({.check = "GPUs", .text = "this node has none"});
  } else if (gpus.driver.empty()) {
    out.push_back({.severity = Severity::kFault,
                   .check = "GPUs",
                   .text = absl::StrCat("there are device files for ", gpus.num_gpu_files,
                                        " GPUs, but NVIDIA's library does not answer"),
                   .advice = "run nvidia-smi: it names what does not fit; after an update of the "
                             "driver, reboot"});
  } else if (gpus.num_gpu_files > seen) {
    out.push_back(
        {.severity = Severity::kFault,
         .check = "GPUs",
         .text = absl::StrCat("the driver shows ", seen, " of ", gpus.num_gpu_files, " GPUs"),
         .advice = "a GPU has fallen off the bus, or the container hides it; see dmesg "
                   "for NVRM, and reboot"});
  } else {
    out.push_back({.check = "GPUs", .text = absl::StrCat(seen, ", driver ", gpus.driver)});
  }
}

// The GPU whose model or size few others have.
void CheckLikeness(const GpusHealth& gpus, Findings& out) {
  std::map<std::string, std::vector<size_t>> kinds;
  for (size_t i = 0; i < gpus.gpus.size(); ++i) {
    kinds[absl::StrCat(gpus.gpus[i].name, ", ", Gib(gpus.gpus[i].memory_bytes))].push_back(i);
  }
  if (kinds.size() == 1) {
    out.push_back({.check = "GPU models", .text = kinds.begin()->first});
  }
  if (kinds.size() < 2) return;
  std::vector<std::string> words;
  for (const auto& [kind, members] : kinds) {
    words.push_back(absl::StrCat(kind, " (GPU ", absl::StrJoin(members, ", "), ")"));
  }
  out.push_back({.severity = Severity::kWarning,
                 .check = "GPU models",
                 .text = absl::StrCat("they differ: ", absl::StrJoin(words, "; ")),
                 .advice = "the slowest and the smallest set the pace; leave the odd ones out with "
                           "--nproc_per_node=gpu:0,1,..."});
}

std::optional<Finding> TroubleOf(const GpuHealth& gpu) {
  if (!gpu.needs.empty()) {
    return Finding{.severity = Severity::kFault,
                   .text = absl::StrCat("needs ", gpu.needs),
                   .advice = "do that, or leave this node out"};
  }
  if (gpu.slowed_by.empty()) return std::nullopt;
  return Finding{.severity = Severity::kWarning,
                 .text = absl::StrCat("is slowed down by ", gpu.slowed_by),
                 .advice = "check its cooling and power supply: one slow GPU slows the whole job"};
}

std::optional<Finding> MemoryErrorsOf(const GpuHealth& gpu) {
  if (gpu.uncorrected_errors.value_or(0) > 0) {
    return Finding{
        .severity = Severity::kFault,
        .text =
            absl::StrCat("has had ", *gpu.uncorrected_errors, " uncorrectable memory errors (ECC)"),
        .advice = "reset it (nvidia-smi --gpu-reset) or reboot; if they recur, replace it"};
  }
  if (!gpu.needs_row_remapping) return std::nullopt;
  return Finding{.severity = Severity::kWarning,
                 .text = "has bad rows, which only a reset replaces",
                 .advice = "reset it before a long job (nvidia-smi --gpu-reset)"};
}

std::optional<Finding> MemoryInUseOf(const GpuHealth& gpu) {
  if (gpu.used_bytes <= kIdleGpuBytes) return std::nullopt;
  return Finding{
      .severity = Severity::kWarning,
      .text = absl::StrCat("has ", Gib(gpu.used_bytes), " of ", Gib(gpu.memory_bytes), " in use"),
      .advice = "another job runs there, or has left a process behind: see nvidia-smi"};
}

std::optional<Finding> MissingLanesOf(const GpuHealth& gpu) {
  const int width = gpu.pcie_width.value_or(0);
  const int most = gpu.pcie_width_max.value_or(0);
  if (width == 0 || width >= most) return std::nullopt;
  return Finding{
      .severity = Severity::kWarning,
      .text = absl::StrCat("runs on ", width, " of its ", most, " PCIe lanes"),
      .advice = "reseat it or try another slot; what it reads from the host is that much slower"};
}

void CheckNvLinks(const GpusHealth& gpus, Findings& out) {
  const int num_links =
      gpus.gpus.empty()
          ? 0
          : absl::c_max_element(gpus.gpus, [](const GpuHealth& a, const GpuHealth& b) {
              return a.num_links_up < b.num_links_up;
            })->num_links_up;
  CheckEachGpu(
      gpus, "NVLink", num_links == 0 ? "none is up" : absl::StrCat(num_links, " links of each GPU"),
      [&](const GpuHealth& gpu) -> std::optional<Finding> {
        if (gpu.num_links_up == num_links) return std::nullopt;
        return Finding{
            .severity = Severity::kFault,
            .text = absl::StrCat("has ", gpu.num_links_up, " NVLinks up, others ", num_links),
            .advice =
                "see nvidia-smi nvlink --status and, with NVSwitch, whether "
                "nvidia-fabricmanager runs"};
      },
      out);
}

void CheckGpus(const GpusHealth& gpus, Findings& out) {
  CheckDriver(gpus, out);
  CheckLikeness(gpus, out);
  CheckEachGpu(gpus, "GPU state", "none reports trouble", TroubleOf, out);
  CheckEachGpu(gpus, "GPU memory errors", "none", MemoryErrorsOf, out);
  CheckEachGpu(gpus, "GPU memory", "free on every GPU", MemoryInUseOf, out);
  CheckEachGpu(gpus, "PCIe", "every GPU has its whole width", MissingLanesOf, out);
  CheckNvLinks(gpus, out);
}

void CheckXids(const GpusHealth& gpus, Findings& out) {
  if (!gpus.kernel_log_is_readable) {
    if (!gpus.gpus.empty()) {
      out.push_back({.check = "Xid", .text = "unknown: no permission to read /dev/kmsg"});
    }
    return;
  }
  for (const std::string& xid : gpus.xids) {
    out.push_back({.severity = Severity::kWarning,
                   .check = "Xid",
                   .text = xid,
                   .advice = "if it has come up since boot and comes again, leave this node out"});
  }
  if (gpus.xids.empty() && !gpus.gpus.empty()) {
    out.push_back({.check = "Xid", .text = "the kernel has reported none"});
  }
}

void CheckMemory(const NodeHealth& node, const GpusHealth& gpus, Findings& out) {
  const uint64_t num_gpus = gpus.gpus.size();
  const uint64_t wanted = std::max(kShmMin + 1, num_gpus * kShmOfGpu);
  if (node.memory.shm_free_bytes < wanted) {
    out.push_back(
        {.severity = node.memory.shm_free_bytes <= kShmMin ? Severity::kFault : Severity::kWarning,
         .check = "/dev/shm",
         .text = node.memory.shm_bytes == 0 ? "not mounted"
                                            : absl::StrCat(Gib(node.memory.shm_free_bytes),
                                                           " free of ", Gib(node.memory.shm_bytes)),
         .advice = absl::StrCat("NCCL and data loaders need about ", Gib(wanted),
                                ": start the container with --shm-size or --ipc=host, or "
                                "remove what lies there")});
  } else {
    out.push_back(
        {.check = "/dev/shm", .text = absl::StrCat(Gib(node.memory.shm_free_bytes), " free")});
  }
  uint64_t of_gpus = 0;
  for (const GpuHealth& gpu : gpus.gpus) of_gpus += gpu.memory_bytes;
  if (num_gpus > 0 && node.memory.memory_bytes < of_gpus) {
    out.push_back({.severity = Severity::kWarning,
                   .check = "memory",
                   .text = absl::StrCat(Gib(node.memory.memory_bytes), ", less than the ",
                                        Gib(of_gpus), " of its GPUs"),
                   .advice = "offloading and loading a checkpoint on every rank at once may not "
                             "fit"});
  } else {
    out.push_back({.check = "memory", .text = Gib(node.memory.memory_bytes)});
  }
}

void CheckLimits(const NodeHealth& node, Findings& out) {
  const size_t before = out.size();
  const auto low = [&](const char* what, uint64_t has, uint64_t wants, const char* advice) {
    if (has >= wants) return;
    out.push_back({.severity = Severity::kWarning,
                   .check = "limits",
                   .text = absl::StrCat(what, ": ", has, ", which is less than ", wants),
                   .advice = advice});
  };
  low("open files (ulimit -Hn)", node.limits.open_files, kOpenFilesMin,
      "raise nofile in /etc/security/limits.conf or LimitNOFILE of the service");
  low("processes (ulimit -u)", node.limits.processes, kProcessesMin,
      "raise nproc in /etc/security/limits.conf or TasksMax of the service");
  if (node.networks.has_rdma) {
    low("locked memory (ulimit -Hl, bytes)", node.limits.locked_bytes, kGiB,
        "InfiniBand registers memory: set memlock to unlimited");
  }
  if (out.size() == before) out.push_back({.check = "limits", .text = "high enough"});
}

void CheckClock(const NodeHealth& node, Findings& out) {
  if (!node.clock_is_synchronised.value_or(true)) {
    out.push_back({.severity = Severity::kWarning,
                   .check = "clock",
                   .text = "no service synchronises it",
                   .advice = "start chronyd or systemd-timesyncd: times in logs of several nodes "
                             "cannot be compared, and certificates may be refused"});
  } else {
    out.push_back(
        {.check = "clock", .text = node.clock_is_synchronised ? "synchronised" : "not known"});
  }
}

void CheckNetwork(const NodeHealth& node, Findings& out) {
  std::vector<std::string> outward;
  for (const NetworkHealth& network : node.networks.interfaces) {
    if (network.is_loopback) continue;
    outward.push_back(absl::StrCat(network.name, " ", network.address, " (MTU ", network.mtu, ")"));
  }
  if (outward.empty()) {
    out.push_back({.severity = Severity::kWarning,
                   .check = "network",
                   .text = "there is no interface but loopback",
                   .advice = "a job of several nodes cannot run here"});
  } else {
    out.push_back({.check = "network", .text = absl::StrJoin(outward, ", ")});
  }
  const bool is_loopback = !node.networks.host_addresses.empty() &&
                           absl::c_all_of(node.networks.host_addresses, IsLoopbackAddress);
  if (node.networks.host_addresses.empty() || is_loopback) {
    out.push_back(
        {.severity = Severity::kWarning,
         .check = "host name",
         .text = node.networks.host_addresses.empty()
                     ? absl::StrCat(node.networks.host_name, " leads to no address")
                     : absl::StrCat(node.networks.host_name, " leads to loopback alone (",
                                    absl::StrJoin(node.networks.host_addresses, ", "), ")"),
         .advice = absl::StrCat("give ", node.networks.host_name,
                                " its outward address in /etc/hosts: programs that ask for it by "
                                "name tell others that one (Gloo, MPI)")});
  } else {
    out.push_back({.check = "host name",
                   .text = absl::StrCat(node.networks.host_name, " is ",
                                        absl::StrJoin(node.networks.host_addresses, ", "))});
  }
  if (node.networks.ports.ok()) {
    out.push_back({.check = "ports", .text = "a connection to this node's own address passes"});
  } else {
    out.push_back(
        {.severity = Severity::kFault,
         .check = "ports",
         .text = std::string(node.networks.ports.message()),
         .advice =
             "check this node's firewall; --worker_ports=A-B restricts the ports to a range"});
  }
}

void CheckSecret(const NodeHealth& node, Findings& out) {
  if (node.secret.ok()) {
    out.push_back({.check = "secret", .text = *node.secret});
  } else {
    out.push_back({.severity = Severity::kFault,
                   .check = "secret",
                   .text = std::string(node.secret.status().message()),
                   .advice = "jobs of several nodes need it; --auth=none does without"});
  }
}

}  // namespace

std::string ToString(Severity severity) {
  switch (severity) {
    case Severity::kOk:
      return "ok";
    case Severity::kWarning:
      return "warning";
    case Severity::kFault:
      return "fault";
  }
  return "?";
}

std::vector<Finding> Diagnose(const NodeHealth& node, const GpusHealth& gpus) {
  Findings findings;
  CheckGpus(gpus, findings);
  CheckXids(gpus, findings);
  CheckMemory(node, gpus, findings);
  CheckLimits(node, findings);
  CheckClock(node, findings);
  CheckNetwork(node, findings);
  CheckSecret(node, findings);
  for (const std::string& note : node.variables) {
    findings.push_back({.severity = Severity::kWarning,
                        .check = "variables",
                        .text = note,
                        .advice = "take it out of the job's environment"});
  }
  return findings;
}

int ExitCodeOfFindings(const std::vector<Finding>& findings) {
  const bool has_fault = absl::c_any_of(
      findings, [](const Finding& finding) { return finding.severity == Severity::kFault; });
  return has_fault ? kExitFailure : 0;
}

std::string FormatFindings(const std::string& node, const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    absl::StrAppend(&text, node, ": ", ToString(finding.severity), ": ", finding.check, ": ",
                    finding.text, finding.advice.empty() ? "" : "; ", finding.advice, "\n");
  }
  return text;
}

std::string FormatAsJson(const std::string& node, const std::vector<Finding>& findings) {
  using nlohmann::json;
  json list = json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"severity", ToString(finding.severity)},
                    {"check", finding.check},
                    {"text", finding.text},
                    {"advice", finding.advice}});
  }
  const json all = {{"node", node}, {"ok", ExitCodeOfFindings(findings) == 0}, {"findings", list}};
  return all.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace muster::launcher
