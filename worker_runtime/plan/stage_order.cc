#include "worker_runtime/plan/stage_order.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/plan/field_checks.h"
#include "worker_runtime/plan/schedules/generators.h"

namespace muster::plan {
namespace {

class StageTransfers {
 public:
  StageTransfers(const Schedule& schedule, absl::Span<const TiedStages> tied)
      : schedule_(schedule), tied_(tied) {}

  // visit(payload, the stage that it is made for)
  template <typename Visit>
  void ForEachMade(const StagePass& pass, Visit visit) const {
    if (pass.kind == PassKind::kForward) {
      if (pass.stage + 1 < schedule_.num_stages()) visit(Payload::kActivation, pass.stage + 1);
      return;
    }
    if (MakesInputGradient(pass) && pass.stage > 0) visit(Payload::kGradient, pass.stage - 1);
    if (!MakesWeightGradient(pass)) return;
    for (const TiedStages& tied : tied_) {
      if (tied.borrower == pass.stage && tied.first_micro_batch <= pass.micro_batch) {
        visit(Payload::kTied, tied.lender);
      }
    }
  }

  // visit(payload, the stage that makes it)
  template <typename Visit>
  void ForEachNeeded(const StagePass& pass, Visit visit) const {
    if (pass.kind == PassKind::kForward) {
      if (pass.stage > 0) visit(Payload::kActivation, pass.stage - 1);
      return;
    }
    if (MakesInputGradient(pass) && pass.stage + 1 < schedule_.num_stages()) {
      visit(Payload::kGradient, pass.stage + 1);
    }
    if (!MakesWeightGradient(pass)) return;
    for (const TiedStages& tied : tied_) {
      if (tied.lender == pass.stage && tied.first_micro_batch <= pass.micro_batch) {
        visit(Payload::kTied, tied.borrower);
      }
    }
  }

  // What goes from one rank to another, in the order of sending.
  std::vector<Handed> Way(int from, int to) const {
    std::vector<Handed> way;
    for (const StagePass& pass : schedule_.passes[from]) {
      ForEachMade(pass, [&](Payload payload, int stage) {
        if (schedule_.rank_of_stage[stage] != to) return;
        way.push_back({payload, pass.stage, pass.micro_batch});
      });
    }
    return way;
  }

  // Whether one rank has a stage that hands on to one of another's.
  bool MayGo(int from, int to) const {
    for (int stage = 0; stage < schedule_.num_stages(); ++stage) {
      if (schedule_.rank_of_stage[stage] != to) continue;
      for (const int next_to : {stage - 1, stage + 1}) {
        const bool is_there = 0 <= next_to && next_to < schedule_.num_stages();
        if (is_there && schedule_.rank_of_stage[next_to] == from) return true;
      }
    }
    return std::any_of(tied_.begin(), tied_.end(), [&](const TiedStages& tied) {
      return schedule_.rank_of_stage[tied.borrower] == from &&
             schedule_.rank_of_stage[tied.lender] == to;
    });
  }

 private:
  static bool MakesInputGradient(const StagePass& pass) {
    return pass.kind == PassKind::kBackward || pass.kind == PassKind::kInputGradient;
  }
  static bool MakesWeightGradient(const StagePass& pass) {
    return pass.kind == PassKind::kBackward || pass.kind == PassKind::kWeightGradient;
  }

  const Schedule& schedule_;
  const absl::Span<const TiedStages> tied_;
};

// What comes from another rank, of which the first so many are asked for already.
struct Coming {
  std::vector<Handed> in_order;
  size_t asked_for = 0;
};

// What the rank at `place` gets, by the rank that sends it.
std::map<int, Coming> ComingTo(int place, const Schedule& schedule,
                               const StageTransfers& transfers) {
  std::map<int, Coming> coming;
  for (int from = 0; from < schedule.num_ranks(); ++from) {
    if (from != place && transfers.MayGo(from, place)) {
      coming[from].in_order = transfers.Way(from, place);
    }
  }
  return coming;
}

// What the pass makes goes to other ranks, or to a stage of the rank at `place` itself.
void HandOn(const Schedule& schedule, const StageTransfers& transfers, int place, PassOfRank& own) {
  const StagePass& pass = own.pass;
  transfers.ForEachMade(pass, [&](Payload payload, int stage) {
    const int to = schedule.rank_of_stage[stage];
    if (to == place) {
      own.keeps = true;
    } else {
      own.sends.push_back({{payload, pass.stage, pass.micro_batch}, to});
    }
  });
}

// When each pass begins, and what it makes is made, where passes take alike long and transfers no
// time.
class IdealTimes {
 public:
  IdealTimes(const Schedule& schedule, const StageTransfers& transfers, int place)
      : schedule_(schedule),
        made_(kPayloads * schedule.num_stages() * schedule.micro_batches, kNotMade) {
    std::vector<size_t> next(schedule.num_ranks());
    std::vector<int64_t> free_from(schedule.num_ranks());
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
        while (next[rank] < schedule.passes[rank].size()) {
          const StagePass& pass = schedule.passes[rank][next[rank]];
          const int64_t begin = BeginOf(pass, transfers, free_from[rank]);
          if (begin == kNotMade) break;
          if (rank == place) begins_.push_back(begin);
          free_from[rank] = begin + 1;
          transfers.ForEachMade(pass, [&](Payload payload, int) {
            made_[PlaceOf({payload, pass.stage, pass.micro_batch})] = begin + 1;
          });
          ++next[rank];
          moved = true;
        }
      }
    }
    MUSTER_CHECK(begins_.size() == schedule.passes[place].size());
  }

