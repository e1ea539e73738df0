#include "worker_runtime/plan/prove_program.h"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"

namespace muster::plan {
namespace {

std::string Name(const Program& program, size_t action) { return NameOfAction(program, action); }

// --- P1 and P2: the walk ------------------------------------------------------------------------

// The side of one rank in something that ranks meet in.
struct Side {
  int rank = 0;
  int action = 0;
};

bool IsLaunched(const Action& action) {
  const Lane lane = LaneOf(action.kind());
  return lane != Lane::kCompute && lane != Lane::kMemory;
}

class Walk {
 public:
  explicit Walk(absl::Span<const Program> programs) : programs_(programs) {
    for (const Program& program : programs) {
      done_.emplace_back(program.actions.size(), false);
      next_compute_.push_back(0);
      next_launch_.push_back(0);
      next_memory_.push_back(0);
      came_to_.emplace_back(program.actions.size(), kNone);
    }
  }

  absl::Status Run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < programs_.size(); ++rank) {
        while (Compute(rank) || GiveUp(rank)) moved = true;
        for (;;) {
          MUSTER_ASSIGN_OR_RETURN(const bool launched, Launch(rank));
          if (!launched) break;
          moved = true;
        }
      }
    }
    return CheckEnd();
  }

 private:
  bool IsReady(int rank, const Action& action) const {
    const auto is_done = [&](int i) { return static_cast<bool>(done_[rank][i]); };
    return std::all_of(action.after.begin(), action.after.end(), is_done) &&
           (BackwardOf(action) == kNone || is_done(BackwardOf(action))) &&
           (action.at.pass == kNone || came_to_[rank][action.at.pass] >= action.at.entry);
  }

  // Skips to the next action of the kind that `wanted` tells.
  template <typename Wanted>
  const Action* Next(size_t rank, size_t& at, Wanted wanted) const {
    const std::vector<Action>& actions = programs_[rank].actions;
    while (at < actions.size() && !wanted(actions[at])) ++at;
    return at < actions.size() ? &actions[at] : nullptr;
  }

  bool Compute(size_t rank) {
    size_t& at = next_compute_[rank];
    const Action* action =
        Next(rank, at, [](const Action& a) { return LaneOf(a.kind()) == Lane::kCompute; });
    if (action == nullptr) return false;
    const absl::Span<const Entry> entries = EntriesOf(*action);
    int& use = came_to_[rank][at];
    if (use == kNone) {
      if (!IsReady(static_cast<int>(rank), *action)) return false;
      use = 0;
    } else if (!MayUse(rank, entries[use])) {
      return false;
    } else {
      ++use;
    }
    if (use == static_cast<int>(entries.size())) done_[rank][at++] = true;
    return true;
  }

  bool MayUse(size_t rank, const Entry& entry) const {
    const auto is_done = [&](int other) { return static_cast<bool>(done_[rank][other]); };
    return std::all_of(entry.unshards.begin(), entry.unshards.end(), is_done) &&
           std::all_of(entry.waits.begin(), entry.waits.end(), is_done);
  }

  bool GiveUp(size_t rank) {
    size_t& at = next_memory_[rank];
    const Action* action =
        Next(rank, at, [](const Action& a) { return LaneOf(a.kind()) == Lane::kMemory; });
    if (action == nullptr || !IsReady(static_cast<int>(rank), *action)) return false;
    done_[rank][at++] = true;
    return true;
  }

  absl::StatusOr<bool> Launch(size_t rank) {
    size_t& at = next_launch_[rank];
    const Action* action = Next(rank, at, [](const Action& a) { return IsLaunched(a); });
    if (action == nullptr || !IsReady(static_cast<int>(rank), *action)) return false;
    const Side side = {static_cast<int>(rank), static_cast<int>(at)};
    ++at;
    if (const Transfer* const transfer = action->If<Transfer>()) {
      MUSTER_RETURN_IF_ERROR(Hand(side, *transfer));
    } else {
      MUSTER_RETURN_IF_ERROR(Meet(side, *ExchangeOf(*action)));
    }
    return true;
  }

  absl::Status Meet(Side side, const Exchange& exchange) {
    const Group& group = programs_[side.rank].groups[exchange.group];
    const int64_t sequence = num_launched_[{side.rank, group.ranks}]++;
    std::vector<Side>& sides = meetings_[{group.ranks, sequence}];
    sides.push_back(side);
    if (CallOf(sides.front()) != CallOf(side)) return Differ(sides.front(), side);
    if (sides.size() < group.ranks.size()) return absl::OkStatus();
    for (const Side& each : sides) done_[each.rank][each.action] = true;
    return absl::OkStatus();
  }

  // Transfers between two ranks meet in the order of their calls.
  absl::Status Hand(Side side, const Transfer& transfer) {
    const std::pair<int, int> way = transfer.is_send ? std::pair(side.rank, transfer.peer)
                                                     : std::pair(transfer.peer, side.rank);
    std::vector<Side>& waiting = waiting_[way];
    const auto of = [&](Side any) { return ActionOf(any).As<Transfer>(); };
    if (waiting.empty() || of(waiting.front()).is_send == transfer.is_send) {
      waiting.push_back(side);
      return absl::OkStatus();
    }
    const Side other = waiting.front();
    waiting.erase(waiting.begin());
    if (of(other).what != transfer.what || of(other).bytes != transfer.bytes) {
      return Differ(other, side);
    }
    done_[side.rank][side.action] = true;
    done_[other.rank][other.action] = true;
    return absl::OkStatus();
  }

  const Action& ActionOf(const Side& side) const {
    return programs_[side.rank].actions[side.action];
  }
  // What must be the same on all sides.
  std::tuple<ActionKind, Collective, int64_t, BlockRange> CallOf(const Side& side) const {
    const Action& action = ActionOf(side);
    const Exchange& exchange = *ExchangeOf(action);
    return {action.kind(), exchange.collective, exchange.bytes,
            BlocksOf(action, programs_[side.rank])};
  }
  absl::Status Differ(const Side& a, const Side& b) const {
    return CannotRun(Name(programs_[a.rank], a.action), " meets ",
                     Name(programs_[b.rank], b.action));
  }

  absl::Status CheckEnd() const {
    for (size_t rank = 0; rank < programs_.size(); ++rank) {
      const auto stuck = std::find(done_[rank].begin(), done_[rank].end(), false);
      if (stuck == done_[rank].end()) continue;
      return CannotRun(Name(programs_[rank], stuck - done_[rank].begin()), " never ends");
    }
    return absl::OkStatus();
  }

  const absl::Span<const Program> programs_;
  std::vector<std::vector<bool>> done_;    // [rank][action]
  std::vector<size_t> next_compute_;       // [rank]
  std::vector<size_t> next_launch_;        // [rank]
  std::vector<size_t> next_memory_;        // [rank]
  std::vector<std::vector<int>> came_to_;  // [rank][action]: a pass to which of its uses
  std::map<std::pair<int, std::vector<int>>, int64_t> num_launched_;
  std::map<std::pair<std::vector<int>, int64_t>, std::vector<Side>> meetings_;
  std::map<std::pair<int, int>, std::vector<Side>> waiting_;  // by (from, to)
};

