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
constexpr int64_t kRanksMax = 1 << 24;
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
  // Ranks may hold different amounts of a sparse tensor.
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

void Keep(const json& entry, TorchGroup& group) {
  verdict::Operation op = ToOperation(entry);
  group.is_on_device =
      group.is_on_device || absl::StartsWith(Text(entry, "profiling_name"), "nccl:");
  group.num_issued = std::max(group.num_issued, op.sequence + 1);
  group.operations.push_back(std::move(op));
  group.called_at.push_back(absl::FromUnixNanos(Number(entry, "time_created_ns")));
  if (group.operations.size() <= kOperationsMax) return;
  group.operations.erase(group.operations.begin());
  group.called_at.erase(group.called_at.begin());
}

TorchMembers ReadMembers(const json& groups) {
  TorchMembers out;
  if (groups.size() > kGroupsMax) return out;
  for (const auto& [name, ranks] : groups.items()) {
    if (!ranks.is_array() || name.size() > kNameBytesMax) continue;
    std::vector<int> members;
    for (const json& rank : ranks) {
      if (rank.is_number_unsigned() && rank.get<uint64_t>() <= kRanksMax) {
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
    return absl::InvalidArgumentError("its answer is not a dump of PyTorch's flight recorder");
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
      to.called_at.clear();
      to.num_issued = 0;
      std::erase_if(out.last_calls, [&](const verdict::Call& call) { return call.group == name; });
    }
    Keep(entry, to);
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

TorchWaits ReadTorchWaits(absl::string_view text) {
  TorchWaits out{.new_groups = {.name = "", .label = "default_pg"}};
  const json counters = ParseJsonFromOutside(text);
  if (!counters.is_object()) return out;
  const auto calls_of = [&](const char* name) {
    const auto counter = counters.find(absl::StrCat("pytorch.wait_counter.c10d.", name));
    const bool is_there = counter != counters.end() && counter->is_object();
    return is_there ? std::pair(std::max<int64_t>(0, Number(*counter, "total_calls")),
                                Number(*counter, "active_count"))
                    : std::pair<int64_t, int64_t>(0, 0);
  };
  const auto [begun, beginning] = calls_of("init_process_group");
  out.has_begun = begun > 0 && beginning <= 0;
  const auto [made, making] = calls_of(verdict::kNewGroup);
  TorchGroup& groups = out.new_groups;
  groups.num_issued = made;
  if (made == 0) return out;
  verdict::Operation last{.sequence = made - 1, .name = verdict::kNewGroup};
  last.state = making > 0 ? OperationState::kStarted : OperationState::kDone;
  groups.operations.push_back(std::move(last));
  return out;
}

namespace {

// When each rank called one collective.
using Calls = std::vector<std::pair<absl::Time, int>>;

verdict::ArrivalRow RowOf(int64_t sequence, Calls calls, absl::Time now) {
  std::sort(calls.begin(), calls.end());
  const auto& [last, last_rank] = calls.back();
  const absl::Time second = calls.size() > 1 ? calls[calls.size() - 2].first : last;
  return {.sequence = sequence,
          .last_rank = last_rank,
          .num_ranks = static_cast<int>(calls.size()),
          .last_ago = now - last,
          .second_ago = now - second,
          .first_ago = now - calls.front().first};
}

}  // namespace

std::vector<verdict::GroupArrivals> FindArrivals(const std::vector<RankRecords>& ranks,
                                                 absl::Time now) {
  struct Used {
    verdict::GroupArrivals group;
    std::map<int64_t, Calls> calls;
    size_t num_ranks = 0;
  };
  std::map<std::string, Used> groups;
  for (const RankRecords& each : ranks) {
    if (each.records.has_unrecorded) continue;
    for (const TorchGroup& group : each.records.groups) {
      Used& used = groups[group.name];
      used.group.name = group.name;
      used.group.label = group.label;
      used.group.is_on_device = group.is_on_device;
      ++used.num_ranks;
      for (size_t i = 0; i < group.operations.size(); ++i) {
        used.calls[group.operations[i].sequence].emplace_back(group.called_at[i], each.rank);
      }
    }
  }
  std::vector<verdict::GroupArrivals> out;
  for (auto& [name, used] : groups) {
    std::vector<verdict::ArrivalRow>& rows = used.group.rows;
    for (auto call = used.calls.rbegin(); call != used.calls.rend(); ++call) {
      if (rows.size() == verdict::kArrivalRowsMax) break;
      if (call->second.size() != used.num_ranks) continue;
      rows.push_back(RowOf(call->first, call->second, now));
    }
    std::reverse(rows.begin(), rows.end());
    if (!rows.empty()) out.push_back(std::move(used.group));
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const auto& a, const auto& b) { return a.rows.size() > b.rows.size(); });
  if (out.size() > verdict::kArrivalGroupsMax) out.resize(verdict::kArrivalGroupsMax);
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
  out.transfer = Text(state, "transfer");
  const int64_t peer = state.contains("peer") ? Number(state, "peer") : -1;
  if (peer >= 0 && peer <= kRanksMax) out.peer = static_cast<int>(peer);
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

std::optional<verdict::Operation> TorchTransferOf(const TorchPython& python, bool has_pending) {
  if (python.frames.empty()) return std::nullopt;
  const std::string& frame = python.frames[0];
  const std::string function = frame.substr(0, frame.find(" at "));
  const bool is_call = (function == "recv" || function == "send") &&
                       absl::StrContains(frame, "/torch/distributed/distributed_c10d.py:");
  if (!is_call && (python.calls != "wait" || has_pending)) return std::nullopt;
  const std::string name = is_call ? function : python.transfer;
  return verdict::Operation{.kind = name == "send" ? OperationKind::kSend : OperationKind::kRecv,
                            .state = OperationState::kStarted,
                            .sequence = verdict::kUnknownSequence,
                            .peer = python.peer,
                            .name = name == "send" || name == "recv" ? name : "a send or receive"};
}

}  // namespace muster::agent
