#include "agent/watch/torch_records.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/base/bounded_json.h"
#include "rendezvous/verdict/incident_parts.h"

namespace muster::agent {
namespace {

using nlohmann::json;

constexpr size_t kNameBytesMax = 64;
constexpr size_t kPathBytesMax = 1024;
constexpr size_t kGroupsMax = 256;
constexpr size_t kOperationsMax = 512;  // of one group
constexpr int64_t kElementsMax = int64_t{1} << 50;

std::string Text(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) return "";
  return found->get_ref<const std::string&>().substr(0, kNameBytesMax);
}

int64_t Number(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || !found->is_number_integer() ? 0 : found->get<int64_t>();
}

bool Flag(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_boolean() && found->get<bool>();
}

struct Dtype {
  absl::string_view name;
  absl::string_view ours;
  int bytes;
};
constexpr Dtype kDtypes[] = {{"Float", "f32", 4},     {"Double", "f64", 8}, {"Half", "f16", 2},
                             {"BFloat16", "bf16", 2}, {"Long", "i64", 8},   {"Int", "i32", 4},
                             {"Short", "i16", 2},     {"Byte", "u8", 1},    {"Char", "i8", 1},
                             {"Bool", "bool", 1}};

// Elements of all tensors in a list of sizes; nothing if it is none.
std::optional<int64_t> CountElements(const json& entry, const char* key) {
  const auto sizes = entry.find(key);
  if (sizes == entry.end() || !sizes->is_array() || sizes->empty()) return std::nullopt;
  int64_t total = 0;
  for (const json& shape : *sizes) {
    if (!shape.is_array()) return std::nullopt;
    int64_t elements = 1;
    for (const json& dimension : shape) {
      if (!dimension.is_number_integer()) return std::nullopt;
      const auto size = dimension.get<int64_t>();
      if (size < 0 || size > kElementsMax) return std::nullopt;
      if (size > 0 && elements > kElementsMax / size) return std::nullopt;
      elements *= size;
    }
    total = std::min(total + elements, kElementsMax);
  }
  return total;
}

// What all ranks agree on about the sizes of an operation; nothing where they need not agree.
void SetSize(const json& entry, verdict::Operation& op) {
  const char* sizes = nullptr;
  const char* dtypes = "input_dtypes";
  switch (op.kind) {
    case OperationKind::kAllReduce:
    case OperationKind::kReduceScatter:
    case OperationKind::kBroadcast:
      sizes = "input_sizes";
      break;
    case OperationKind::kAllGather:  // each may bring another part
      sizes = "output_sizes";
      dtypes = "output_dtypes";
      break;
    default:
      return;
  }
  // Of sparse tensors each rank has as much as it has.
  if (absl::StrContains(op.name, "sparse")) return;
  const std::optional<int64_t> elements = CountElements(entry, sizes);
  const auto list = entry.find(dtypes);
  if (!elements || list == entry.end() || !list->is_array() || list->empty()) return;
  if (!list->front().is_string()) return;
  const std::string name = list->front().get_ref<const std::string&>().substr(0, kNameBytesMax);
  op.dtype = name;
  op.bytes = *elements;
  for (const Dtype& dtype : kDtypes) {
    if (dtype.name != name) continue;
    op.dtype = std::string(dtype.ours);
    op.bytes = *elements * dtype.bytes;
  }
}

OperationKind KindOf(absl::string_view name) {
  if (absl::StrContains(name, "all_reduce") || absl::StrContains(name, "allreduce")) {
    return OperationKind::kAllReduce;
  }
  if (absl::StrContains(name, "reduce_scatter")) return OperationKind::kReduceScatter;
  if (absl::StrContains(name, "all_gather") || absl::StrContains(name, "allgather")) {
    return OperationKind::kAllGather;
  }
  if (name == "broadcast") return OperationKind::kBroadcast;
  if (absl::StrContains(name, "all_to_all") || absl::StrContains(name, "alltoall")) {
    return OperationKind::kAllToAll;
  }
  return OperationKind::kBarrier;
}

verdict::Operation ToOperation(const json& entry) {
  verdict::Operation op{.sequence = Number(entry, "collective_seq_id")};
  op.name = Text(entry, "profiling_name");
  if (const size_t colon = op.name.find(':'); colon != std::string::npos) {
    op.name.erase(0, colon + 1);
  }
  op.kind = KindOf(op.name);
  const std::string state = Text(entry, "state");
  if (Flag(entry, "retired") || state == "completed") {
    op.state = OperationState::kDone;
  } else if (state == "started") {
    op.state = OperationState::kStarted;
  }
  SetSize(entry, op);
  return op;
}

std::string LabelOf(const std::string& name, const std::string& description) {
  if (description.empty() || description == "undefined") return name;
  return description == "default_pg" ? description : absl::StrCat(description, " ", name);
}

void Keep(verdict::Operation op, TorchGroup& group) {
  group.num_issued = std::max(group.num_issued, op.sequence + 1);
  group.operations.push_back(std::move(op));
  if (group.operations.size() > kOperationsMax) group.operations.erase(group.operations.begin());
}

TorchMembers ReadMembers(const json& groups) {
  TorchMembers out;
  if (groups.size() > kGroupsMax) return out;
  for (const auto& [name, ranks] : groups.items()) {
    if (!ranks.is_array() || name.size() > kNameBytesMax) continue;
    std::vector<int> members;
    for (const json& rank : ranks) {
      if (rank.is_number_unsigned() && rank.get<uint64_t>() <= 1u << 24) {
        members.push_back(rank.get<int>());
      }
    }
    if (members.size() == ranks.size()) out.emplace(name, std::move(members));
  }
  return out;
}

}  // namespace

