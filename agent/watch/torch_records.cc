#include "agent/watch/torch_records.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "proto/base/bounded_json.h"
#include "rendezvous/hangs/evidence/incident_parts.h"

namespace muster::agent {
namespace {

using nlohmann::json;

constexpr size_t kWordBytesMax = 64;
constexpr size_t kSourceBytesMax = 1024;
constexpr size_t kGroupsOfRankMax = 256;
constexpr size_t kOperationsMax = 512;  // of one group
constexpr size_t kTransfersMax = 64;    // of one group, that have not ended
constexpr char kBatchEnd[] = "nccl:coalesced";
constexpr int64_t kRanksMax = 1 << 24;
constexpr size_t kFramesBesideThreads = 24;  // of the main thread, where others are told
constexpr int64_t kElementsMax = int64_t{1} << 50;

std::string Text(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) return "";
  return found->get_ref<const std::string&>().substr(0, kWordBytesMax);
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
void SetSize(const json& entry, hangs::Operation& op) {
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
  const std::string name = list->front().get_ref<const std::string&>().substr(0, kWordBytesMax);
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

hangs::Operation ToOperation(const json& entry) {
  hangs::Operation op{.sequence = Number(entry, "collective_seq_id")};
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

// Reads NCCL's names "send 0->1" and "recv 1<-0": the own rank in the group, then the peer's.
hangs::Operation ToTransfer(const json& entry) {
  hangs::Operation op = ToOperation(entry);
  const std::pair<absl::string_view, absl::string_view> words =
      absl::StrSplit(op.name, absl::MaxSplits(' ', 1));
  const bool is_send = words.first == "send";
  op.kind = is_send ? OperationKind::kSend : OperationKind::kRecv;
  op.sequence = hangs::kUnknownSequence;
  const std::vector<absl::string_view> ends =
      absl::StrSplit(words.second, absl::MaxSplits(is_send ? "->" : "<-", 1));
  int peer = -1;
  if (ends.size() == 2 && absl::SimpleAtoi(ends[1], &peer) && peer >= 0) op.peer = peer;
  op.name = std::string(words.first);
  return op;
}

bool IsOnDevice(const json& entry) {
  return absl::StartsWith(Text(entry, "profiling_name"), "nccl:");
}

std::string LabelOf(const std::string& name, const std::string& description) {
  if (description.empty() || description == "undefined") return name;
  return description == "default_pg" ? description : absl::StrCat(description, " ", name);
}

// Whether it is a call of its own. NCCL's calls between the start and the end of a coalescing have
// one number; the last of them, "coalesced", is the one that ends.
bool Keep(const json& entry, TorchGroup& group) {
  hangs::Operation op = ToOperation(entry);
  if (group.is_on_device && !group.operations.empty() &&
      op.sequence <= group.operations.back().sequence) {
    hangs::Operation& last = group.operations.back();
    if (op.sequence == last.sequence && op.state == OperationState::kDone) last.state = op.state;
    return false;
  }
  group.num_issued = std::max(group.num_issued, op.sequence + 1);
  group.operations.push_back(std::move(op));
  group.called_at.push_back(absl::FromUnixNanos(Number(entry, "time_created_ns")));
  if (group.operations.size() <= kOperationsMax) return true;
  group.operations.erase(group.operations.begin());
  group.called_at.erase(group.called_at.begin());
  return true;
}

// NCCL ends the calls of one communicator in their order, so all before one that is done are done.
void EndInOrder(TorchGroup& group) {
  bool is_done = false;
  for (auto op = group.operations.rbegin(); op != group.operations.rend(); ++op) {
    is_done = is_done || op->state == OperationState::kDone;
    if (is_done) op->state = OperationState::kDone;
  }
}

TorchMembers ReadMembers(const json& groups) {
  TorchMembers out;
  if (groups.size() > kGroupsOfRankMax) return out;
  for (const auto& [name, ranks] : groups.items()) {
    if (!ranks.is_array() || name.size() > kWordBytesMax) continue;
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

std::string TorchGroup::Key() const { return is_on_device ? absl::StrCat(name, "/nccl") : name; }

uint64_t FingerprintOfTorch(const TorchDumps& dumps) {
  return std::hash<std::string>()(absl::StrJoin(dumps, "\n"));
}

namespace {

// Takes the entries of one dump after the other.
class RecorderReader {
 public:
  // Returns whether `dump` has entries.
  bool Take(const json& dump) {
    ++dump_;
    const auto entries = dump.find("entries");
    if (entries == dump.end() || !entries->is_array()) return false;
    for (const json& entry : *entries) {
      if (entry.is_object()) TakeEntry(entry);
    }
    return true;
  }

  TorchRecords Finish() {
    std::stable_sort(calls_.begin(), calls_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    if (calls_.size() > hangs::kLastCallsMax) {
      calls_.erase(calls_.begin(), calls_.end() - hangs::kLastCallsMax);
    }
    for (auto& [unused, call] : calls_) out_.last_calls.push_back(std::move(call));
    for (Part& part : parts_) {
      if (part.group.is_on_device) EndInOrder(part.group);
      if (part.may_count_otherwise) {
        std::erase_if(out_.last_calls, [key = part.group.Key()](const hangs::Call& call) {
          return call.group == key;
        });
      }
      for (Transfer& transfer : part.transfers) {
        if (!transfer.operation.is_pending()) continue;
        if (part.group.transfers.size() == kTransfersMax) break;
        part.group.transfers.push_back(std::move(transfer.operation));
      }
      out_.has_pending = out_.has_pending || !part.group.transfers.empty() ||
                         std::any_of(part.group.operations.begin(), part.group.operations.end(),
                                     [](const auto& op) { return op.is_pending(); });
      out_.groups.push_back(std::move(part.group));
    }
    return std::move(out_);
  }

 private:
  struct Transfer {
    int64_t number = 0;  // of collectives, when it was called
    hangs::Operation operation;
  };
  struct Part {
    TorchGroup group;
    int dump = 0;     // the dump whose calls it has
    int64_t id = -1;  // PyTorch's number of the group
    std::vector<Transfer> transfers;
    bool may_count_otherwise = false;  // than other ranks: batches are there, or may have been
  };

  void TakeEntry(const json& entry) {
    const auto names = entry.find("process_group");
    if (names == entry.end() || !names->is_array() || names->size() != 2) return;
    if (!names->at(0).is_string() || !names->at(1).is_string()) return;
    const bool is_transfer = Flag(entry, "is_p2p");
    if (is_transfer || Number(entry, "op_id") > Number(entry, "collective_seq_id")) {
      out_.has_transfers = true;
      out_.has_unrecorded = out_.has_unrecorded || !IsOnDevice(entry);
    }
    if (is_transfer && !IsOnDevice(entry)) return;
    Part* part = PartOf(entry, *names);
    if (part == nullptr || part->dump != dump_) return;
    TorchGroup& group = part->group;
    const std::string key = group.Key();
    // Names begin again once all groups have been destroyed; this number does not.
    const int64_t id = Number(entry, "pg_id");
    if (std::exchange(part->id, id) != id) {
      group.operations.clear();
      group.called_at.clear();
      group.num_issued = 0;
      std::erase_if(calls_, [&](const auto& call) { return call.second.group == key; });
      part->transfers.clear();
      part->may_count_otherwise = false;
      group.has_batches = false;
    }
    // A call outside of batches takes one number: of collectives, or of sends and receives.
    const int64_t numbers = Number(entry, "collective_seq_id") + Number(entry, "p2p_seq_id");
    part->may_count_otherwise =
        group.is_on_device && (part->may_count_otherwise || Number(entry, "op_id") != numbers);
    if (TakeTransfer(entry, is_transfer, *part)) return;
    if (!Keep(entry, group)) return;
    calls_.emplace_back(group.called_at.back(),
                        hangs::Call{key, group.label, group.operations.back()});
  }

  // Returns whether the entry is one, or the end of a batch of them: the last entry of a batch, the
  // only one that ends.
  static bool TakeTransfer(const json& entry, bool is_transfer, Part& part) {
    const int64_t number = Number(entry, "collective_seq_id");
    if (Text(entry, "profiling_name") != kBatchEnd) {
      if (is_transfer) part.transfers.push_back({number, ToTransfer(entry)});
      return is_transfer;
    }
    bool is_batch = is_transfer;
    const OperationState state = ToOperation(entry).state;
    for (auto at = part.transfers.rbegin(); at != part.transfers.rend(); ++at) {
      if (at->number != number) break;
      at->operation.state = state;
      is_batch = true;
    }
    part.group.has_batches = part.group.has_batches || is_batch;
    return is_batch;
  }

  // Returns null where there are too many groups.
  Part* PartOf(const json& entry, const json& names) {
    TorchGroup group{.name = names.at(0).get<std::string>().substr(0, kWordBytesMax)};
    group.label = LabelOf(group.name, names.at(1).get<std::string>().substr(0, kWordBytesMax));
    group.is_on_device = IsOnDevice(entry);
    const auto [found, is_new] = index_.try_emplace(group.Key(), parts_.size());
    if (!is_new) return &parts_[found->second];
    if (parts_.size() >= kGroupsOfRankMax) {
      index_.erase(found);
      return nullptr;
    }
    parts_.push_back({.group = std::move(group), .dump = dump_});
    return &parts_.back();
  }

  TorchRecords out_;
  std::vector<Part> parts_;
  std::map<std::string, size_t> index_;  // from keys into parts_
  std::vector<std::pair<absl::Time, hangs::Call>> calls_;
  int dump_ = 0;
};

}  // namespace

absl::StatusOr<TorchRecords> ReadTorchRecorders(const TorchDumps& dumps) {
  RecorderReader reader;
  bool has_entries = false;
  for (const std::string& text : dumps) {
    const json dump = ParseJsonFromOutside(text);
    if (!dump.is_object() || !dump.contains("version")) {
      return absl::InvalidArgumentError("its answer is not a dump of PyTorch's flight recorder");
    }
    has_entries = reader.Take(dump) || has_entries;
  }
  TorchRecords out = reader.Finish();
  out.fingerprint = FingerprintOfTorch(dumps);
  out.has_unrecorded = out.has_unrecorded || !has_entries;
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
  const auto [made, making] = calls_of(hangs::kNewGroup);
  TorchGroup& groups = out.new_groups;
  groups.num_issued = made;
  if (made == 0) return out;
  hangs::Operation last{.sequence = made - 1, .name = hangs::kNewGroup};
  last.state = making > 0 ? OperationState::kStarted : OperationState::kDone;
  groups.operations.push_back(std::move(last));
  return out;
}

namespace {

// When each rank called one collective.
using Calls = std::vector<std::pair<absl::Time, int>>;

hangs::ArrivalRow RowOf(int64_t sequence, Calls calls, absl::Time now) {
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

std::vector<hangs::GroupArrivals> FindArrivals(const std::vector<RankRecords>& ranks,
                                               absl::Time now) {
  struct Used {
    hangs::GroupArrivals group;
    std::map<int64_t, Calls> calls;
    size_t num_ranks = 0;
  };
  std::map<std::string, Used> groups;
  for (const RankRecords& each : ranks) {
    if (each.records.has_transfers) continue;
    for (const TorchGroup& group : each.records.groups) {
      Used& used = groups[group.Key()];
      used.group.name = group.Key();
      used.group.label = group.label;
      used.group.is_on_device = group.is_on_device;
      ++used.num_ranks;
      for (size_t i = 0; i < group.operations.size(); ++i) {
        used.calls[group.operations[i].sequence].emplace_back(group.called_at[i], each.rank);
      }
    }
  }
  std::vector<hangs::GroupArrivals> out;
  for (auto& [name, used] : groups) {
    std::vector<hangs::ArrivalRow>& rows = used.group.rows;
    for (auto call = used.calls.rbegin(); call != used.calls.rend(); ++call) {
      if (rows.size() == hangs::kArrivalRowsMax) break;
      if (call->second.size() != used.num_ranks) continue;
      rows.push_back(RowOf(call->first, call->second, now));
    }
    std::reverse(rows.begin(), rows.end());
    if (!rows.empty()) out.push_back(std::move(used.group));
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const auto& a, const auto& b) { return a.rows.size() > b.rows.size(); });
  if (out.size() > hangs::kArrivalGroupsMax) out.resize(hangs::kArrivalGroupsMax);
  return out;
}

namespace {

TorchCall ReadCall(const json& call) {
  using Kind = TorchCall::Kind;
  const std::map<std::string, Kind> kinds = {{"transfer", Kind::kTransfer},
                                             {"rooted", Kind::kRooted},
                                             {"meeting", Kind::kMeeting},
                                             {"answer", Kind::kAnswer},
                                             {"key", Kind::kKey}};
  const auto kind = kinds.find(Text(call, "kind"));
  if (kind == kinds.end()) return {};
  TorchCall out{.kind = kind->second, .name = Text(call, "name"), .group = Text(call, "group")};
  const auto peer = call.find("peer");
  const int64_t rank = peer != call.end() && peer->is_number_integer() ? peer->get<int64_t>() : -1;
  if (rank >= 0 && rank <= kRanksMax) out.peer = static_cast<int>(rank);
  return out;
}

// Adds frames of `state`'s stack, the first behind `prefix`, until there are `max` in all.
void AddFrames(const json& state, const std::string& prefix, size_t max,
               std::vector<std::string>& frames) {
  const auto stack = state.find("stack");
  if (stack == state.end() || !stack->is_array()) return;
  bool is_first = true;
  for (const json& frame : *stack) {
    if (!frame.is_array() || frame.size() != 3 || frames.size() >= max) return;
    if (!frame[0].is_string() || !frame[1].is_string() || !frame[2].is_number_integer()) return;
    frames.push_back(absl::StrCat(std::exchange(is_first, false) ? prefix : "",
                                  frame[0].get_ref<const std::string&>().substr(0, kWordBytesMax),
                                  " at ",
                                  frame[1].get_ref<const std::string&>().substr(0, kSourceBytesMax),
                                  ":", frame[2].get<int64_t>()));
  }
}

}  // namespace

TorchPython ReadTorchPython(absl::string_view text) {
  TorchPython out;
  const json state = ParseJsonFromOutside(text);
  if (!state.is_object()) return out;
  if (const auto groups = state.find("groups"); groups != state.end() && groups->is_object()) {
    out.members = ReadMembers(*groups);
  }
  if (const auto call = state.find("call"); call != state.end() && call->is_object()) {
    out.call = ReadCall(*call);
  }
  out.has_groups = Flag(state, "has_groups");
  out.has_rpc = Flag(state, "has_rpc");
  const auto threads = state.find("threads");
  const bool has_threads = threads != state.end() && threads->is_array() && !threads->empty();
  AddFrames(state, "", has_threads ? kFramesBesideThreads : hangs::kStackFramesMax, out.frames);
  if (!has_threads) return out;
  for (const json& thread : *threads) {
    if (!thread.is_object()) break;
    AddFrames(thread, absl::StrCat(hangs::kThreadFrame, Text(thread, "name"), ": "),
              hangs::kStackFramesMax, out.frames);
  }
  return out;
}

}  // namespace muster::agent
