// What devices and links can do, as their makers say, for predictions of step times and for the
// share of it that a training reaches.
//
// Pure values.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "muster/dtype.h"

namespace muster::advice {

struct DeviceFacts {
  std::string name;
  std::string cuda_name;  // is part of the name that CUDA gives it: "NVIDIA H100 80GB HBM3"
  double memory_gib = 0;
  double narrow_flops = 0;      // per second, dense, of products in bf16 or f16 with sums in f32
  double wide_flops = 0;        // of f32
  double memory_bandwidth = 0;  // bytes per second
  double link_bandwidth = 0;    // bytes per second that it sends to others of its node
  std::string source;
};

struct NetworkFacts {
  std::string name;
  double node_bandwidth = 0;  // bytes per second that a node sends
  std::string source;
};

// Errors: kInvalidArgument: no such name (with the nearest one).
absl::StatusOr<DeviceFacts> FindDevice(absl::string_view name);
std::vector<std::string> DeviceNames();
// Operations a second of dense products in that type, of a GPU by the name that CUDA gives it; 0:
// not known.
double PeakOperations(absl::string_view cuda_name, DType dtype);
// The device with the most memory of at most `gib`, of several the quickest.
DeviceFacts DeviceOfMemory(double gib);
// The network of that name, or of that number of Gbit/s per node. Errors: as FindDevice.
absl::StatusOr<NetworkFacts> FindNetwork(const std::string& name);
std::vector<std::string> NetworkNames();

}  // namespace muster::advice
