#include "worker_runtime/plan/compile_program.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "muster/sum_tree.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/plan/choose_reduction.h"
#include "worker_runtime/plan/held_memory.h"
#include "worker_runtime/plan/program_compiler.h"
#include "worker_runtime/plan/prove_program.h"

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
  program_.unreduced_blocks = unreduced_.size();
  program_.padding_bytes = padding_.size();
  HoldMemory(input_, info_, program_);
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
  program_.blocks = info_.blocks;
  program_.num_blocks = layout_.num_blocks;
  program_.sharded = is_sharded();
  program_.trace = info_.trace;
  program_.buckets = BucketsInOrder();
  program_.bucket_of_unit.assign(layout_.units.size(), kNone);
  for (size_t b = 0; b < program_.buckets.size(); ++b) {
    const BlockRange blocks = program_.buckets[b].blocks;
    program_.owned.push_back(is_sharded() ? ShardOf(blocks, inner(), shard_ranks()) : blocks);
    for (size_t u = 0; u < layout_.units.size(); ++u) {
      if (layout_.units[u].Overlaps(blocks)) program_.bucket_of_unit[u] = static_cast<int>(b);
    }
  }
  ChooseGathered();
}

bool ProgramCompiler::StreamsGradients() const {
  if (!Shards(plan_.gradients)) return false;
  if (program_.ordered) return plan_.accumulation == 1 && AddsByGroup();
  return plan_.accumulation == 1 || reduces_each_;
}

void ProgramCompiler::ChooseGathered() {
  program_.gathered.assign(program_.buckets.size(), shards_parameters());
  if (!shards_parameters()) return;
  const GatherPlan& gathering = plan_.gathering;
  int64_t persistent = 0;
  for (size_t u = 0; u < layout_.units.size(); ++u) {
    const int bucket = program_.bucket_of_unit[u];
    if (bucket == kNone) continue;
    const int64_t elements = layout_.units[u].num_elements();
    bool whole = elements <= gathering.persistence_threshold &&
                 persistent + elements <= gathering.persistence_total;
    for (const StageInfo& other : input_.stages) {
      for (const int p : other.borrowed) {
        whole = whole || input_.parameters[p].unit == static_cast<int>(u);
      }
    }
    if (!whole) continue;
    persistent += elements;
    program_.gathered[bucket] = false;
  }
}

std::vector<Bucket> ProgramCompiler::BucketsInOrder() const {
  std::vector<Bucket> buckets = has_entries() ? BucketsOfUnits() : BucketsOfBlocks();
  const std::vector<int> place =
      ReadinessOf(info_.trace, static_cast<int>(input_.parameters.size()));
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
  return PlanBuckets(input_.parameters, layout_, info_.blocks,
                     {.bytes_per_element = BytesOf(input_.types.gradients),
                      .bytes_max = plan_.bucket_bytes_max,
                      .first_bytes = plan_.first_bucket_bytes,
                      .multiple = is_sharded() ? shard_ranks() : 1});
}

// Two of them are on their way at once, beside the shards: where the model is small, so are they.
std::vector<Bucket> ProgramCompiler::BucketsOfUnits() const {
  constexpr int64_t kBucketsAtLeast = 8;
  const int64_t each = BytesOf(input_.types.gradients);
  const int64_t part = info_.blocks.num_elements() * each / kBucketsAtLeast;
  const int64_t most = std::min(plan_.bucket_bytes_max, part);
  return PlanUnitBuckets(layout_, info_.blocks,
                         {.bytes_per_element = each, .bytes_max = shards_parameters() ? 0 : most});
}

int ProgramCompiler::Add(Action action) {
  const int index = static_cast<int>(program_.actions.size());
  if (const int64_t bytes = PaddingOf(action, program_); bytes > 0) {
    // Two at a time, so that one travels while the next is filled.
    if (padded_.size() == 2) {
      padding_.Give(program_.actions[padded_.front()].padding, padded_.front());
      padded_.erase(padded_.begin());
    }
    action.padding = padding_.Take(bytes, action.after);
    padded_.push_back(index);
  }
  program_.actions.push_back(std::move(action));
  return index;
}

Program CompileProgram(const ProgramInput& input, int rank) {
  MUSTER_CHECK(0 <= rank && rank < input.mesh.size());
  MUSTER_CHECK(static_cast<int>(input.stages.size()) == input.mesh.stages);
  return ProgramCompiler(input, rank, ReducesEachMicroBatch(input)).Run();
}

ReductionChoice ReductionOf(const ProgramInput& input) {
  const GradientReduction asked = input.plan.gradient_reduction;
  if (asked != GradientReduction::kChosen) return {asked, "the plan says so"};
  if (input.plan.accumulation == 1) {
    return {GradientReduction::kEachMicroBatch, "there is one micro-batch"};
  }
  const auto cost = [&](bool reduces_each) {
    ReductionCost most;
    for (int stage = 0; stage < input.mesh.stages; ++stage) {
      const StepFigures figures =
          FiguresOf(ProgramCompiler(input, stage * input.mesh.replicas, reduces_each).Run());
      most.memory_bytes = std::max(most.memory_bytes, TotalOf(figures.peak));
      most.sent_bytes = std::max(most.sent_bytes, figures.sent_total());
    }
    return most;
  };
  return ChooseReduction(cost(true), cost(false), input.plan.memory_bytes_max);
}

bool ReducesEachMicroBatch(const ProgramInput& input) {
  if (!NeedsUses(input.plan, input.mesh)) return true;  // there is no choice
  return ReductionOf(input).chosen == GradientReduction::kEachMicroBatch;
}

bool NeedsUses(const Plan& plan, Mesh mesh) {
  return RanksOfShard(plan, mesh) > 1 && plan.gradients.placement == Placement::kShard;
}

namespace {

// The replica of a stage that needs most.
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

int RankThatNeedsMost(const ProgramInput& input, int stage) {
  return stage * input.mesh.replicas + ReplicaThatNeedsMost(input);
}

int RankThatNeedsMost(const ProgramInput& input) {
  int most = 0;
  int64_t most_bytes = -1;
  for (int stage = 0; stage < input.mesh.stages; ++stage) {
    const int rank = RankThatNeedsMost(input, stage);
    const int64_t bytes =
        input.mesh.stages == 1 ? 0 : TotalOf(FiguresOf(CompileProgram(input, rank)).peak);
    if (bytes <= most_bytes) continue;
    most = rank;
    most_bytes = bytes;
  }
  return most;
}

StageInfo WholeModel(const BlockLayout& layout, UseTrace trace) {
  return {.blocks = {0, layout.num_blocks}, .trace = std::move(trace)};
}

}  // namespace muster::plan
