// Decides how many workers a node runs and which GPUs each of them sees.
//
// CUDA_VISIBLE_DEVICES lists indices or UUIDs; CUDA stops reading it at the first entry that names
// no device, so that
// "" and "-1" hide every GPU. Pure; gpu_inventory.h finds the GPUs.
// Source: PyTorch, torch/distributed/run.py (--nproc_per_node, --virtual-local-rank).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/spec/job_spec.h"

namespace muster::agent {

struct DeviceRequest {
  ProcessesPerNode nproc_per_node;
  bool virtual_local_rank = false;
  // CUDA_VISIBLE_DEVICES as the agent got it; none: not set.
  std::optional<std::string> visible_devices;
  int num_gpus = 0;  // that the agent sees, `visible_devices` included
  int num_cpus = 1;  // that the agent may use
};

struct DeviceBinding {
  int num_workers = 1;
  // CUDA_VISIBLE_DEVICES of each worker; empty: as inherited. Shapes: [num_workers]
  std::vector<std::string> visible_devices;
  friend bool operator==(const DeviceBinding&, const DeviceBinding&) = default;
};

// True if the plan depends on the number of GPUs: asking the driver takes time, so others do not.
bool NeedsGpuCount(const DeviceRequest& request);

// A number, `auto`, `cpu` and `gpu` leave the variable alone. `gpu:1,3` gives every worker the list
// "1,3", mapped through the inherited one, so that LOCAL_RANK is an index into what the worker
// sees; ids count from 0 within the inherited list, UUIDs are taken as they are. With
// `virtual_local_rank` each worker sees exactly its own device, unless the inherited list hides all
// GPUs.
//
// Errors: kInvalidArgument if there is no GPU where one is needed, an id is out of range or listed
//         twice, or a local rank has no device. The message names both.
absl::StatusOr<DeviceBinding> PlanDevices(const DeviceRequest& request);

// The entries of a CUDA_VISIBLE_DEVICES value up to the first that can name no device.
std::vector<std::string> SplitVisibleDevices(absl::string_view visible_devices);

}  // namespace muster::agent
