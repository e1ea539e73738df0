#include "worker_runtime/plan/schedules/pass_order.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "proto/base/status_macros.h"

namespace muster::plan {
namespace {

constexpr absl::string_view kNamesOfPayloads[] = {"activation", "gradient", "tied gradient",
                                                  "tied value"};

bool MakesInputGradient(const StagePass& pass) {
  return pass.kind == PassKind::kBackward || pass.kind == PassKind::kInputGradient;
}

// What goes from one rank to another, in the order of sending.
std::vector<Handed> WayBetween(int from, int to, const Schedule& schedule,
                               absl::Span<const TiedStages> tied) {
  std::vector<Handed> way;
  for (const StagePass& pass : schedule.passes[from]) {
    for (const HandedBy& made : MadeBy(pass, schedule, tied)) {
      if (made.place == to) way.push_back(made.what);
    }
  }
  return way;
}

// The ranks, but the one at `place`, whose stages hand on to one of its own.
std::set<int> GiversOf(int place, const Schedule& schedule, absl::Span<const TiedStages> tied) {
  std::set<int> givers;
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    if (schedule.rank_of_stage[stage] != place) continue;
    for (const int giver : {stage - 1, stage + 1}) {
      if (0 <= giver && giver < schedule.num_stages()) givers.insert(schedule.rank_of_stage[giver]);
    }
  }
  for (const TiedStages& one : tied) {
    if (schedule.rank_of_stage[one.lender] != place) continue;
    givers.insert(schedule.rank_of_stage[one.borrower]);
  }
  givers.erase(place);
  return givers;
}

// When passes begin, and what they make is made, where passes take alike long and transfers no
// time.
class IdealTimes {
 public:
  IdealTimes(const Schedule& schedule, absl::Span<const TiedStages> tied)
      : schedule_(schedule),
        made_(kPayloads * schedule.num_stages() * schedule.micro_batches, kNever),
        begins_(schedule.num_ranks()) {
    std::vector<int64_t> free_from(schedule.num_ranks());
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
        while (begins_[rank].size() < schedule.passes[rank].size()) {
          const StagePass& pass = schedule.passes[rank][begins_[rank].size()];
          int64_t begin = free_from[rank];
          for (const HandedBy& needed : NeedsOf(pass, schedule, tied)) {
            begin = std::max(begin, made_[PlaceOf(needed.what)]);
          }
          if (begin == kNever) break;
          begins_[rank].push_back(begin);
          free_from[rank] = begin + 1;
          for (const HandedBy& made : MadeBy(pass, schedule, tied)) {
            made_[PlaceOf(made.what)] = begin + 1;
          }
          moved = true;
        }
      }
    }
  }

  // False of a pass that never begins.
  bool IsMade(const Handed& what, int rank, size_t before_pass) const {
    return before_pass < begins_[rank].size() && made_[PlaceOf(what)] <= begins_[rank][before_pass];
  }

 private:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  static constexpr int64_t kPayloads = 3;  // those that passes make

  int64_t PlaceOf(const Handed& what) const {
    return (static_cast<int64_t>(what.payload) * schedule_.num_stages() + what.stage) *
               schedule_.micro_batches +
           what.micro_batch;
  }

  const Schedule& schedule_;
  std::vector<int64_t> made_;                 // by what is handed on
  std::vector<std::vector<int64_t>> begins_;  // [ranks], of the passes that begin
};

// A rank with several stages would wait for others that wait for it, if it took what was made for
// it only once it needs that. With what is made taken before the next pass begins, nobody waits
// for a pass that begins later.
std::optional<IdealTimes> TimesFor(const Schedule& schedule, absl::Span<const TiedStages> tied) {
  if (schedule.stages_per_rank() == 1) return std::nullopt;
  return IdealTimes(schedule, tied);
}

// What comes from another rank, of which the first so many are asked for already.
struct Coming {
  std::vector<Handed> in_order;
  size_t asked_for = 0;
};

