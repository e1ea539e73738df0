#include "agent/sight/figures_reader.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <optional>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/machine/descendants.h"
#include "agent/machine/kernel_log.h"
#include "agent/watch/gpu_look.h"
#include "agent/watch/process_look.h"
#include "proto/base/mutex.h"
#include "proto/io/read_file.h"

namespace muster::agent {
namespace {

using status::GpuFigures;
using status::NodeFigures;

struct NvmlMemory {
  unsigned long long total, free, used;
};

constexpr int kTemperatureOfGpu = 0;  // NVML_TEMPERATURE_GPU
constexpr int kClockOfSm = 1;         // NVML_CLOCK_SM
constexpr size_t kNameBytes = 96;
constexpr int64_t kMib = 1 << 20;

// Source: NVML API reference, nvmlClocksEventReasons; that it is idle, or set so, slows nothing.
std::string SlownessInWords(unsigned long long reasons) {
  constexpr std::pair<unsigned long long, const char*> kReasons[] = {
      {0x20, "heat"}, {0x40, "heat"}, {0x04, "power"}, {0x80, "power"}, {0x08, "hardware"}};
  for (const auto& [bit, words] : kReasons) {
    if ((reasons & bit) != 0) return words;
  }
  return "";
}

template <typename Number, typename... More>
std::optional<Number> Ask(const Nvml& nvml, const char* name, NvmlDevice device, More... more) {
  const auto get = nvml.Find<int (*)(NvmlDevice, More..., Number*)>(name);
  Number value = {};
  if (!get || get(device, more..., &value) != kNvmlSuccess) return std::nullopt;
  return value;
}

std::string FaultOf(const std::string& pci_address, const std::string& needs,
                    const std::vector<std::string>& kernel_lines) {
  for (auto line = kernel_lines.rbegin(); line != kernel_lines.rend(); ++line) {
    const std::optional<Xid> xid = ParseXid(*line);
    if (xid && !xid->device.empty() && absl::StartsWith(pci_address, xid->device)) {
      return absl::StrCat("Xid ", xid->number);
    }
  }
  return needs.empty() ? "" : absl::StrCat("needs ", needs);
}

GpuFigures LookAt(const Nvml& nvml, NvmlDevice device, const GpuLook& look, int index,
                  const std::vector<std::string>& kernel_lines) {
  GpuFigures gpu{.index = index, .pci_address = look.pci_address};
  const auto get_name = nvml.Find<int (*)(NvmlDevice, char*, unsigned)>("nvmlDeviceGetName");
  std::array<char, kNameBytes> name = {};
  if (get_name && get_name(device, name.data(), kNameBytes - 1) == kNvmlSuccess) {
    gpu.name = name.data();
  }
  gpu.busy_percent = look.kernel_percent.value_or(-1);
  if (const auto memory = Ask<NvmlMemory>(nvml, "nvmlDeviceGetMemoryInfo", device)) {
    gpu.memory_used_mib = static_cast<int64_t>(memory->used / kMib);
    gpu.memory_mib = static_cast<int64_t>(memory->total / kMib);
  }
  if (const auto milliwatts = Ask<unsigned>(nvml, "nvmlDeviceGetPowerUsage", device)) {
    gpu.power_watts = *milliwatts / 1000.0;
  }
  gpu.celsius = static_cast<int>(
      Ask<unsigned, int>(nvml, "nvmlDeviceGetTemperature", device, kTemperatureOfGpu).value_or(-1));
  gpu.sm_mhz = static_cast<int>(
      Ask<unsigned, int>(nvml, "nvmlDeviceGetClockInfo", device, kClockOfSm).value_or(-1));
  // The first is the name in newer drivers.
  for (const char* name :
       {"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"}) {
    const auto reasons = Ask<unsigned long long>(nvml, name, device);
    if (reasons && gpu.slowed_by.empty()) gpu.slowed_by = SlownessInWords(*reasons);
  }
  gpu.fault = FaultOf(look.pci_address, look.needs, kernel_lines);
  return gpu;
}

int64_t MemoryOf(pid_t pid, const std::string& proc) {
  static const int64_t page_bytes = ::sysconf(_SC_PAGESIZE);
  const std::string text = TextOf(absl::StrCat(proc, "/", pid, "/statm"));
  int64_t pages = 0, resident = 0;
  if (std::sscanf(text.c_str(), "%" SCNd64 " %" SCNd64, &pages, &resident) != 2) return 0;
  return resident * page_bytes;
}

// The bytes that "MemTotal:       16384 kB" says.
int64_t MemInfo(const std::string& text, const std::string& key) {
  const size_t at = text.find(key);
  if (at == std::string::npos) return -1;
  int64_t kib = 0;
  if (std::sscanf(text.c_str() + at + key.size(), " %" SCNd64, &kib) != 1) return -1;
  return kib / 1024;
}

// Ticks of all CPUs since the start: those that worked, and all.
std::optional<std::pair<int64_t, int64_t>> CpuTicks(const std::string& proc) {
  const std::string text = TextOf(absl::StrCat(proc, "/stat"));
  int64_t total = 0, idle = 0;
  int field = 0;
  for (const absl::string_view word :
       absl::StrSplit(text.substr(0, text.find('\n')), ' ', absl::SkipEmpty())) {
    int64_t ticks = 0;
    if (!absl::SimpleAtoi(word, &ticks)) continue;
    if (++field > 8) break;  // what guests use is in what users do
    total += ticks;
    if (field == 4 || field == 5) idle += ticks;  // idle, waiting for a disk
  }
  if (total == 0) return std::nullopt;
  return std::pair(total - idle, total);
}

}  // namespace

struct FiguresReader::State {
  struct Use {
    int64_t ticks = 0;
    MonoTime at;
  };

