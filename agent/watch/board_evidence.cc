#include "agent/watch/board_evidence.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rendezvous/hangs/evidence/diagnosis.h"

namespace muster::agent {
namespace {

constexpr size_t kRecentCalls = 8;
constexpr size_t kPendingCallsMax = 256;
constexpr char kDefaultGroup[] = "default_pg";

// Groups of one name and id are one; of one rank's twice in a row, the later.
using GroupKey = std::pair<std::string, uint32_t>;
using hangs::kDestroy;

hangs::Operation ToOperation(const BoardSnapshot::Record& record) {
  return {.kind = record.kind,
          .state = record.state,
          .sequence = record.sequence,
          .bytes = record.bytes,
          .peer = record.peer,
          .dtype = record.dtype,
          .chain = record.chain,
          .awaited = record.awaited};
}

// Chooses from the newest to the oldest, until enough is known; returns the oldest first.
std::vector<hangs::Operation> Choose(const BoardSnapshot& board, uint16_t group) {
  std::vector<hangs::Operation> chosen;
  std::set<std::pair<OperationKind, int>> transfers_seen;
  size_t recent = 0;
  size_t pending = 0;
  for (auto at = board.operations.rbegin(); at != board.operations.rend(); ++at) {
    if (at->group != group) continue;
    hangs::Operation op = ToOperation(*at);
    bool wanted = op.is_pending() && pending++ < kPendingCallsMax;
    if (op.is_collective()) {
      wanted = wanted || recent++ < kRecentCalls;
    } else {
      wanted = transfers_seen.emplace(op.kind, op.peer).second || wanted;
    }
    if (wanted) chosen.push_back(std::move(op));
  }
  std::reverse(chosen.begin(), chosen.end());
  return chosen;
}

// The same on all nodes: FNV-1a.
uint32_t IdOf(const std::string& name) {
  uint32_t hash = 2166136261;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619;
  return hash;
}

class EvidenceMaker {
 public:
  EvidenceMaker(Round round, int world_size, const TorchMembers& members)
      : world_size_(world_size), members_(members) {
    out_.round = round;
  }

  void Add(const WatchedRank& watched) {
    hangs::RankEvidence rank{.rank = watched.rank,
                             .round = out_.round,
                             .node = watched.node,
                             .pid = watched.pid,
                             .life = watched.life,
                             .phase = watched.board.phase,
                             .step = watched.board.step,
                             .silent_for = watched.silent_for,
                             .is_mute = watched.is_mute,
                             .tells_waits = watched.board.pid != 0,
                             .is_busy = watched.is_busy,
                             .loops = watched.loops,
                             .fault = watched.fault,
                             .doing = watched.doing};
    for (size_t g = 0; g < watched.board.groups.size(); ++g) {
      const BoardSnapshot::Group& group = watched.board.groups[g];
      // What a worker has spoilt is no group.
      if (group.name.empty() || group.size < 1 || group.size > world_size_ || group.rank < 0 ||
          group.rank >= group.size) {
        continue;
      }
      const int index = IndexOf(group);
      out_.groups[index].members[group.rank] = watched.rank;
      rank.groups.push_back({.group = index,
                             .num_issued = group.num_issued,
                             .operations = Choose(watched.board, static_cast<uint16_t>(g))});
    }
    if (watched.torch) AddTorch(*watched.torch, rank);
    out_.ranks.push_back(std::move(rank));
  }

  hangs::Evidence Take() { return std::move(out_); }

 private:
  // The recorder does not tell which of the pending operations the program waits for.
  void AddTorch(const TorchRank& torch, hangs::RankEvidence& rank) {
    if (!torch.records.groups.empty() || !torch.waits.new_groups.operations.empty()) {
      rank.tells_waits = false;
    }
    for (const TorchGroup& group : torch.records.groups) AddTorchGroup(group, rank);
    AddTorchGroup(torch.waits.new_groups, rank);
    AddCall(torch, rank);
    const bool is_before_the_end = torch.python.has_groups && torch.python.call.name != kDestroy;
    if (is_before_the_end) rank.groups.push_back({.group = IndexOfMeeting(kDestroy, "", {})});
  }