// --- P3: one order ------------------------------------------------------------------------------

// The k-th collective of a group.
using Instance = std::pair<std::vector<int>, int64_t>;

absl::Status ProveOneOrder(absl::Span<const Program> programs) {
  std::map<Instance, std::vector<Instance>> followers;
  std::map<Instance, int> num_before;
  for (const Program& program : programs) {
    std::map<int, int64_t> sequence;
    std::optional<Instance> previous;
    for (const Action& action : program.actions) {
      const Exchange* const exchange = ExchangeOf(action);
      if (exchange == nullptr) continue;
      Instance instance = {program.groups[exchange->group].ranks, sequence[exchange->group]++};
      num_before.try_emplace(instance, 0);
      if (previous && *previous != instance) {
        followers[*previous].push_back(instance);
        ++num_before[instance];
      }
      previous = std::move(instance);
    }
  }
  std::vector<Instance> free;
  for (const auto& [instance, count] : num_before) {
    if (count == 0) free.push_back(instance);
  }
  size_t ordered = 0;
  while (!free.empty()) {
    const Instance instance = std::move(free.back());
    free.pop_back();
    ++ordered;
    for (const Instance& next : followers[instance]) {
      if (--num_before[next] == 0) free.push_back(next);
    }
  }
  if (ordered == num_before.size()) return absl::OkStatus();
  const auto ring = std::find_if(num_before.begin(), num_before.end(),
                                 [](const auto& entry) { return entry.second > 0; });
  return CannotRun("collective ", ring->first.second, " of the group of rank ",
                   ring->first.first.front(), " and ", ring->first.first.size() - 1,
                   " others comes before another collective on one rank and after it on another");
}

// --- P4: the norm -------------------------------------------------------------------------------

// Looks at the ranks that add their squares together, or at one that adds none.
absl::Status ProveNorm(absl::Span<const Program> programs) {
  std::vector<int> times(programs.empty() ? 0 : programs.front().num_blocks, 0);
  const auto check = [&](const Program& program) {
    const auto wrong = std::find_if(times.begin(), times.end(), [](int t) { return t != 1; });
    if (wrong == times.end()) return absl::OkStatus();
    return CannotRun("block ", wrong - times.begin(), " counts ", *wrong,
                     " times in the norm of rank ", program.rank);
  };
  for (const Program& program : programs) {
    const bool adds = std::any_of(program.actions.begin(), program.actions.end(),
                                  [](const Action& a) { return a.If<SumSquares>() != nullptr; });
    for (const BlockRange& blocks : program.normed) {
      for (int64_t b = blocks.begin; b < blocks.end; ++b) ++times[b];
    }
    const bool is_last = &program == &programs.back();
    if (adds && !is_last) continue;
    MUSTER_RETURN_IF_ERROR(check(program));
    std::fill(times.begin(), times.end(), 0);
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
  const auto n = static_cast<int64_t>(program.groups[exchange->group].ranks.size());
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

absl::Status ProvePrograms(absl::Span<const Program> programs) {
  for (const Program& program : programs) {
    MUSTER_RETURN_IF_ERROR(CheckReferences(program));
  }
  MUSTER_RETURN_IF_ERROR(ProveNorm(programs));
  MUSTER_RETURN_IF_ERROR(ProveOneOrder(programs));
  return Walk(programs).Run();
}

}  // namespace muster::plan
