#include "worker_runtime/plan/program_draft.h"

#include <algorithm>
#include <utility>

#include "worker_runtime/plan/bucket_plan.h"
#include "worker_runtime/plan/exchange_memory.h"
#include "worker_runtime/plan/held_memory.h"
#include "worker_runtime/plan/stage_order.h"

namespace muster::plan {

ProgramDraft::ProgramDraft(const ProgramInput& the_input, int rank, bool the_reduces_each)
    : input(the_input),
      reduces_each(the_reduces_each),
      place(the_input.mesh.PlaceOf(rank)),
      layout(PlanBlockLayout(the_input.parameters)) {
  program.mesh = input.mesh;
  program.rank = rank;
  program.types = input.types;
  AddGroups();
  program.ordered = input.plan.mode == SumMode::kOrdered;
  if (program.ordered) {
    program.sums =
        PlanOrderedSums(input.mesh.IndexOf(rank, kReplicas), replicas(), input.plan.accumulation);
  } else {
    program.sums = {.num_slots = 1, .root_slots = {0}};
    program.sums.leaves.resize(input.plan.accumulation);
  }
  program.streams_gradients = StreamsGradients();
  if (program.streams_gradients) program.sums.num_slots = 0;
  for (const int own : StagesAt(*input.schedule, place)) {
    program.stages.push_back({own, input.stages[own].blocks});
  }
  program.learned.count = layout.num_blocks;
  program.learned.cut = layout.cut;
  AddBuckets();
  ChooseGathered();
}

void ProgramDraft::AddGroups() {
  const Mesh& mesh = input.mesh;
  const auto add = [&](Dimensions along) {
    std::vector<Dimensions>& all = program.groups;
    const auto at = std::find(all.begin(), all.end(), mesh.Spread(along));
    if (at != all.end()) return static_cast<int>(at - all.begin());
    all.push_back(mesh.Spread(along));
    return static_cast<int>(all.size()) - 1;
  };
  const auto shards = [&](Dimensions along) -> struct Shards {
    return {
        .group = add(along), .rank = mesh.IndexOf(program.rank, along), .size = mesh.SizeOf(along)};
  };
  add(kWorld);
  if (mesh.tensor_ranks() > 1) {
    add({Dimension::kTensor});
    add(kSameParts);
  }
  groups.sums = groups.copies = add(kReplicas);
  if (shard_ranks() == 1) return;
  groups.shards = shards(kShards);
  groups.copies = mesh.SizeOf(Dimension::kReplica) > 1 ? add({Dimension::kReplica}) : kNone;
  if (mesh.SizeOf(Dimension::kSecondary) > 1) groups.near = shards({Dimension::kSecondary});
}

void ProgramDraft::AddBuckets() {
  const auto add_buckets = [this](std::vector<Bucket> more) {
    program.buckets.insert(program.buckets.end(), more.begin(), more.end());
  };
  const std::vector<int> stages = StagesAsTheyEnd();
  for (const int own : stages) {
    stage = own;
    add_buckets(BucketsInOrder());
  }
  for (const int own : stages) {
    add_buckets(PlanFrozenBuckets(input.parameters, layout, input.stages[own].frozen_blocks));
  }
  program.bucket_of_unit.fill(std::vector<int>(layout.units.size(), kNone));
  for (size_t b = 0; b < program.buckets.size(); ++b) {
    Bucket& bucket = program.buckets[b];
    const BlockRange blocks = bucket.blocks;
    bucket.groups = groups;
    bucket.owned = OwnedBy(program.rank, bucket, program);
    const std::vector<BlockRange>& units = bucket.frozen ? layout.frozen_units : layout.units;
    auto unit = std::partition_point(units.begin(), units.end(), [&](const BlockRange& earlier) {
      return earlier.end <= blocks.begin;
    });
    for (; unit != units.end() && unit->begin < blocks.end; ++unit) {
      if (unit->num_blocks() == 0) continue;
      program.bucket_of_unit[bucket.frozen][unit - units.begin()] = static_cast<int>(b);
    }
  }
}

bool ProgramDraft::Shards(const StatePlan& state) const {
  return state.placement == Placement::kShard && shard_ranks() > 1;
}

bool ProgramDraft::AddsByGroup() const {
  if (!program.ordered || !is_hybrid()) return is_sharded();
  return std::has_single_bit(static_cast<uint64_t>(shard_ranks() * input.plan.accumulation));
}

bool ProgramDraft::EntersBuckets() const {
  return program.streams_gradients && !shards_parameters() && input.stages.size() == 1 &&
         !info().trace.backward_uses.empty();
}

bool ProgramDraft::StreamsGradients() const {
  if (!Shards(input.plan.gradients)) return false;
  if (program.ordered) return input.plan.accumulation == 1 && AddsByGroup();
  return input.plan.accumulation == 1 || reduces_each;
}

void ProgramDraft::ChooseGathered() {
  if (!shards_parameters()) return;
  for (Bucket& bucket : program.buckets) bucket.gathered = true;
  const GatherPlan& gathering = input.plan.gathering;
  int64_t persistent = 0;
  for (int u = 0; u < static_cast<int>(layout.units.size()); ++u) {
    if (!HoldsUnit(program, u)) continue;
    const int64_t elements = layout.units[u].num_elements() + layout.frozen_units[u].num_elements();
    const bool is_small = elements <= gathering.persistence_threshold &&
                          persistent + elements <= gathering.persistence_total;
    for (const int b : BucketsOfUnit(program, u)) {
      Bucket& bucket = program.buckets[b];
      if (!is_small && !IsLent(u, bucket.frozen)) continue;
      persistent += bucket.blocks.num_elements();
      bucket.gathered = false;
    }
  }
}

bool ProgramDraft::IsLent(int unit, bool frozen) const {
  for (const StageInfo& other : input.stages) {
    for (const int p : other.borrowed) {
      const ParameterInfo& parameter = input.parameters[p];
      if (parameter.unit == unit && parameter.frozen == frozen) return true;
    }
  }
  return false;
}

std::vector<int> ProgramDraft::StagesAsTheyEnd() const {
  std::vector<int> stages;
  const std::vector<StagePass>& passes = input.schedule->passes[place];
  for (auto pass = passes.rbegin(); pass != passes.rend(); ++pass) {
    const bool is_known = std::find(stages.begin(), stages.end(), pass->stage) != stages.end();
    if (!is_known) stages.push_back(pass->stage);
  }
  std::reverse(stages.begin(), stages.end());
  return stages;
}

std::vector<Bucket> ProgramDraft::BucketsInOrder() const {
  std::vector<Bucket> buckets = EntersBuckets() ? BucketsOfParameters()
                                : has_entries() ? BucketsOfUnits()
                                                : BucketsOfBlocks();
  const std::vector<int> place =
      ReadinessOf(info().trace, static_cast<int>(input.parameters.size()));
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

std::vector<Bucket> ProgramDraft::BucketsOfBlocks() const {
  return PlanBuckets(input.parameters, layout, info().blocks,
                     {.bytes_per_element = BytesOf(input.types.gradients),
                      .bytes_max = input.plan.buckets.bytes_max,
                      .first_bytes = input.plan.buckets.first_bytes,
                      .multiple = is_sharded() ? shard_ranks() : 1});
}

// Two of them are on their way at once, beside the shards: where the model is small, so are they.
std::vector<Bucket> ProgramDraft::BucketsOfUnits() const {
  constexpr int64_t kBucketsAtLeast = 8;
  const int64_t each = BytesOf(input.types.gradients);
  const int64_t part = info().blocks.num_elements() * each / kBucketsAtLeast;
  const int64_t most = std::min(input.plan.buckets.bytes_max, part);
  return PlanUnitBuckets(layout, info().blocks,
                         {.bytes_per_element = each, .bytes_max = shards_parameters() ? 0 : most});
}

// The arena of gradients holds about two of them.
std::vector<Bucket> ProgramDraft::BucketsOfParameters() const {
  constexpr int64_t kBucketsAtLeast = 32;
  const int64_t each = BytesOf(input.types.gradients);
  const int64_t part = info().blocks.num_elements() * each / kBucketsAtLeast;
  return PlanParameterBuckets(
      input.parameters, layout, info().blocks, info().trace,
      {.bytes_per_element = each, .bytes_max = std::min(input.plan.buckets.bytes_max, part)});
}

int ProgramDraft::Add(Action action) {
  const int index = static_cast<int>(program.actions.size());
  if (WorksOnCopy(action)) {
    // Two at a time, so that one travels while the next is filled.
    if (padded_.size() == 2) {
      const int first = padded_.front();
      padding_.Give(ExchangeOf(program.actions[first])->padding, first);
      padded_.erase(padded_.begin());
    }
    ExchangeOf(action)->padding = padding_.Take(RoomForCopy(action), action.after);
    padded_.push_back(index);
  }
  program.actions.push_back(std::move(action));
  return index;
}

int ProgramDraft::AddUnshard(Unshard unshard, std::vector<int> after, Point at) {
  const Bucket& bucket = program.buckets[unshard.bucket];
  const struct Shards& from = unshard.secondary ? bucket.groups.near : bucket.groups.shards;
  const int64_t bytes = from.PaddedOf(bucket.blocks.num_blocks()) * kBlockElements *
                        BytesOf(input.types.OfParameters(bucket.frozen));
  unshard.exchange = {.collective = Collective::kAllGather, .group = from.group, .bytes = bytes};
  return Add({.body = unshard, .after = std::move(after), .at = at});
}

bool ProgramDraft::WorksOnCopy(const Action& action) const {
  const Exchange* const exchange = ExchangeOf(action);
  const int bucket = BucketOf(action);
  if (exchange == nullptr || bucket == kNone) return false;
  const Unshard* const unshard = action.If<Unshard>();
  if (unshard == nullptr && program.types.rounds_sums()) return true;
  const Reduce* const reduce = action.If<Reduce>();
  const bool is_whole = unshard ? unshard->place == kNone : reduce && reduce->place == kNone;
  return is_whole && exchange->collective != Collective::kAllReduce &&
         program.buckets[bucket].blocks.num_blocks() % program.buckets[bucket].groups.shards.size !=
             0;
}

int64_t ProgramDraft::RoomForCopy(const Action& action) const {
  const int64_t bytes = BytesOfCopy(action, program);
  const int bucket = BucketOf(action);
  // Those of REPLICATE are of shards.
  if (!program.buckets[bucket].entered || action.If<Replicate>()) return bytes;
  return bytes / program.buckets[bucket].padded_blocks() * BlocksOfGradients(bucket);
}

// Each takes as much as the largest that is up to twice as large, so that one fits where another
// was.
int64_t ProgramDraft::BlocksOfGradients(int bucket) const {
  const int64_t own = program.buckets[bucket].padded_blocks();
  int64_t most = own;
  for (const Bucket& other : LearnedBuckets(program)) {
    const int64_t blocks = other.padded_blocks();
    if (other.entered && blocks <= 2 * own) most = std::max(most, blocks);
  }
  return most;
}

int64_t ProgramDraft::BorrowedElements(int of_stage) const {
  int64_t elements = 0;
  for (const int p : input.stages[of_stage].borrowed) elements += input.parameters[p].num_learned();
  return elements;
}

int ProgramDraft::StageOf(int parameter) const {
  return StageOfBlock(input.stages, layout.OffsetOf(parameter) / kBlockElements);
}

void ProgramDraft::Finish() {
  program.padding_bytes = padding_.size();
  HoldMemory(input, layout, program);
}

}  // namespace muster::plan
