#include "worker_runtime/plan/compile_program.h"

#include <algorithm>
#include <bit>
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

int64_t SentBytes(Collective collective, int64_t bytes, int64_t n, int64_t num_roots) {
  if (n == 1) return 0;
  const int64_t others = bytes - bytes / n;
  switch (collective) {
    case Collective::kAllReduce:
      return (num_roots + 1) * others;
    case Collective::kReduceScatter:
      return num_roots * others;
    case Collective::kAllGather:
      return others;
    case Collective::kTransfer:
      return bytes;
    case Collective::kAlone:
      return 0;
  }
  return 0;
}

int64_t SentOfSmall(int64_t bytes, int64_t n) {
  return bytes * static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(n - 1)));
}

Program ProgramCompiler::Run() {
  SetUp();
  PlanUses();
  AddPasses();
  AddReductions();
  AddNorm();
  AddUpdates();
  program_.gathered_blocks = gathered_.size();
  program_.frozen_gathered_blocks = frozen_gathered_.size();
  program_.unreduced_blocks = unreduced_.size();
  PlaceHeads();
  program_.padding_bytes = padding_.size();
  HoldMemory(input_, layout_, program_);
  return std::move(program_);
}

bool ProgramCompiler::Shards(const StatePlan& state) const {
  return state.placement == Placement::kShard && shard_ranks() > 1;
}

bool ProgramCompiler::AddsByGroup() const {
  if (!program_.ordered || !is_hybrid()) return is_sharded();
  return std::has_single_bit(static_cast<uint64_t>(shard_ranks() * plan_.accumulation));
}

void ProgramCompiler::SetUp() {
  groups_ = PlanRankGroups(plan_, input_.mesh, program_.rank);
  program_.groups = groups_.groups;
  program_.shards = groups_.shards;
  program_.secondary = groups_.secondary;
  program_.ordered = plan_.mode == SumMode::kOrdered;
  program_.leaves_per_rank = plan_.accumulation;
  if (program_.ordered) {
    sums_ = PlanOrderedSums(replica_, replicas(), plan_.accumulation);
  } else {
    sums_ = {.num_slots = 1, .root_slots = {0}};
    sums_.leaves.resize(plan_.accumulation);
  }
  program_.streams_gradients = StreamsGradients();
  program_.num_slots = program_.streams_gradients ? 0 : sums_.num_slots;
  program_.root_slots = sums_.root_slots;
  for (const int stage : StagesAt(*input_.schedule, place_)) {
    program_.stages.push_back({stage, input_.stages[stage].blocks});
  }
  program_.num_blocks = layout_.num_blocks;
  program_.sharded = is_sharded();
  const auto add_buckets = [this](std::vector<Bucket> more) {
    program_.buckets.insert(program_.buckets.end(), more.begin(), more.end());
  };
  const std::vector<int> stages = StagesAsTheyEnd();
  for (const int stage : stages) {
    stage_ = stage;
    add_buckets(BucketsInOrder());
  }
  for (const int stage : stages) {
    add_buckets(PlanFrozenBuckets(input_.parameters, layout_, input_.stages[stage].frozen_blocks));
  }
  program_.bucket_of_unit.assign(layout_.units.size(), kNone);
  program_.frozen_bucket_of_unit.assign(layout_.units.size(), kNone);
  for (size_t b = 0; b < program_.buckets.size(); ++b) {
    Bucket& bucket = program_.buckets[b];
    const BlockRange blocks = bucket.blocks;
    bucket.owned = is_sharded() ? ShardOf(blocks, inner(), shard_ranks()) : blocks;
    const std::vector<BlockRange>& units = bucket.frozen ? layout_.frozen_units : layout_.units;
    std::vector<int>& of_unit =
        bucket.frozen ? program_.frozen_bucket_of_unit : program_.bucket_of_unit;
    for (size_t u = 0; u < units.size(); ++u) {
      const bool is_empty = units[u].num_blocks() == 0;
      if (!is_empty && units[u].Overlaps(blocks)) of_unit[u] = static_cast<int>(b);
    }
  }
  ChooseGathered();
}

