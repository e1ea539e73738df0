#include "agent/machine/device_binding.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace muster::agent {
namespace {

using Kind = ProcessesPerNode::Kind;

absl::Status NoGpuFound(const std::string& value, const DeviceRequest& request) {
  const std::string why =
      request.visible_devices
          ? absl::StrCat("CUDA_VISIBLE_DEVICES is \"", *request.visible_devices, "\"")
          : "neither the NVIDIA driver nor /dev/nvidia* shows one";
  return absl::InvalidArgumentError(absl::StrCat("--nproc_per_node=", value,
                                                 ": this node has no usable GPU (", why,
                                                 "); give a number, auto or cpu"));
}

absl::StatusOr<int> CountWorkers(const DeviceRequest& request) {
  switch (request.nproc_per_node.kind) {
    case Kind::kCount:
      return request.nproc_per_node.count;
    case Kind::kAuto:
      return request.num_gpus > 0 ? request.num_gpus : request.num_cpus;
    case Kind::kCpu:
      return request.num_cpus;
    case Kind::kGpu:
      if (request.num_gpus == 0) return NoGpuFound("gpu", request);
      return request.num_gpus;
    case Kind::kGpuList:
      break;
  }
  return static_cast<int>(request.nproc_per_node.gpus.size());
}

// What the indices of the agent's GPUs mean to CUDA: the inherited list, or themselves.
std::vector<std::string> ListDevices(const DeviceRequest& request) {
  if (request.visible_devices) return SplitVisibleDevices(*request.visible_devices);
  std::vector<std::string> devices;
  for (int i = 0; i < request.num_gpus; ++i) devices.push_back(absl::StrCat(i));
  return devices;
}

std::string Describe(const DeviceRequest& request, const std::vector<std::string>& devices) {
  if (request.visible_devices)
    return absl::StrCat("CUDA_VISIBLE_DEVICES is \"", *request.visible_devices, "\"");
  return absl::StrCat("this node has ", devices.size(), devices.size() == 1 ? " GPU" : " GPUs");
}

absl::StatusOr<std::vector<std::string>> MapGpuList(const DeviceRequest& request) {
  const std::string value = absl::StrCat("gpu:", absl::StrJoin(request.nproc_per_node.gpus, ","));
  const std::vector<std::string> devices = ListDevices(request);
  if (devices.empty()) return NoGpuFound(value, request);
  std::vector<std::string> mapped;
  for (const std::string& id : request.nproc_per_node.gpus) {
    int index = 0;
    const bool is_index = absl::SimpleAtoi(id, &index);
    if (is_index && (index < 0 || index >= static_cast<int>(devices.size()))) {
      return absl::InvalidArgumentError(
          absl::StrCat("--nproc_per_node=", value, ": there is no GPU ", id, ", ",
                       Describe(request, devices), "; ids count from 0 to ", devices.size() - 1));
    }
    const std::string& device = is_index ? devices[index] : id;
    if (std::find(mapped.begin(), mapped.end(), device) != mapped.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--nproc_per_node=", value, ": GPU ", id, " is listed twice; each worker needs its own"));
    }
    mapped.push_back(device);
  }
  return mapped;
}

absl::StatusOr<std::vector<std::string>> OneDeviceEach(const DeviceRequest& request,
                                                       int num_workers) {
  const std::vector<std::string> devices = ListDevices(request);
  std::vector<std::string> one_each;
  for (int local_rank = 0; local_rank < num_workers; ++local_rank) {
    if (local_rank < static_cast<int>(devices.size())) {
      one_each.push_back(devices[local_rank]);
    } else if (devices.empty()) {
      one_each.push_back(request.visible_devices ? "" : absl::StrCat(local_rank));
    } else {
      return absl::InvalidArgumentError(absl::StrCat(
          "--virtual-local-rank: there is no device for local rank ", local_rank, ": ",
          Describe(request, devices), " and ", num_workers, " workers were asked for"));
    }
  }
  return one_each;
}

}  // namespace

std::vector<std::string> SplitVisibleDevices(absl::string_view visible_devices) {
  std::vector<std::string> devices;
  for (absl::string_view entry : absl::StrSplit(visible_devices, ',')) {
    entry = absl::StripAsciiWhitespace(entry);
    int index = 0;
    if (entry.empty() || (absl::SimpleAtoi(entry, &index) && index < 0)) break;
    devices.emplace_back(entry);
  }
  return devices;
}

bool NeedsGpuCount(const DeviceRequest& request) {
  const Kind kind = request.nproc_per_node.kind;
  if (kind == Kind::kAuto || kind == Kind::kGpu) return true;
  return !request.visible_devices && (kind == Kind::kGpuList || request.virtual_local_rank);
}

absl::StatusOr<DeviceBinding> PlanDevices(const DeviceRequest& request) {
  absl::StatusOr<int> num_workers = CountWorkers(request);
  if (!num_workers.ok()) return num_workers.status();
  DeviceBinding binding{*num_workers, std::vector<std::string>(*num_workers)};
  if (request.nproc_per_node.kind == Kind::kGpuList) {
    absl::StatusOr<std::vector<std::string>> list = MapGpuList(request);
    if (!list.ok()) return list.status();
    if (!request.virtual_local_rank) list->assign(*num_workers, absl::StrJoin(*list, ","));
    binding.visible_devices = *std::move(list);
  } else if (request.virtual_local_rank) {
    absl::StatusOr<std::vector<std::string>> one_each = OneDeviceEach(request, *num_workers);
    if (!one_each.ok()) return one_each.status();
    binding.visible_devices = *std::move(one_each);
  }
  return binding;
}

}  // namespace muster::agent