  bool IsMade(const Handed& what, size_t before_pass) const {
    return made_[PlaceOf(what)] <= begins_[before_pass];
  }

 private:
  static constexpr int64_t kNotMade = -1;
  static constexpr int64_t kPayloads = 4;  // those that passes make, and kNothing

  int64_t PlaceOf(const Handed& what) const {
    return (static_cast<int64_t>(what.payload) * schedule_.num_stages() + what.stage) *
               schedule_.micro_batches +
           what.micro_batch;
  }

  // kNotMade: it waits for what is not there yet.
  int64_t BeginOf(const StagePass& pass, const StageTransfers& transfers, int64_t free_from) const {
    int64_t begin = free_from;
    transfers.ForEachNeeded(pass, [&](Payload payload, int stage) {
      const int64_t made = made_[PlaceOf({payload, stage, pass.micro_batch})];
      begin = made == kNotMade || begin == kNotMade ? kNotMade : std::max(begin, made);
    });
    return begin;
  }

  const Schedule& schedule_;
  std::vector<int64_t> made_;    // by what is handed on
  std::vector<int64_t> begins_;  // of the passes of the rank
};

// The schedule that a plan has itself, and not by name.
std::optional<Schedule> OwnSchedule(const Plan& plan) {
  if (!IsScheduleText(plan.schedule)) return std::nullopt;
  absl::StatusOr<Schedule> read = ParseSchedule(plan.schedule);
  return read.ok() ? std::optional(*std::move(read)) : std::nullopt;
}

}  // namespace

int StagesPerRank(const Plan& plan) {
  return plan.stages_per_rank == 0 ? UsualStagesPerRank(plan.schedule)
                                   : static_cast<int>(plan.stages_per_rank);
}

int StagesOver(const Plan& plan, int ranks) {
  if (ranks == 1) return 1;
  const std::optional<Schedule> own = OwnSchedule(plan);
  return own ? own->num_stages() : ranks * StagesPerRank(plan);
}

int RanksOf(const Plan& plan, int stages) {
  if (stages == 1) return 1;
  const std::optional<Schedule> own = OwnSchedule(plan);
  const bool is_own = own && own->num_stages() == stages;
  return is_own ? own->num_ranks() : stages / StagesPerRank(plan);
}

absl::Status CheckStagesPerRank(const Plan& plan) {
  if (plan.stages != 1 || plan.stages_per_rank <= 1) return absl::OkStatus();
  return Bad("stages_per_rank", absl::StrCat(plan.stages_per_rank),
             "1 where there is one stage, which is not a pipeline");
}

absl::StatusOr<Schedule> ScheduleOf(const Plan& plan, int ranks) {
  ScheduleShape shape = {.ranks = ranks, .micro_batches = plan.accumulation};
  if (ranks > 1) {
    const bool is_own = plan.stages_per_rank == 0 && IsScheduleText(plan.schedule);
    shape.stages_per_rank = is_own ? kStagesOfText : StagesPerRank(plan);
  }
  // It takes however many micro-batches.
  if (ranks == 1 || plan.schedule == Plan().schedule) return OneForwardOneBackward(shape);
  return MakeSchedule(plan.schedule, shape);
}

std::vector<int> StagesAt(const Schedule& schedule, int place) {
  std::vector<int> stages;
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    if (schedule.rank_of_stage[stage] == place) stages.push_back(stage);
  }
  return stages;
}

bool SplitsBackward(const Schedule& schedule) {
  const auto is_part = [](const StagePass& pass) {
    return pass.kind == PassKind::kInputGradient || pass.kind == PassKind::kWeightGradient;
  };
  return std::any_of(schedule.passes.begin(), schedule.passes.end(), [&](const auto& of_rank) {
    return std::any_of(of_rank.begin(), of_rank.end(), is_part);
  });
}

bool SplitsBackward(const Plan& plan) {
  if (plan.stages == 1) return false;
  if (IsScheduleText(plan.schedule)) {
    const std::optional<Schedule> own = OwnSchedule(plan);
    return own && SplitsBackward(*own);
  }
  Plan smallest = plan;
  smallest.accumulation = 1;
  const absl::StatusOr<Schedule> schedule = ScheduleOf(smallest, 2);
  return schedule.ok() && SplitsBackward(*schedule);
}

std::vector<PassOfRank> PassesOf(const Schedule& schedule, absl::Span<const TiedStages> tied,
                                 int place) {
  const StageTransfers transfers(schedule, tied);
  std::map<int, Coming> coming = ComingTo(place, schedule, transfers);
  // A rank with several stages would wait for others that wait for it, if it took what was made for
  // it only once it needs that. With what is made taken before the next pass begins, nobody waits
  // for a pass that begins later.
  std::optional<IdealTimes> times;
  if (schedule.stages_per_rank() > 1) times.emplace(schedule, transfers, place);
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
             times->IsMade(way.in_order[way.asked_for], i)) {
        take(from, way);
      }
    }
    transfers.ForEachNeeded(pass, [&](Payload payload, int stage) {
      const int from = schedule.rank_of_stage[stage];
      if (from == place) return;
      own.needs.push_back({payload, stage, pass.micro_batch});
      while (!is_there.contains(own.needs.back())) take(from, coming.at(from));
    });
    HandOn(schedule, transfers, place, own);
  }
  return passes;
}

}  // namespace muster::plan
