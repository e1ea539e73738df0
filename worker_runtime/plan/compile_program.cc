#include "worker_runtime/plan/compile_program.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "muster/sum_tree.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/plan/choose_reduction.h"
#include "worker_runtime/plan/exchange_memory.h"
#include "worker_runtime/plan/held_memory.h"
#include "worker_runtime/plan/program_compiler.h"
#include "worker_runtime/plan/prove_program.h"
#include "worker_runtime/plan/stage_order.h"

namespace muster::plan {

namespace {

// What is compiled, with a schedule.
class Scheduled {
 public:
  explicit Scheduled(const ProgramInput& input) : input_(input) {
    if (input.schedule != nullptr) return;
    absl::StatusOr<Schedule> made = ScheduleOf(input.plan, input.mesh.places());
    MUSTER_CHECK(made.ok());
    made_ = *std::move(made);
    input_.schedule = &made_;
  }
  Scheduled(const Scheduled&) = delete;
  Scheduled& operator=(const Scheduled&) = delete;

  const ProgramInput& input() const { return input_; }

 private:
  ProgramInput input_;
  Schedule made_;
};

}  // namespace

absl::Status CheckSchedule(const ProgramInput& input, const Schedule& schedule) {
  const auto refuse = [&](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat("schedule ", schedule.name, ": ", why...));
  };
  MUSTER_CHECK(schedule.num_stages() == static_cast<int>(input.stages.size()));
  MUSTER_CHECK(schedule.num_ranks() == input.mesh.places());
  MUSTER_CHECK(schedule.micro_batches == input.plan.accumulation);
  if (SplitsBackward(schedule) && input.plan.recompute.kind != Recompute::Kind::kNone) {
    return refuse(
        "what is recomputed has the gradients of its weights with those of its inputs, so nothing "
        "is left for later; 1f1b works with --recompute, or leave that out");
  }
  return absl::OkStatus();
}

Program CompileProgram(const ProgramInput& input, int rank) {
  MUSTER_CHECK(0 <= rank && rank < input.mesh.size());
  const Scheduled scheduled(input);
  MUSTER_CHECK(input.stages.size() == scheduled.input().schedule->rank_of_stage.size());
  return ProgramCompiler(scheduled.input(), rank, ReducesEachMicroBatch(scheduled.input())).Run();
}

namespace {

// In how many ways the replicas of a place add their micro-batches. [replica]: which of them.
std::vector<int> WaysOfSums(const ProgramInput& input) {
  std::vector<int> ways(input.mesh.replicas());
  if (input.plan.mode != SumMode::kOrdered) return ways;
  std::vector<OrderedSums> known;
  for (size_t replica = 0; replica < ways.size(); ++replica) {
    OrderedSums sums = PlanOrderedSums(static_cast<int64_t>(replica), input.mesh.replicas(),
                                       input.plan.accumulation);
    const auto same = std::find(known.begin(), known.end(), sums);
    ways[replica] = static_cast<int>(same - known.begin());
    if (same == known.end()) known.push_back(std::move(sums));
  }
  return ways;
}

}  // namespace

JobPrograms CompileJob(const ProgramInput& unscheduled) {
  const Scheduled scheduled(unscheduled);
  const ProgramInput& input = scheduled.input();
  const Mesh& mesh = input.mesh;
  const bool reduces_each = ReducesEachMicroBatch(input);
  const std::vector<int> ways = WaysOfSums(input);
  // What a rank hands to those with the same shards is as large as these are.
  const bool hands_on = mesh.SizeOf(kShards) > 1 && mesh.SizeOf(Dimension::kReplica) > 1;
  Program of_place;  // has no actions
  const auto sizes_of_shards = [&](int rank) {
    std::vector<int64_t> sizes;
    for (const Bucket& bucket : of_place.buckets) {
      sizes.push_back(OwnedBy(rank, bucket, of_place).num_blocks());
    }
    return sizes;
  };
  JobPrograms job;
  std::map<std::tuple<int, int, std::vector<int64_t>>, int> kinds;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const int place = mesh.PlaceOf(rank), replica = mesh.IndexOf(rank, kReplicas);
    if (hands_on && replica == 0) of_place = ProgramDraft(input, rank, reduces_each).program;
    const auto [kind, is_new] = kinds.try_emplace({place, ways[replica], sizes_of_shards(rank)},
                                                  static_cast<int>(job.programs.size()));
    if (is_new) job.programs.push_back(ProgramCompiler(input, rank, reduces_each).Run());
    job.kind_of_rank.push_back(kind->second);
  }
  return job;
}

