#include "worker_runtime/plan/prove_program.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/plan/like_ranks.h"

namespace muster::plan {
namespace {

// --- P1 and P2: the walk ------------------------------------------------------------------------

// The side of one class of ranks in something that ranks meet in.
struct Side {
  int of_class = 0;
  int action = 0;
};

bool IsLaunched(const Action& action) {
  const Lane lane = LaneOf(action.kind());
  return lane != Lane::kCompute && lane != Lane::kMemory;
}

// One rank of each class goes through its program.
class Walk {
 public:
  explicit Walk(const LikeRanks& ranks)
      : ranks_(ranks),
        next_compute_(ranks.size()),
        next_launch_(ranks.size()),
        next_memory_(ranks.size()) {
    for (const LikeRanks::Class& own : ranks.classes()) {
      done_.emplace_back(own.program->actions.size(), false);
      came_to_.emplace_back(own.program->actions.size(), kNone);
      num_launched_.emplace_back(own.program->groups.size());
    }
  }

  absl::Status Run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int own = 0; own < ranks_.size(); ++own) {
        while (Compute(own) || GiveUp(own)) moved = true;
        for (;;) {
          MUSTER_ASSIGN_OR_RETURN(const bool launched, Launch(own));
          if (!launched) break;
          moved = true;
        }
      }
    }
    return CheckEnd();
  }

 private:
  const Program& ProgramOf(int of_class) const { return *ranks_.classes()[of_class].program; }

  bool IsReady(int own, const Action& action) const {
    const auto is_done = [&](int i) { return static_cast<bool>(done_[own][i]); };
    return std::all_of(action.after.begin(), action.after.end(), is_done) &&
           (BackwardOf(action) == kNone || BackwardOf(action) == action.at.pass ||
            is_done(BackwardOf(action))) &&
           (action.at.pass == kNone || came_to_[own][action.at.pass] >= action.at.entry);
  }

  // Skips to the next action of the kind that `wanted` tells.
  template <typename Wanted>
  const Action* Next(int own, size_t& at, Wanted wanted) const {
    const std::vector<Action>& actions = ProgramOf(own).actions;
    while (at < actions.size() && !wanted(actions[at])) ++at;
    return at < actions.size() ? &actions[at] : nullptr;
  }

  bool Compute(int own) {
    size_t& at = next_compute_[own];
    const Action* action =
        Next(own, at, [](const Action& a) { return LaneOf(a.kind()) == Lane::kCompute; });
    if (action == nullptr) return false;
    const absl::Span<const Entry> entries = EntriesOf(*action);
    int& use = came_to_[own][at];
    if (use == kNone) {
      if (!IsReady(own, *action)) return false;
      use = 0;
    } else if (!MayUse(own, entries[use])) {
      return false;
    } else {
      ++use;
    }
    if (use == static_cast<int>(entries.size())) done_[own][at++] = true;
    return true;
  }

  bool MayUse(int own, const Entry& entry) const {
    const auto is_done = [&](int other) { return static_cast<bool>(done_[own][other]); };
    return std::all_of(entry.unshards.begin(), entry.unshards.end(), is_done) &&
           std::all_of(entry.waits.begin(), entry.waits.end(), is_done);
  }

  bool GiveUp(int own) {
    size_t& at = next_memory_[own];
    const Action* action =
        Next(own, at, [](const Action& a) { return LaneOf(a.kind()) == Lane::kMemory; });
    if (action == nullptr || !IsReady(own, *action)) return false;
    done_[own][at++] = true;
    return true;
  }

  absl::StatusOr<bool> Launch(int own) {
    size_t& at = next_launch_[own];
    const Action* action = Next(own, at, [](const Action& a) { return IsLaunched(a); });
    if (action == nullptr || !IsReady(own, *action)) return false;
    const Side side = {own, static_cast<int>(at)};
    ++at;
    if (const Transfer* const transfer = action->If<Transfer>()) {
      MUSTER_RETURN_IF_ERROR(Hand(side, *transfer));
    } else {
      MUSTER_RETURN_IF_ERROR(Meet(side, *ExchangeOf(*action)));
    }
    return true;
  }

  absl::Status Meet(Side side, const Exchange& exchange) {
    const int meeting = ranks_.classes()[side.of_class].meetings[exchange.group];
    const int64_t sequence = num_launched_[side.of_class][exchange.group]++;
    const auto at = meetings_.try_emplace({meeting, sequence}).first;
    std::vector<Side>& sides = at->second;
    sides.push_back(side);
    if (CallOf(sides.front()) != CallOf(side)) return Differ(sides.front(), side);
    if (sides.size() < ranks_.meetings()[meeting].classes.size()) return absl::OkStatus();
    for (const Side& each : sides) done_[each.of_class][each.action] = true;
    meetings_.erase(at);
    return absl::OkStatus();
  }

  // Transfers between two ranks meet in the order of their calls.
  absl::Status Hand(Side side, const Transfer& transfer) {
    const int peer = ranks_.PeerOf(side.of_class, transfer);
    const std::pair way =
        transfer.is_send ? std::pair(side.of_class, peer) : std::pair(peer, side.of_class);
    std::deque<Side>& waiting = waiting_[way];
    const auto of = [&](Side any) { return ActionOf(any).As<Transfer>(); };
    if (waiting.empty() || of(waiting.front()).is_send == transfer.is_send) {
      waiting.push_back(side);
      return absl::OkStatus();
    }
    const Side other = waiting.front();
    waiting.pop_front();
    if (of(other).what != transfer.what || of(other).bytes != transfer.bytes) {
      return Differ(other, side);
    }
    done_[side.of_class][side.action] = true;
    done_[other.of_class][other.action] = true;
    return absl::OkStatus();
  }

  const Action& ActionOf(const Side& side) const {
    return ProgramOf(side.of_class).actions[side.action];
  }
  // What must be the same on all sides.
  std::tuple<ActionKind, Collective, int64_t, BlockRange> CallOf(const Side& side) const {
    const Action& action = ActionOf(side);
    const Exchange& exchange = *ExchangeOf(action);
    const int bucket = BucketOf(action);
    return {action.kind(), exchange.collective, exchange.bytes,
            bucket == kNone ? BlockRange() : ProgramOf(side.of_class).buckets[bucket].blocks};
  }
  absl::Status Differ(const Side& a, const Side& b) const {
    return CannotRun(ranks_.NameOf(a.of_class, a.action), " meets ",
                     ranks_.NameOf(b.of_class, b.action));
  }

  absl::Status CheckEnd() const {
    for (int own = 0; own < ranks_.size(); ++own) {
      const auto stuck = std::find(done_[own].begin(), done_[own].end(), false);
      if (stuck == done_[own].end()) continue;
      return CannotRun(ranks_.NameOf(own, stuck - done_[own].begin()), " never ends");
    }
    return absl::OkStatus();
  }

  const LikeRanks& ranks_;
  // [class]
  std::vector<size_t> next_compute_;
  std::vector<size_t> next_launch_;
  std::vector<size_t> next_memory_;
  // [class][action]
  std::vector<std::vector<bool>> done_;
  std::vector<std::vector<int>> came_to_;                          // a pass: to which of its uses
  std::vector<std::vector<int64_t>> num_launched_;                 // [class][group]
  std::map<std::pair<int, int64_t>, std::vector<Side>> meetings_;  // by meeting and sequence
  std::map<std::pair<int, int>, std::deque<Side>> waiting_;        // by the classes (from, to)
};

