#include "launcher/doctor/look.h"

#include <netdb.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <sys/timex.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "agent/machine/gpu_inventory.h"
#include "agent/machine/kernel_log.h"
#include "agent/machine/nvml.h"
#include "agent/network/local_interfaces.h"
#include "asio/connect.hpp"
#include "asio/io_context.hpp"
#include "asio/ip/tcp.hpp"
#include "launcher/line/variable_notes.h"
#include "proto/io/host_name.h"
#include "proto/io/user_secret.h"

namespace muster::launcher {
namespace {

using agent::kNvmlSuccess;
using agent::Nvml;
using agent::NvmlDevice;

// Source: NVML API reference.
struct NvmlMemory {
  unsigned long long total, free, used;
};
constexpr unsigned kLinksMax = 18;
constexpr int kUncorrected = 1;
constexpr int kSinceLoaded = 0;
struct SlowReason {
  unsigned long long bit;
  const char* words;
};
constexpr SlowReason kSlowReasons[] = {
    {0x20, "heat"}, {0x40, "heat"}, {0x80, "a power brake"}, {0x08, "heat or its power supply"}};

template <typename Number>
std::optional<Number> Ask(const Nvml& nvml, NvmlDevice device, const char* name) {
  const auto get = nvml.Find<int (*)(NvmlDevice, Number*)>(name);
  Number number = 0;
  if (!get || get(device, &number) != kNvmlSuccess) return std::nullopt;
  return number;
}

std::string TextOfDevice(const Nvml& nvml, NvmlDevice device, const char* name) {
  const auto get = nvml.Find<int (*)(NvmlDevice, char*, unsigned)>(name);
  char text[96] = {};
  return get && get(device, text, sizeof(text)) == kNvmlSuccess ? text : "";
}

void LookAtLinks(const Nvml& nvml, NvmlDevice device, GpuHealth& gpu) {
  const auto state =
      nvml.Find<int (*)(NvmlDevice, unsigned, unsigned*)>("nvmlDeviceGetNvLinkState");
  for (unsigned link = 0; state && link < kLinksMax; ++link) {
    unsigned is_up = 0;
    if (state(device, link, &is_up) != kNvmlSuccess) continue;
    ++gpu.num_links;
    gpu.num_links_up += is_up != 0;
  }
}

std::string SlowedBy(const Nvml& nvml, NvmlDevice device) {
  auto reasons = Ask<unsigned long long>(nvml, device, "nvmlDeviceGetCurrentClocksEventReasons");
  if (!reasons) {  // its name before driver 535
    reasons = Ask<unsigned long long>(nvml, device, "nvmlDeviceGetCurrentClocksThrottleReasons");
  }
  for (const SlowReason& reason : kSlowReasons) {
    if ((reasons.value_or(0) & reason.bit) != 0) return reason.words;
  }
  return "";
}

GpuHealth LookAtGpu(const Nvml& nvml, NvmlDevice device) {
  GpuHealth gpu{.name = TextOfDevice(nvml, device, "nvmlDeviceGetName"),
                .pci_address = nvml.PciAddressOf(device)};
  const auto memory = nvml.Find<int (*)(NvmlDevice, NvmlMemory*)>("nvmlDeviceGetMemoryInfo");
  NvmlMemory bytes{};
  if (memory && memory(device, &bytes) == kNvmlSuccess) {
    gpu.memory_bytes = bytes.total;
    gpu.used_bytes = bytes.used;
  }
  const auto width = Ask<unsigned>(nvml, device, "nvmlDeviceGetCurrPcieLinkWidth");
  const auto most = Ask<unsigned>(nvml, device, "nvmlDeviceGetMaxPcieLinkWidth");
  if (width && most) {
    gpu.pcie_width = static_cast<int>(*width);
    gpu.pcie_width_max = static_cast<int>(*most);
  }
  LookAtLinks(nvml, device, gpu);
  const auto errors =
      nvml.Find<int (*)(NvmlDevice, int, int, unsigned long long*)>("nvmlDeviceGetTotalEccErrors");
  unsigned long long count = 0;
  if (errors && errors(device, kUncorrected, kSinceLoaded, &count) == kNvmlSuccess) {
    gpu.uncorrected_errors = count;
  }
  const auto rows = nvml.Find<int (*)(NvmlDevice, unsigned*, unsigned*, unsigned*, unsigned*)>(
      "nvmlDeviceGetRemappedRows");
  unsigned corrected = 0, uncorrected = 0, is_pending = 0, has_failed = 0;
  gpu.needs_row_remapping =
      rows && rows(device, &corrected, &uncorrected, &is_pending, &has_failed) == kNvmlSuccess &&
      (is_pending != 0 || has_failed != 0);
  gpu.needs = nvml.NeedOf(device);
  gpu.slowed_by = SlowedBy(nvml, device);
  return gpu;
}

void LookAtMemory(NodeHealth& node) {
  struct sysinfo info {};
  if (::sysinfo(&info) == 0) node.memory.memory_bytes = uint64_t{info.totalram} * info.mem_unit;
  struct statvfs shm {};
  if (::statvfs("/dev/shm", &shm) == 0) {
    node.memory.shm_bytes = uint64_t{shm.f_blocks} * shm.f_frsize;
    node.memory.shm_free_bytes = uint64_t{shm.f_bavail} * shm.f_frsize;
  }
}

uint64_t HardLimit(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0 ||
      limit.rlim_max == RLIM_INFINITY) {
    return std::numeric_limits<uint64_t>::max();
  }
  return limit.rlim_max;
}

std::vector<std::string> AddressesOf(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  std::vector<std::string> found;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &list) != 0) return found;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    char text[NI_MAXHOST];
    if (::getnameinfo(entry->ai_addr, entry->ai_addrlen, text, sizeof(text), nullptr, 0,
                      NI_NUMERICHOST) == 0) {
      found.emplace_back(text);
    }
  }
  return found;
}