uint64_t FingerprintOfTorch(absl::string_view recorder) {
  return std::hash<std::string_view>()({recorder.data(), recorder.size()});
}

absl::StatusOr<TorchRecords> ReadTorchRecorder(absl::string_view text) {
  const json dump = ParseJsonFromOutside(text);
  if (!dump.is_object() || !dump.contains("version")) {
    return absl::InvalidArgumentError("what it answers is no record of PyTorch's recorder");
  }
  TorchRecords out{.fingerprint = FingerprintOfTorch(text)};
  const auto entries = dump.find("entries");
  if (entries == dump.end() || !entries->is_array()) {
    out.has_unrecorded = true;
    return out;
  }
  std::map<std::string, size_t> index;
  std::map<std::string, int64_t> id_of_group;
  for (const json& entry : *entries) {
    if (!entry.is_object()) continue;
    const auto group = entry.find("process_group");
    if (group == entry.end() || !group->is_array() || group->size() != 2) continue;
    if (!group->at(0).is_string() || !group->at(1).is_string()) continue;
    out.has_unrecorded = out.has_unrecorded || Flag(entry, "is_p2p") ||
                         Number(entry, "op_id") > Number(entry, "collective_seq_id");
    if (Flag(entry, "is_p2p")) continue;
    const std::string name = group->at(0).get<std::string>().substr(0, kNameBytesMax);
    const auto [found, is_new] = index.try_emplace(name, out.groups.size());
    if (is_new) {
      if (out.groups.size() >= kGroupsMax) break;
      out.groups.push_back(
          {.name = name,
           .label = LabelOf(name, group->at(1).get<std::string>().substr(0, kNameBytesMax))});
    }
    TorchGroup& to = out.groups[found->second];
    // Names begin again once all groups have been destroyed; this number does not.
    const int64_t id = Number(entry, "pg_id");
    if (std::exchange(id_of_group[name], id) != id) {
      to.operations.clear();
      to.num_issued = 0;
      std::erase_if(out.last_calls, [&](const verdict::Call& call) { return call.group == name; });
    }
    Keep(ToOperation(entry), to);
    out.last_calls.push_back({to.name, to.label, to.operations.back()});
    if (out.last_calls.size() > verdict::kLastCallsMax) {
      out.last_calls.erase(out.last_calls.begin());
    }
  }
  for (const TorchGroup& group : out.groups) {
    out.has_pending =
        out.has_pending || std::any_of(group.operations.begin(), group.operations.end(),
                                       [](const auto& op) { return op.is_pending(); });
  }
  return out;
}

TorchGroup ReadTorchWaits(absl::string_view text) {
  TorchGroup out{.name = "", .label = "default_pg"};
  const json counters = ParseJsonFromOutside(text);
  if (!counters.is_object()) return out;
  const auto counter = counters.find("pytorch.wait_counter.c10d.new_group");
  if (counter == counters.end() || !counter->is_object()) return out;
  out.num_issued = std::max<int64_t>(0, Number(*counter, "total_calls"));
  if (out.num_issued == 0) return out;
  verdict::Operation last{.sequence = out.num_issued - 1, .name = "new_group"};
  last.state =
      Number(*counter, "active_count") > 0 ? OperationState::kStarted : OperationState::kDone;
  out.operations.push_back(std::move(last));
  return out;
}

TorchPython ReadTorchPython(absl::string_view text) {
  TorchPython out;
  const json state = ParseJsonFromOutside(text);
  if (!state.is_object()) return out;
  if (const auto groups = state.find("groups"); groups != state.end() && groups->is_object()) {
    out.members = ReadMembers(*groups);
  }
  out.calls = Text(state, "calls");
  const auto stack = state.find("stack");
  if (stack == state.end() || !stack->is_array()) return out;
  for (const json& frame : *stack) {
    if (!frame.is_array() || frame.size() != 3 || out.frames.size() >= verdict::kStackFramesMax)
      break;
    if (!frame[0].is_string() || !frame[1].is_string() || !frame[2].is_number_integer()) break;
    out.frames.push_back(
        absl::StrCat(frame[0].get_ref<const std::string&>().substr(0, kNameBytesMax), " at ",
                     frame[1].get_ref<const std::string&>().substr(0, kPathBytesMax), ":",
                     frame[2].get<int64_t>()));
  }
  return out;
}

std::string TorchTransferOf(const TorchPython& python) {
  if (python.frames.empty()) return "";
  const std::string& frame = python.frames[0];
  const std::string function = frame.substr(0, frame.find(" at "));
  const bool is_transfer = function == "recv" || function == "send";
  if (is_transfer && absl::StrContains(frame, "/torch/distributed/distributed_c10d.py:")) {
    return function;
  }
  return python.calls == "wait" ? "wait" : "";
}

}  // namespace muster::agent