std::vector<PassOfRank> OrderOfRank(const Schedule& schedule, absl::Span<const TiedStages> tied,
                                    int place, const std::optional<IdealTimes>& times) {
  std::map<int, Coming> coming;  // by the rank that sends
  for (const int from : GiversOf(place, schedule, tied)) {
    coming[from].in_order = WayBetween(from, place, schedule, tied);
  }
  std::set<Handed> is_there;
  std::vector<PassOfRank> passes;
  for (size_t i = 0; i < schedule.passes[place].size(); ++i) {
    const StagePass& pass = schedule.passes[place][i];
    PassOfRank& own = passes.emplace_back(PassOfRank{.pass = pass});
    const auto take = [&](int from, Coming& way) {
      MUSTER_CHECK(way.asked_for < way.in_order.size());
      const Handed& next = way.in_order[way.asked_for++];
      own.receives.push_back({next, from});
      is_there.insert(next);
    };
    for (auto& [from, way] : coming) {
      while (times && way.asked_for < way.in_order.size() &&
             times->IsMade(way.in_order[way.asked_for], place, i)) {
        take(from, way);
      }
    }
    for (const HandedBy& needed : NeedsOf(pass, schedule, tied)) {
      if (needed.place == place) continue;
      own.needs.push_back(needed.what);
      while (!is_there.contains(needed.what)) take(needed.place, coming.at(needed.place));
    }
    for (const HandedBy& made : MadeBy(pass, schedule, tied)) {
      if (made.place == place) {
        own.keeps = true;
      } else {
        own.sends.push_back(made);
      }
    }
  }
  return passes;
}

}  // namespace

absl::string_view ToString(Payload payload) {
  return kNamesOfPayloads[static_cast<size_t>(payload)];
}

HandedByStages MadeBy(const StagePass& pass, const Schedule& schedule,
                      absl::Span<const TiedStages> tied) {
  HandedByStages made;
  const auto add = [&](Payload payload, int for_stage) {
    if (for_stage < 0 || for_stage >= schedule.num_stages()) return;
    made.push_back({{payload, pass.stage, pass.micro_batch}, schedule.rank_of_stage[for_stage]});
  };
  if (pass.kind == PassKind::kForward) add(Payload::kActivation, pass.stage + 1);
  if (MakesInputGradient(pass)) add(Payload::kGradient, pass.stage - 1);
  if (!WritesGradients(pass.kind)) return made;
  for (const TiedStages& one : tied) {
    if (one.borrower != pass.stage || pass.micro_batch < one.first_micro_batch) continue;
    add(Payload::kTied, one.lender);
  }
  return made;
}

HandedByStages NeedsOf(const StagePass& pass, const Schedule& schedule,
                       absl::Span<const TiedStages> tied) {
  HandedByStages needs;
  const auto add = [&](Payload payload, int stage) {
    if (stage < 0 || stage >= schedule.num_stages()) return;
    needs.push_back({{payload, stage, pass.micro_batch}, schedule.rank_of_stage[stage]});
  };
  if (pass.kind == PassKind::kForward) add(Payload::kActivation, pass.stage - 1);
  if (MakesInputGradient(pass)) add(Payload::kGradient, pass.stage + 1);
  if (!WritesGradients(pass.kind)) return needs;
  for (const TiedStages& one : tied) {
    if (one.lender != pass.stage || pass.micro_batch < one.first_micro_batch) continue;
    add(Payload::kTied, one.borrower);
  }
  return needs;
}

std::vector<std::vector<PassOfRank>> OrderOfRanks(const Schedule& schedule,
                                                  absl::Span<const TiedStages> tied) {
  const std::optional<IdealTimes> times = TimesFor(schedule, tied);
  std::vector<std::vector<PassOfRank>> order;
  for (int place = 0; place < schedule.num_ranks(); ++place) {
    order.push_back(OrderOfRank(schedule, tied, place, times));
  }
  return order;
}

std::vector<PassOfRank> PassesOf(const Schedule& schedule, absl::Span<const TiedStages> tied,
                                 int place) {
  return OrderOfRank(schedule, tied, place, TimesFor(schedule, tied));
}

}  // namespace muster::plan