// A connection from this node to its own outward address, which a firewall may forbid too.
absl::Status TryAPort(const std::string& address) {
  if (address.empty()) return absl::OkStatus();
  asio::io_context loop{1};
  asio::error_code error;
  const asio::ip::tcp::endpoint here(asio::ip::make_address(address, error), 0);
  asio::ip::tcp::acceptor acceptor(loop);
  if (!error) acceptor.open(here.protocol(), error);
  if (!error) acceptor.bind(here, error);
  if (!error) acceptor.listen(1, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("no port is free on ", address, ": ", error.message()));
  }
  const asio::ip::tcp::endpoint to = acceptor.local_endpoint();
  bool is_connected = false;
  asio::ip::tcp::socket socket(loop);
  socket.async_connect(to, [&](const asio::error_code& e) {
    error = e;
    is_connected = !e;
  });
  loop.run_for(std::chrono::seconds(3));
  if (is_connected) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("a connection to ", address, ":", to.port(),
                   " does not pass: ", error ? error.message() : "no answer within 3s"));
}

void LookAtNetwork(NodeHealth& node) {
  node.networks.host_name = HostName();
  node.networks.host_addresses = AddressesOf(node.networks.host_name);
  std::sort(node.networks.host_addresses.begin(), node.networks.host_addresses.end());
  node.networks.host_addresses.erase(
      std::unique(node.networks.host_addresses.begin(), node.networks.host_addresses.end()),
      node.networks.host_addresses.end());
  std::string outward;
  for (const agent::Interface& interface : agent::ListInterfaces()) {
    const std::string address = interface.subnets.front().address;
    if (!interface.is_loopback && outward.empty()) outward = address;
    node.networks.interfaces.push_back({.name = interface.name,
                                        .address = address,
                                        .mtu = interface.mtu,
                                        .is_loopback = interface.is_loopback});
  }
  std::error_code error;
  node.networks.has_rdma = std::filesystem::exists("/sys/class/infiniband", error) &&
                           !std::filesystem::is_empty("/sys/class/infiniband", error);
  node.networks.ports = TryAPort(outward);
}

// Source: adjtimex(2).
std::optional<bool> ClockIsSynchronised() {
  timex clock{};
  const int state = ::adjtimex(&clock);
  if (state < 0) return std::nullopt;
  return state != TIME_ERROR && (clock.status & STA_UNSYNC) == 0;
}

}  // namespace

GpusHealth LookAtGpus() {
  GpusHealth gpus;
  gpus.num_gpu_files = static_cast<int>(agent::CountGpuFiles());
  const Nvml nvml;
  if (nvml.is_open()) {
    char text[96] = {};
    const auto driver = nvml.Find<int (*)(char*, unsigned)>("nvmlSystemGetDriverVersion");
    gpus.driver =
        driver && driver(text, sizeof(text)) == kNvmlSuccess ? text : "of an unknown version";
    for (const NvmlDevice device : nvml.Devices()) gpus.gpus.push_back(LookAtGpu(nvml, device));
  }
  agent::KernelLog log = agent::KernelLog::OpenWithPast();
  gpus.kernel_log_is_readable = log.is_readable();
  gpus.xids = agent::AllXids(log.Lines());
  return gpus;
}

NodeHealth LookAtThisNode(const EnvironmentMap& environment) {
  NodeHealth node{.limits = {.open_files = HardLimit(RLIMIT_NOFILE),
                             .locked_bytes = HardLimit(RLIMIT_MEMLOCK),
                             .processes = HardLimit(RLIMIT_NPROC)},
                  .clock_is_synchronised = ClockIsSynchronised(),
                  .variables = NotesOnVariables(environment)};
  LookAtMemory(node);
  LookAtNetwork(node);
  const absl::StatusOr<UserSecret> secret = LoadUserSecret(SecretSourcesIn(environment));
  node.secret = secret.ok() ? absl::StatusOr<std::string>(secret->origin) : secret.status();
  return node;
}

}  // namespace muster::launcher