ReductionChoice ReductionOf(const ProgramInput& unscheduled) {
  const Scheduled scheduled(unscheduled);
  const ProgramInput& input = scheduled.input();
  const GradientReduction asked = input.plan.gradient_reduction;
  if (asked != GradientReduction::kChosen) return {asked, "the plan says so"};
  if (input.plan.accumulation == 1) {
    return {GradientReduction::kEachMicroBatch, "there is one micro-batch"};
  }
  int64_t exchange = 0;  // at most, where all ranks share a machine: who does, is not known here
  const auto cost = [&](bool reduces_each) {
    ReductionCost most;
    for (int place = 0; place < input.mesh.places(); ++place) {
      const int rank = input.mesh.Moved(0, Dimension::kPipeline, place);
      const Program program = ProgramCompiler(input, rank, reduces_each).Run();
      const StepFigures figures = FiguresOf(program);
      exchange = std::max(exchange, ExchangeMemoryOf(program, input.mesh.size()).total());
      most.memory_bytes = std::max(most.memory_bytes, TotalOf(figures.peak));
      most.sent_bytes = std::max(most.sent_bytes, figures.sent_total());
    }
    return most;
  };
  const ReductionCost each = cost(true), once = cost(false);
  const int64_t limit = input.plan.memory_bytes_max;
  return ChooseReduction(each, once, limit == 0 ? 0 : std::max<int64_t>(limit - exchange, 1));
}

bool ReducesEachMicroBatch(const ProgramInput& input) {
  const bool is_choice = NeedsUses(input.plan, input.mesh) && input.plan.mode != SumMode::kOrdered;
  if (!is_choice) return true;
  return ReductionOf(input).chosen == GradientReduction::kEachMicroBatch;
}

bool NeedsUses(const Plan& plan, const Mesh& mesh) {
  return mesh.SizeOf(kShards) > 1 && plan.gradients.placement == Placement::kShard;
}

namespace {

// The rank of the first place that needs most.
int RankOfPlaceThatNeedsMost(const ProgramInput& input) {
  const Plan& plan = input.plan;
  if (plan.mode != SumMode::kOrdered) return 0;  // the largest shards
  const int64_t replicas = input.mesh.replicas();
  const auto needs = [&](int64_t replica) {
    const LeafRange range = {replica * plan.accumulation, (replica + 1) * plan.accumulation};
    return std::pair(OrderedPartialSums(replica, replicas, plan.accumulation),
                     CoverWithSubtrees(range, replicas * plan.accumulation).size());
  };
  int most = 0;
  for (int replica = 1; replica < replicas; ++replica) {
    if (needs(replica) > needs(most)) most = replica;
  }
  most *= input.mesh.tensor_ranks();
  const auto bytes = [&](int rank) { return TotalOf(FiguresOf(CompileProgram(input, rank)).peak); };
  return most == 0 || bytes(0) > bytes(most) ? 0 : most;
}

}  // namespace

int RankThatNeedsMost(const ProgramInput& input, int place) {
  return input.mesh.Moved(RankOfPlaceThatNeedsMost(input), Dimension::kPipeline, place);
}

int RankThatNeedsMost(const ProgramInput& input) {
  int most = 0;
  int64_t most_bytes = -1;
  for (int place = 0; place < input.mesh.places(); ++place) {
    const int rank = RankThatNeedsMost(input, place);
    const int64_t bytes =
        input.mesh.places() == 1 ? 0 : TotalOf(FiguresOf(CompileProgram(input, rank)).peak);
    if (bytes <= most_bytes) continue;
    most = rank;
    most_bytes = bytes;
  }
  return most;
}

StageInfo StageOfUnits(const BlockLayout& layout, int first_unit, int end_unit, UseTrace trace) {
  const auto blocks = [&](const std::vector<BlockRange>& units) {
    return BlockRange{units[first_unit].begin, units[end_unit - 1].end};
  };
  return {.blocks = blocks(layout.units),
          .frozen_blocks = blocks(layout.frozen_units),
          .trace = std::move(trace)};
}

StageInfo WholeModel(const BlockLayout& layout, UseTrace trace) {
  return StageOfUnits(layout, 0, static_cast<int>(layout.units.size()), std::move(trace));
}

int StageOfBlock(absl::Span<const StageInfo> stages, int64_t block) {
  const BlockRange one = {block, block + 1};
  const auto found = std::find_if(stages.begin(), stages.end(), [&](const StageInfo& stage) {
    return stage.blocks.Overlaps(one) || stage.frozen_blocks.Overlaps(one);
  });
  MUSTER_CHECK(found != stages.end());
  return static_cast<int>(found - stages.begin());
}

int64_t FirstBlockOf(const BlockLayout& layout, int unit) {
  const BlockRange& learned = layout.units[unit];
  return learned.num_blocks() > 0 ? learned.begin : layout.frozen_units[unit].begin;
}

}  // namespace muster::plan