bool ProgramCompiler::EntersBuckets() const {
  return program_.streams_gradients && !shards_parameters() && input_.stages.size() == 1 &&
         !info().trace.backward_uses.empty();
}

void ProgramCompiler::PlaceHeads() {
  for (Bucket& bucket : program_.buckets) {
    if (bucket.head_elements > 0) bucket.head_place = program_.unreduced_blocks++;
  }
}

bool ProgramCompiler::StreamsGradients() const {
  if (!Shards(plan_.gradients)) return false;
  if (program_.ordered) return plan_.accumulation == 1 && AddsByGroup();
  return plan_.accumulation == 1 || reduces_each_;
}

void ProgramCompiler::ChooseGathered() {
  if (!shards_parameters()) return;
  for (Bucket& bucket : program_.buckets) bucket.gathered = true;
  const GatherPlan& gathering = plan_.gathering;
  int64_t persistent = 0;
  for (int u = 0; u < static_cast<int>(layout_.units.size()); ++u) {
    if (!HoldsUnit(program_, u)) continue;
    const int64_t elements =
        layout_.units[u].num_elements() + layout_.frozen_units[u].num_elements();
    const bool is_small = elements <= gathering.persistence_threshold &&
                          persistent + elements <= gathering.persistence_total;
    for (const int b : BucketsOfUnit(program_, u)) {
      Bucket& bucket = program_.buckets[b];
      if (!is_small && !IsLent(u, bucket.frozen)) continue;
      persistent += bucket.blocks.num_elements();
      bucket.gathered = false;
    }
  }
}

bool ProgramCompiler::IsLent(int unit, bool frozen) const {
  for (const StageInfo& other : input_.stages) {
    for (const int p : other.borrowed) {
      const ParameterInfo& parameter = input_.parameters[p];
      if (parameter.unit == unit && parameter.frozen == frozen) return true;
    }
  }
  return false;
}

std::vector<int> ProgramCompiler::StagesAsTheyEnd() const {
  std::vector<int> stages;
  const std::vector<StagePass>& passes = input_.schedule->passes[place_];
  for (auto pass = passes.rbegin(); pass != passes.rend(); ++pass) {
    const bool is_known = std::find(stages.begin(), stages.end(), pass->stage) != stages.end();
    if (!is_known) stages.push_back(pass->stage);
  }
  std::reverse(stages.begin(), stages.end());
  return stages;
}

std::vector<Bucket> ProgramCompiler::BucketsInOrder() const {
  std::vector<Bucket> buckets = EntersBuckets() ? BucketsOfParameters()
                                : has_entries() ? BucketsOfUnits()
                                                : BucketsOfBlocks();
  const std::vector<int> place =
      ReadinessOf(info().trace, static_cast<int>(input_.parameters.size()));
  const auto complete = [&](const Bucket& bucket) {
    int last = 0;
    for (int p = bucket.first_parameter; p < bucket.end_parameter; ++p) {
      last = std::max(last, place[p]);
    }
    return last;
  };
  std::stable_sort(buckets.begin(), buckets.end(),
                   [&](const Bucket& a, const Bucket& b) { return complete(a) < complete(b); });
  return buckets;
}

std::vector<Bucket> ProgramCompiler::BucketsOfBlocks() const {
  return PlanBuckets(input_.parameters, layout_, info().blocks,
                     {.bytes_per_element = BytesOf(input_.types.gradients),
                      .bytes_max = plan_.bucket_bytes_max,
                      .first_bytes = plan_.first_bucket_bytes,
                      .multiple = is_sharded() ? shard_ranks() : 1});
}

// Two of them are on their way at once, beside the shards: where the model is small, so are they.
std::vector<Bucket> ProgramCompiler::BucketsOfUnits() const {
  constexpr int64_t kBucketsAtLeast = 8;
  const int64_t each = BytesOf(input_.types.gradients);
  const int64_t part = info().blocks.num_elements() * each / kBucketsAtLeast;
  const int64_t most = std::min(plan_.bucket_bytes_max, part);
  return PlanUnitBuckets(layout_, info().blocks,
                         {.bytes_per_element = each, .bytes_max = shards_parameters() ? 0 : most});
}