  // Adds a call that the stack alone tells.
  void AddCall(const TorchRank& torch, hangs::RankEvidence& rank) {
    const TorchCall& call = torch.python.call;
    switch (call.kind) {
      case TorchCall::Kind::kNone:
        return;
      case TorchCall::Kind::kTransfer:
        return AddTransferOf(torch, rank);
      case TorchCall::Kind::kRooted:
        return SetRoot(call, rank);
      case TorchCall::Kind::kMeeting:
        return AddMeeting(torch, rank);
      case TorchCall::Kind::kAnswer:
        return AddAnswer(hangs::kRpcGroup, call.name, call.peer, rank);
      case TorchCall::Kind::kKey: {
        std::vector<std::string> where = torch.python.frames;
        where.resize(std::min<size_t>(where.size(), 1));
        return AddAnswer(
            hangs::kStoreGroup,
            absl::StrCat("the key ", call.name, " of a store (", hangs::PythonInWords(where), ")"),
            call.peer, rank);
      }
    }
  }

  // Adds something that is to come from `peer`, or from any rank.
  void AddAnswer(const char* from, std::string name, int peer, hangs::RankEvidence& rank) {
    hangs::Operation operation{.kind = OperationKind::kRecv,
                               .state = OperationState::kStarted,
                               .sequence = hangs::kUnknownSequence,
                               .peer = peer,
                               .name = std::move(name)};
    const TorchGroup group{.name = from, .label = from};
    rank.groups.push_back({.group = IndexOf(group, rank.rank), .operations = {operation}});
  }

  // A wait may be for what the recorder has of this rank.
  void AddTransferOf(const TorchRank& torch, hangs::RankEvidence& rank) {
    const TorchCall& call = torch.python.call;
    const bool is_named = call.name == "send" || call.name == "recv";
    if (!is_named && HasPending(rank)) return;
    hangs::Operation operation{
        .kind = call.name == "send" ? OperationKind::kSend : OperationKind::kRecv,
        .state = OperationState::kStarted,
        .sequence = hangs::kUnknownSequence,
        .peer = call.peer,
        .name = call.name};
    rank.groups.push_back({.group = IndexOf(torch.waits.new_groups, rank.rank),
                           .operations = {std::move(operation)}});
  }

  // Says whom this rank takes for the root, which the recorder does not.
  void SetRoot(const TorchCall& call, hangs::RankEvidence& rank) {
    const auto group = torch_index_.find(call.group);
    if (group == torch_index_.end()) return;
    const std::vector<int>& members = out_.groups[group->second].members;
    const auto root = std::find(members.begin(), members.end(), call.peer);
    if (root == members.end()) return;
    for (hangs::GroupRecord& record : rank.groups) {
      if (record.group != group->second) continue;
      for (hangs::Operation& op : record.operations) {
        if (!op.is_pending() || op.name != call.name) continue;
        op.peer = static_cast<int>(root - members.begin());
        return;
      }
    }
  }

  // A rank that is missing has called none.
  void AddMeeting(const TorchRank& torch, hangs::RankEvidence& rank) {
    const TorchCall& call = torch.python.call;
    TorchGroup meeting{.name = call.group};
    std::string name = call.name;
    for (const TorchGroup& group : torch.records.groups) {
      if (group.name == call.group) meeting.label = group.label;
    }
    if (!meeting.label.empty()) absl::StrAppend(&name, " (group ", meeting.label, ")");
    const int index = IndexOfMeeting(call.name, call.group, std::move(meeting));
    rank.tells_waits = false;
    rank.groups.push_back(
        {.group = index,
         .num_issued = 1,
         .operations = {{.state = OperationState::kStarted, .name = std::move(name)}}});
  }

  int IndexOfMeeting(const std::string& call, const std::string& group, TorchGroup meeting) {
    const std::string key = absl::StrCat(call, "/", group);
    const auto [found, is_new] = torch_index_.try_emplace(key, out_.groups.size());
    if (is_new) {
      if (group.empty()) meeting.label = kDefaultGroup;
      out_.groups.push_back({.members = MembersOf(meeting), .id = IdOf(key)});
    }
    return found->second;
  }

  static bool HasPending(const hangs::RankEvidence& rank) {
    for (const hangs::GroupRecord& record : rank.groups) {
      for (const hangs::Operation& op : record.operations) {
        if (op.is_pending()) return true;
      }
    }
    return false;
  }

  void AddTorchGroup(const TorchGroup& group, hangs::RankEvidence& rank) {
    const int index = IndexOf(group, rank.rank);
    hangs::GroupRecord record{.group = index, .num_issued = group.num_issued};
    AddTransfers(group, record);
    if (group.has_batches) {
      AddWithoutNumbers(group, record);
      rank.groups.push_back(std::move(record));
      return;
    }
    size_t pending = 0;
    for (size_t i = 0; i < group.operations.size(); ++i) {
      const hangs::Operation& op = group.operations[i];
      const bool is_recent = i + kRecentCalls >= group.operations.size();
      const bool is_wanted = op.is_pending() && pending++ < kPendingCallsMax;
      if (is_recent || is_wanted) record.operations.push_back(op);
    }
    rank.groups.push_back(std::move(record));
  }

