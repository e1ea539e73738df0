#include "agent/watch/board_evidence.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace muster::agent {
namespace {

constexpr size_t kRecentCalls = 8;
constexpr size_t kPendingCallsMax = 256;

// Groups of one name and id are one; of one rank's twice in a row, the later.
using GroupKey = std::pair<std::string, uint32_t>;

verdict::Operation ToOperation(const BoardSnapshot::Record& record) {
  return {.kind = record.kind,
          .state = record.state,
          .sequence = record.sequence,
          .bytes = record.bytes,
          .peer = record.peer,
          .dtype = record.dtype,
          .chain = record.chain,
          .awaited = record.awaited};
}

// From the newest to the oldest, until enough is known.
std::vector<verdict::Operation> Choose(const BoardSnapshot& board, uint16_t group) {
  std::vector<verdict::Operation> chosen;
  std::set<std::pair<OperationKind, int>> transfers_seen;
  size_t recent = 0;
  size_t pending = 0;
  for (auto at = board.operations.rbegin(); at != board.operations.rend(); ++at) {
    if (at->group != group) continue;
    verdict::Operation op = ToOperation(*at);
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

class EvidenceMaker {
 public:
  EvidenceMaker(Round round, int world_size) : world_size_(world_size) { out_.round = round; }

  void Add(const WatchedRank& watched) {
    verdict::RankEvidence rank{.rank = watched.rank,
                               .round = out_.round,
                               .node = watched.node,
                               .pid = watched.pid,
                               .life = watched.life,
                               .phase = watched.board.phase,
                               .step = watched.board.step,
                               .silent_for = watched.silent_for,
                               .tells_waits = watched.board.pid != 0,
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
    out_.ranks.push_back(std::move(rank));
  }

  verdict::Evidence Take() { return std::move(out_); }

 private:
  int IndexOf(const BoardSnapshot::Group& group) {
    const auto [found, is_new] =
        index_.try_emplace(GroupKey(group.name, group.id), static_cast<int>(out_.groups.size()));
    if (is_new) {
      verdict::Group made{.name = group.name,
                          .members = std::vector<int>(group.size, verdict::kUnknownRank),
                          .id = group.id};
      // Of all ranks: each is what it is in the job.
      for (int r = 0; group.size == world_size_ && r < world_size_; ++r) made.members[r] = r;
      out_.groups.push_back(std::move(made));
    }
    verdict::Group& known = out_.groups[found->second];
    if (static_cast<int>(known.members.size()) < group.size) {
      known.members.resize(group.size, verdict::kUnknownRank);
    }
    return found->second;
  }

  const int world_size_;
  verdict::Evidence out_;
  std::map<GroupKey, int> index_;
};

}  // namespace

verdict::Evidence MakeEvidence(Round round, int world_size,
                               const std::vector<WatchedRank>& watched) {
  EvidenceMaker maker(round, world_size);
  for (const WatchedRank& rank : watched) maker.Add(rank);
  return maker.Take();
}

verdict::Pulse MakePulse(int rank, const ProgressBoard& board) {
  verdict::Pulse pulse{.rank = rank, .is_told = board.pid.load(std::memory_order_acquire) != 0};
  if (!pulse.is_told) return pulse;
  pulse.token = FingerprintOf(board);
  pulse.phase = static_cast<Phase>(board.progress.load(std::memory_order_acquire) & 0xff);
  pulse.is_waiting = IsWaiting(board);
  pulse.num_steps = board.num_steps.load(std::memory_order_acquire);
  pulse.has_operations = board.num_operations.load(std::memory_order_acquire) != 0;
  return pulse;
}

}  // namespace muster::agent