  explicit State(FiguresOptions its_options) : options(std::move(its_options)) {}

  NodeFigures ReadNode() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    NodeFigures node{.cpus = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN))};
    const auto ticks = CpuTicks(options.proc);
    if (ticks && cpu_before && ticks->second > cpu_before->second) {
      node.cpu_percent = 100.0 * static_cast<double>(ticks->first - cpu_before->first) /
                         static_cast<double>(ticks->second - cpu_before->second);
    }
    cpu_before = ticks;
    const std::string memory = TextOf(absl::StrCat(options.proc, "/meminfo"));
    node.memory_mib = MemInfo(memory, "MemTotal:");
    const int64_t available = MemInfo(memory, "MemAvailable:");
    if (available >= 0) node.memory_used_mib = node.memory_mib - available;
    return node;
  }

  void ReadProcess(MonoTime now, status::RankFigures& rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    static const auto ticks_per_second = static_cast<double>(::sysconf(_SC_CLK_TCK));
    const std::optional<ProcessUse> use = UseOfTree(rank.pid, CountedThreads::kAll, options.proc);
    if (!use) return;
    const auto before = uses.find(rank.pid);
    if (before != uses.end() && now > before->second.at) {
      rank.cpu_percent =
          std::max(0.0, 100.0 * static_cast<double>(use->cpu_ticks - before->second.ticks) /
                            ticks_per_second / absl::ToDoubleSeconds(now - before->second.at));
    }
    newest[rank.pid] = {use->cpu_ticks, now};
    int64_t bytes = MemoryOf(rank.pid, options.proc);
    for (const ProcessInfo& child : ListDescendants(rank.pid, {}, options.proc)) {
      bytes += MemoryOf(child.pid, options.proc);
    }
    rank.memory_mib = bytes / kMib;
  }

  const FiguresOptions options;
  base::Mutex mu;
  std::optional<std::pair<int64_t, int64_t>> cpu_before ABSL_GUARDED_BY(mu);
  absl::btree_map<int, Use> uses ABSL_GUARDED_BY(mu);  // by pid, of the read before
  absl::btree_map<int, Use> newest ABSL_GUARDED_BY(mu);
};

FiguresReader::FiguresReader(FiguresOptions options)
    : state_(std::make_unique<State>(std::move(options))) {}
FiguresReader::~FiguresReader() = default;

status::FiguresOfNode FiguresReader::Read(std::vector<status::RankFigures> ranks,
                                          const std::vector<std::string>& kernel_lines,
                                          MonoTime now) {
  status::FiguresOfNode figures{.ranks = std::move(ranks)};
  {
    base::MutexLock lock(state_->mu);
    figures.node = state_->ReadNode();
    state_->newest.clear();
    for (status::RankFigures& rank : figures.ranks) {
      if (rank.pid != 0) state_->ReadProcess(now, rank);
    }
    state_->uses = state_->newest;
  }
  const Nvml nvml(state_->options.nvml);
  if (!nvml.is_open()) return figures;
  const std::vector<NvmlDevice> devices = nvml.Devices();
  const std::vector<GpuLook> looks = LookAtGpus(nvml, now);
  for (size_t i = 0; i < std::min(devices.size(), looks.size()); ++i) {
    const int index = static_cast<int>(i);
    figures.gpus.push_back(LookAt(nvml, devices[i], looks[i], index, kernel_lines));
    for (status::RankFigures& rank : figures.ranks) {
      if (rank.pid == 0) continue;
      std::vector<int> own = {rank.pid};
      for (const ProcessInfo& child : ListDescendants(rank.pid, {}, state_->options.proc)) {
        own.push_back(child.pid);
      }
      const bool is_its = std::any_of(looks[i].pids.begin(), looks[i].pids.end(), [&](int pid) {
        return std::find(own.begin(), own.end(), pid) != own.end();
      });
      if (is_its) rank.gpus.push_back(index);
    }
  }
  return figures;
}

}  // namespace muster::agent
