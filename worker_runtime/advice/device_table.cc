#include "worker_runtime/advice/device_table.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/base/nearest_name.h"

namespace muster::advice {
namespace {

constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;

// The devices, in the order of their memory, and of as much the quickest last: see DeviceOfMemory.
std::vector<DeviceFacts> Devices() {
  const auto row = [](const char* name, const char* cuda_name, double gib, double narrow,
                      double wide, double memory, double link, const char* source) {
    return DeviceFacts{name,         cuda_name,      gib,          narrow * kTera,
                       wide * kTera, memory * kGiga, link * kGiga, source};
  };
  return {
      row("rtx3090", "RTX 3090", 24, 71, 35.6, 936, 32, "NVIDIA GA102 whitepaper; PCIe 4.0 x16"),
      row("a10g", "A10G", 24, 70, 31.5, 600, 32, "NVIDIA A10G datasheet; PCIe 4.0 x16"),
      row("rtx4090", "RTX 4090", 24, 165.2, 82.6, 1008, 32,
          "NVIDIA Ada GPU architecture paper; PCIe 4.0 x16"),
      row("a100-40", "A100", 40, 312, 19.5, 1555, 300, "NVIDIA A100 datasheet (SXM4)"),
      row("l40s", "L40S", 48, 362, 91.6, 864, 32, "NVIDIA L40S datasheet; PCIe 4.0 x16"),
      row("a100", "A100", 80, 312, 19.5, 2039, 300, "NVIDIA A100 datasheet (SXM4, 80 GB)"),
      row("h100-pcie", "H100 PCIe", 80, 756, 51, 2000, 64, "NVIDIA H100 datasheet; PCIe 5.0 x16"),
      row("h100", "H100", 80, 989, 67, 3350, 450, "NVIDIA H100 datasheet (SXM5)"),
      row("h100-nvl", "H100 NVL", 94, 835, 60, 3900, 64, "NVIDIA H100 NVL datasheet; PCIe 5.0 x16"),
      row("h200", "H200", 141, 989, 67, 4800, 450, "NVIDIA H200 datasheet (SXM)"),
      row("b200", "B200", 180, 2250, 75, 8000, 900, "NVIDIA DGX B200 datasheet, an eighth"),
      row("gb200", "GB200", 186, 2500, 80, 8000, 900, "NVIDIA GB200 NVL72 datasheet, a 72nd"),
  };
}

std::vector<NetworkFacts> Networks() {
  return {
      {"10gbe", 1.25e9, "10 Gbit/s Ethernet, one port per node"},
      {"25gbe", 3.125e9, "25 Gbit/s Ethernet, one port per node"},
      {"100gbe", 12.5e9, "100 Gbit/s Ethernet, one port per node"},
      {"hdr", 200e9, "InfiniBand HDR, 8 ports of 200 Gbit/s (DGX A100)"},
      {"ndr", 400e9, "InfiniBand NDR, 8 ports of 400 Gbit/s (DGX H100)"},
      {"efa", 400e9, "EFA, 3200 Gbit/s per node (p5.48xlarge)"},
  };
}

template <typename Facts>
std::vector<std::string> NamesOf(const std::vector<Facts>& rows) {
  std::vector<std::string> names;
  for (const Facts& facts : rows) names.push_back(facts.name);
  return names;
}

template <typename Facts>
absl::StatusOr<Facts> Find(const std::vector<Facts>& rows, absl::string_view name) {
  const std::string lower = absl::AsciiStrToLower(name);
  for (const Facts& facts : rows) {
    if (facts.name == lower) return facts;
  }
  return absl::InvalidArgumentError(absl::StrCat("expected ", absl::StrJoin(NamesOf(rows), ", "),
                                                 DidYouMean(lower, NamesOf(rows))));
}

}  // namespace

absl::StatusOr<DeviceFacts> FindDevice(absl::string_view name) { return Find(Devices(), name); }
std::vector<std::string> DeviceNames() { return NamesOf(Devices()); }
std::vector<std::string> NetworkNames() { return NamesOf(Networks()); }

double PeakOperations(absl::string_view cuda_name, DType dtype) {
  DeviceFacts best;
  for (DeviceFacts& device : Devices()) {
    const bool says_more = device.cuda_name.size() > best.cuda_name.size();
    if (says_more && absl::StrContains(cuda_name, device.cuda_name)) best = std::move(device);
  }
  return SizeOf(dtype) < SizeOf(DType::kF32) ? best.narrow_flops : best.wide_flops;
}

DeviceFacts DeviceOfMemory(double gib) {
  std::vector<DeviceFacts> devices = Devices();
  DeviceFacts best = devices.front();
  for (const DeviceFacts& device : devices) {
    if (device.memory_gib <= gib && device.memory_gib >= best.memory_gib) best = device;
  }
  best.memory_gib = gib;
  return best;
}

absl::StatusOr<NetworkFacts> FindNetwork(const std::string& name) {
  double gigabits = 0;
  if (absl::SimpleAtod(name, &gigabits) && gigabits > 0) {
    return NetworkFacts{name, gigabits * kGiga / 8, absl::StrCat(name, " Gbit/s, as said")};
  }
  return Find(Networks(), name);
}

}  // namespace muster::advice