// The arena of gradients holds about two of them.
std::vector<Bucket> ProgramCompiler::BucketsOfParameters() const {
  constexpr int64_t kBucketsAtLeast = 32;
  const int64_t each = BytesOf(input_.types.gradients);
  const int64_t part = info().blocks.num_elements() * each / kBucketsAtLeast;
  return PlanParameterBuckets(
      input_.parameters, layout_, info().blocks, info().trace,
      {.bytes_per_element = each, .bytes_max = std::min(plan_.bucket_bytes_max, part)});
}

int ProgramCompiler::Add(Action action) {
  const int index = static_cast<int>(program_.actions.size());
  if (const int64_t bytes = PaddingOf(action, program_); bytes > 0) {
    // Two at a time, so that one travels while the next is filled.
    if (padded_.size() == 2) {
      padding_.Give(program_.actions[padded_.front()].padding, padded_.front());
      padded_.erase(padded_.begin());
    }
    action.padding = padding_.Take(RoomForCopy(action, bytes), action.after);
    padded_.push_back(index);
  }
  program_.actions.push_back(std::move(action));
  return index;
}

int64_t ProgramCompiler::RoomForCopy(const Action& action, int64_t bytes) const {
  if (action.bucket == kNone || !program_.buckets[action.bucket].entered) return bytes;
  if (action.kind == ActionKind::kReplicate) return bytes;  // of shards
  const int64_t blocks = program_.shards.PaddedOf(action.blocks.num_blocks());
  return bytes / blocks * BlocksOfGradients(action.bucket);
}

namespace {

// What is compiled, with a schedule.
class Scheduled {
 public:
  explicit Scheduled(const ProgramInput& input) : input_(input) {
    if (input.schedule != nullptr) return;
    absl::StatusOr<Schedule> made = ScheduleOf(input.plan, input.mesh.stages);
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
  MUSTER_CHECK(schedule.num_ranks() == input.mesh.stages);
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
    for (int place = 0; place < input.mesh.stages; ++place) {
      const Program program =
          ProgramCompiler(input, place * input.mesh.replicas, reduces_each).Run();
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
  if (!NeedsUses(input.plan, input.mesh)) return true;  // there is no choice
  return ReductionOf(input).chosen == GradientReduction::kEachMicroBatch;
}

bool NeedsUses(const Plan& plan, Mesh mesh) {
  return RanksOfShard(plan, mesh) > 1 && plan.gradients.placement == Placement::kShard;
}

namespace {

// The replica of a place that needs most.
int ReplicaThatNeedsMost(const ProgramInput& input) {
  const Plan& plan = input.plan;
  const Mesh mesh = input.mesh;
  if (plan.mode != SumMode::kOrdered) return 0;  // the largest shards
  const auto needs = [&](int rank) {
    const int64_t replica = rank % mesh.replicas;
    const LeafRange range = {replica * plan.accumulation, (replica + 1) * plan.accumulation};
    const int64_t leaves = mesh.replicas * plan.accumulation;
    return std::pair(OrderedPartialSums(replica, mesh.replicas, plan.accumulation),
                     CoverWithSubtrees(range, leaves).size());
  };
  int most = 0;
  for (int rank = 1; rank < mesh.replicas; ++rank) {
    if (needs(rank) > needs(most)) most = rank;
  }
  const auto bytes = [&](int rank) { return TotalOf(FiguresOf(CompileProgram(input, rank)).peak); };
  return most == 0 || bytes(0) > bytes(most) ? 0 : most;
}

}  // namespace

int RankThatNeedsMost(const ProgramInput& input, int place) {
  return place * input.mesh.replicas + ReplicaThatNeedsMost(input);
}

int RankThatNeedsMost(const ProgramInput& input) {
  int most = 0;
  int64_t most_bytes = -1;
  for (int place = 0; place < input.mesh.stages; ++place) {
    const int rank = RankThatNeedsMost(input, place);
    const int64_t bytes =
        input.mesh.stages == 1 ? 0 : TotalOf(FiguresOf(CompileProgram(input, rank)).peak);
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