// --- P3: one order ------------------------------------------------------------------------------

// The collectives of all groups, and which comes before which.
class CallOrder {
 public:
  explicit CallOrder(const LikeRanks& ranks) : calls_(ranks.meetings().size()) {
    for (const LikeRanks::Class& own : ranks.classes()) Add(own);
  }

  absl::Status Prove() {
    std::vector<int> free;
    for (size_t call = 0; call < all_.size(); ++call) {
      if (all_[call].num_before == 0) free.push_back(static_cast<int>(call));
    }
    size_t ordered = 0;
    for (; ordered < free.size(); ++ordered) {
      for (const int next : all_[free[ordered]].followers) {
        if (--all_[next].num_before == 0) free.push_back(next);
      }
    }
    if (ordered == all_.size()) return absl::OkStatus();
    const Call& ring = *std::find_if(all_.begin(), all_.end(),
                                     [](const Call& call) { return call.num_before > 0; });
    const std::vector<int> ranks = ring.caller->program->mesh.RanksOf(
        ring.caller->rank, ring.caller->program->groups[ring.group]);
    return CannotRun("collective ", ring.sequence, " of the group of rank ", ranks.front(), " and ",
                     ranks.size() - 1,
                     " others comes before another collective on one rank and after it on another");
  }

 private:
  struct Call {
    const LikeRanks::Class* caller = nullptr;
    int group = 0;  // of the caller
    int64_t sequence = 0;
    std::vector<int> followers;
    int num_before = 0;
  };