  void AddTransfers(const TorchGroup& group, hangs::GroupRecord& record) const {
    const bool has_members = group.label == kDefaultGroup || members_.contains(group.name);
    for (hangs::Operation op : group.transfers) {
      if (!has_members) op.peer = -1;
      record.operations.push_back(std::move(op));
    }
  }

  // Nobody may miss this rank by its number of calls. It waits for somebody in what is pending.
  static void AddWithoutNumbers(const TorchGroup& group, hangs::GroupRecord& record) {
    record.num_issued = std::numeric_limits<int64_t>::max();
    for (const hangs::Operation& op : group.operations) {
      if (!op.is_pending()) continue;
      record.operations.push_back({.kind = OperationKind::kRecv,
                                   .state = op.state,
                                   .sequence = hangs::kUnknownSequence,
                                   .name = hangs::NameOf(op)});
      return;
    }
  }

  int IndexOf(const TorchGroup& group, int rank) {
    const auto [found, is_new] = torch_index_.try_emplace(group.Key(), out_.groups.size());
    if (is_new) {
      out_.groups.push_back({.name = group.label,
                             .members = MembersOf(group),
                             .id = IdOf(group.Key()),
                             .is_on_device = group.is_on_device});
    }
    std::vector<int>& members = out_.groups[found->second].members;
    if (std::find(members.begin(), members.end(), rank) == members.end()) {
      members.insert(members.begin(), rank);
    }
    return found->second;
  }

  std::vector<int> MembersOf(const TorchGroup& group) const {
    std::vector<int> members;
    const auto known = members_.find(group.name);
    if (group.label == kDefaultGroup || group.label == hangs::kRpcGroup ||
        group.label == hangs::kStoreGroup) {
      for (int r = 0; r < world_size_; ++r) members.push_back(r);
    } else if (known != members_.end()) {
      members = known->second;
    } else {
      members.push_back(hangs::kUnknownRank);
    }
    return members;
  }

  int IndexOf(const BoardSnapshot::Group& group) {
    const auto [found, is_new] =
        index_.try_emplace(GroupKey(group.name, group.id), static_cast<int>(out_.groups.size()));
    if (is_new) {
      hangs::Group made{.name = group.name,
                        .members = std::vector<int>(group.size, hangs::kUnknownRank),
                        .id = group.id};
      // A group of all ranks: each is what it is in the job.
      for (int r = 0; group.size == world_size_ && r < world_size_; ++r) made.members[r] = r;
      out_.groups.push_back(std::move(made));
    }
    hangs::Group& known = out_.groups[found->second];
    if (static_cast<int>(known.members.size()) < group.size) {
      known.members.resize(group.size, hangs::kUnknownRank);
    }
    return found->second;
  }

  const int world_size_;
  const TorchMembers& members_;
  hangs::Evidence out_;
  std::map<GroupKey, int> index_;
  std::map<std::string, int> torch_index_;
};

}  // namespace

hangs::Evidence MakeEvidence(Round round, int world_size, const std::vector<WatchedRank>& watched,
                             const TorchMembers& members) {
  EvidenceMaker maker(round, world_size, members);
  for (const WatchedRank& rank : watched) maker.Add(rank);
  return maker.Take();
}

hangs::Pulse MakePulse(int rank, const ProgressBoard& board, const TorchRank* torch, MonoTime now) {
  hangs::Pulse pulse{.rank = rank, .is_told = board.pid.load(std::memory_order_acquire) != 0};
  if (!pulse.is_told && torch == nullptr) return pulse;
  pulse.is_told = true;
  pulse.token = FingerprintOf(board);
  pulse.phase = static_cast<Phase>(board.progress.load(std::memory_order_acquire) & 0xff);
  pulse.is_waiting = IsWaiting(board);
  pulse.waited = absl::Nanoseconds(board.waited_ns.load(std::memory_order_relaxed));
  pulse.num_steps = board.num_steps.load(std::memory_order_acquire);
  pulse.has_operations = board.num_operations.load(std::memory_order_acquire) != 0;
  if (torch != nullptr) {
    pulse.token += torch->token;
    // One that has called none yet is as far as those that wait for its first.
    pulse.has_operations =
        pulse.has_operations || !torch->records.groups.empty() || torch->waits.has_begun;
    pulse.is_waiting = pulse.is_waiting || torch->records.has_pending;
    // A rank that has not answered the last question has been silent since it was asked.
    if (torch->answers) pulse.age = now - torch->asked_at;
  }
  return pulse;
}

}  // namespace muster::agent