  void Add(const LikeRanks::Class& own) {
    std::vector<size_t> sequence(own.program->groups.size());
    int previous = kNone;
    for (const Action& action : own.program->actions) {
      const Exchange* const exchange = ExchangeOf(action);
      if (exchange == nullptr) continue;
      const int group = exchange->group;
      std::vector<int>& calls = calls_[own.meetings[group]];
      if (sequence[group] == calls.size()) {
        calls.push_back(static_cast<int>(all_.size()));
        all_.push_back({&own, group, static_cast<int64_t>(sequence[group])});
      }
      const int call = calls[sequence[group]++];
      if (previous != kNone) {
        all_[previous].followers.push_back(call);
        ++all_[call].num_before;
      }
      previous = call;
    }
  }

  std::vector<Call> all_;
  std::vector<std::vector<int>> calls_;  // [meeting][sequence]: numbers of all_
};

// --- P4: the norm -------------------------------------------------------------------------------

// The first action of this kind; null: there is none.
template <typename Body>
const Body* Find(const Program& program) {
  const auto found = std::find_if(program.actions.begin(), program.actions.end(),
                                  [](const Action& a) { return a.If<Body>() != nullptr; });
  return found == program.actions.end() ? nullptr : &std::get<Body>(found->body);
}

// Shows that the ranges are [0, num_blocks) together. They are sorted here.
absl::Status CheckCountsOnce(std::vector<BlockRange>& given, int64_t num_blocks, int rank) {
  std::sort(given.begin(), given.end(),
            [](const BlockRange& a, const BlockRange& b) { return a.begin < b.begin; });
  int64_t end = 0;
  for (const BlockRange& blocks : given) {
    if (blocks.num_blocks() == 0) continue;
    if (blocks.begin != end) {
      const bool is_missing = blocks.begin > end;
      return CannotRun("block ", is_missing ? end : blocks.begin, " counts ", is_missing ? 0 : 2,
                       " times in the norm of rank ", rank);
    }
    end = blocks.end;
  }
  if (end == num_blocks) return absl::OkStatus();
  return CannotRun("block ", end, " counts 0 times in the norm of rank ", rank);
}

// The blocks of which all tensor ranks have the same gradient.
std::vector<BlockRange> SharedBlocks(const Program& program) {
  std::vector<BlockRange> shared;
  int64_t end = 0;
  for (const BlockRange& cut : program.learned.cut) {
    shared.push_back({end, cut.begin});
    end = cut.end;
  }
  shared.push_back({end, program.learned.count});
  return shared;
}

// Looks at the ranks that add their squares together, or at one of each kind that adds none.
absl::Status ProveNorm(const JobPrograms& job) {
  const Program* adds = nullptr;
  std::vector<const Norm*> norms;
  for (const Program& program : job.programs) {
    norms.push_back(Find<Norm>(program));
    if (Find<SumSquares>(program) != nullptr) {
      adds = &program;
      continue;
    }
    std::vector<BlockRange> given;
    if (norms.back() != nullptr) given = NormedBlocks(program.rank, *norms.back(), program);
    MUSTER_RETURN_IF_ERROR(CheckCountsOnce(given, program.learned.count, program.rank));
  }
  if (adds == nullptr) return absl::OkStatus();
  std::vector<std::vector<BlockRange>> together(adds->mesh.tensor_ranks());
  for (size_t rank = 0; rank < job.kind_of_rank.size(); ++rank) {
    const int kind = job.kind_of_rank[rank];
    if (norms[kind] == nullptr) continue;
    const auto own = static_cast<int>(rank);
    std::vector<BlockRange>& of_part = together[adds->mesh.CoordinateOf(own, Dimension::kTensor)];
    const auto given = NormedBlocks(own, *norms[kind], job.programs[kind]);
    of_part.insert(of_part.end(), given.begin(), given.end());
  }
  for (const Program& program : job.programs) {
    if (program.learned.cut == adds->learned.cut) continue;
    return CannotRun("rank ", program.rank, " cuts other blocks over its tensor ranks than rank ",
                     adds->rank);
  }
  // The first tensor rank gives those that they share.
  const std::vector<BlockRange> shared = SharedBlocks(*adds);
  for (size_t part = 0; part < together.size(); ++part) {
    std::vector<BlockRange>& given = together[part];
    if (part > 0) given.insert(given.end(), shared.begin(), shared.end());
    MUSTER_RETURN_IF_ERROR(CheckCountsOnce(given, adds->learned.count, adds->rank));
  }
  return absl::OkStatus();
}

// --- figures ------------------------------------------------------------------------------------

// What a rank sends when `bytes` are exchanged by `n`: the costs of muster/communicator.h.
int64_t SentBytes(Collective collective, int64_t bytes, int64_t n, int64_t num_roots) {
  const int64_t others = bytes - bytes / n;
  switch (collective) {
    case Collective::kAllReduce:
      return (num_roots + 1) * others;
    case Collective::kReduceScatter:
      return num_roots * others;
    case Collective::kAllGather:
      return others;
  }
  return 0;
}

int64_t SentBy(const Action& action, const Program& program) {
  const Transfer* const transfer = action.If<Transfer>();
  if (transfer != nullptr) return transfer->is_send ? transfer->bytes : 0;
  const Exchange* const exchange = ExchangeOf(action);
  if (exchange == nullptr) return 0;
  const int64_t n = program.SizeOfGroup(exchange->group);
  const bool sums_leaves = action.If<SumLoss>() || action.If<SumSquares>();
  if (action.If<ShareLoss>() || (sums_leaves && !program.ordered)) {
    // So few bytes go by recursive doubling, unless the sum is ordered.
    return exchange->bytes * static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(n - 1)));
  }
  const bool has_roots = action.If<Reduce>() || action.If<SumLoss>();
  const auto num_roots = static_cast<int64_t>(program.sums.root_slots.size());
  return SentBytes(exchange->collective, exchange->bytes, n, has_roots ? num_roots : 1);
}

// The place in the order at which each action begins at the earliest. What is received waits for
// nothing but what is sent, received or reduced before it, so it comes while a stage computes what
// has nothing to send.
//
// Shape: [actions]
std::vector<int> BeginsOf(const Program& program) {
  std::vector<int> begins;
  int last_launch = 0;
  for (int i = 0; i < static_cast<int>(program.actions.size()); ++i) {
    const Action& action = program.actions[i];
    const auto* const transfer = action.If<Transfer>();
    const bool may_be_early = transfer != nullptr && !transfer->is_send && action.after.empty();
    begins.push_back(may_be_early ? last_launch : i);
    const Lane lane = LaneOf(action.kind());
    if (lane != Lane::kCompute && lane != Lane::kMemory) last_launch = begins.back();
  }
  return begins;
}

}  // namespace

int64_t StepFigures::sent_total() const {
  return std::accumulate(sent.begin(), sent.end(), int64_t{0});
}

StepFigures FiguresOf(const Program& program) {
  StepFigures figures = {.peak = program.held};
  int64_t& activations = At(figures.peak, Arena::kActivations);
  const std::vector<int> begins_at = BeginsOf(program);
  std::vector<int64_t> keeps(program.actions.size());  // [place]: bytes, from there on
  for (size_t i = 0; i < begins_at.size(); ++i) {
    keeps[begins_at[i]] += program.actions[i].keeps_bytes;
  }
  int64_t kept = 0;
  for (size_t i = 0; i < program.actions.size(); ++i) {
    const Action& action = program.actions[i];
    figures.sent[static_cast<size_t>(action.kind())] += SentBy(action, program);
    kept += keeps[i];
    activations = std::max(activations, kept + action.works_in_bytes);
    kept -= action.frees_bytes;
  }
  return figures;
}

absl::Status ProvePrograms(const JobPrograms& job) {
  for (const Program& program : job.programs) {
    MUSTER_RETURN_IF_ERROR(CheckReferences(program));
  }
  MUSTER_RETURN_IF_ERROR(ProveNorm(job));
  const LikeRanks ranks(job);
  MUSTER_RETURN_IF_ERROR(CallOrder(ranks).Prove());
  return Walk(ranks).Run();
}

}  // namespace muster::plan
