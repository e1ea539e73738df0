#include "worker_runtime/plan/unit_gathers.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace muster::plan {
namespace {

UseSchedule MakeSchedule(const ProgramDraft& draft, const std::vector<UnitUse>& uses) {
  std::vector<int64_t> elements(std::max(draft.layout.units.size(), draft.program.buckets.size()));
  for (size_t u = 0; u < draft.layout.units.size(); ++u) {
    for (const int b : BucketsOfUnit(draft.program, static_cast<int>(u))) {
      const Bucket& bucket = draft.program.buckets[b];
      if (!bucket.gathered) continue;
      elements[u] +=
          (bucket.frozen ? draft.layout.frozen_units : draft.layout.units)[u].num_elements();
    }
  }
  return ScheduleUses(uses, elements, draft.input.plan.gathering);
}

}  // namespace

UnitGathers::UnitGathers(ProgramDraft& draft, const std::vector<UnitUse>& uses)
    : draft_(draft),
      uses_(uses),
      schedule_(MakeSchedule(draft, uses)),
      gathering_(draft.program.buckets.size()),
      end_of_uses_(draft.layout.units.size()) {
  draft_.program.live_elements = schedule_.live_elements;
  if (UsesBuckets(draft.program)) return;  // nothing is gathered
  for (size_t use = 0; use < uses.size(); ++use) end_of_uses_[uses[use].unit] = use + 1;
}

void UnitGathers::Begin() {
  if (uses_.empty()) return;
  for (const int unit : schedule_.steps[0].gather) AddUnshardsOf(unit, {});
}

void UnitGathers::ReleaseBefore(size_t use, Point at) {
  for (const int unit : schedule_.steps[use].release) AddReshardsOf(unit, use, at, kNone);
}

void UnitGathers::GatherBefore(size_t use, Point at) {
  if (use == 0) return;  // Begin has
  for (const int unit : schedule_.steps[use].gather) AddUnshardsOf(unit, at);
}

void UnitGathers::AddTo(Entry& entry) const {
  for (const int b : BucketsOfUse(draft_.program, entry.unit)) {
    if (gathering_[b].unshard != kNone) entry.unshards.push_back(gathering_[b].unshard);
  }
}

void UnitGathers::ReleaseAfter(int pass, size_t use) {
  const bool ends = use == uses_.size();
  for (const int unit : ends ? schedule_.release : schedule_.steps[use].release) {
    AddReshardsOf(unit, use, {}, pass);
  }
}

void UnitGathers::Finish() {
  draft_.program.gathered_blocks = {arenas_[false].size(), arenas_[true].size()};
}

void UnitGathers::AddUnshardsOf(int unit, Point at) {
  for (const int b : BucketsOfUnit(draft_.program, unit)) {
    if (draft_.program.buckets[b].gathered) AddUnshardOf(b, at);
  }
}

void UnitGathers::AddUnshardOf(int b, Point at) {
  const int kept = gathering_[b].kept;
  const BucketGroups& groups = draft_.program.buckets[b].groups;
  const Shards& from = kept == kNone ? groups.shards : groups.near;
  std::vector<int> after;
  if (kept != kNone) after.push_back(kept);
  const int64_t blocks = from.PaddedOf(draft_.program.buckets[b].blocks.num_blocks());
  const int64_t place = ArenaOf(b).Take(blocks, after);
  gathering_[b].unshard =
      draft_.AddUnshard({.bucket = b, .place = place, .secondary = kept != kNone}, after, at);
}

void UnitGathers::AddReshardsOf(int unit, size_t use, Point at, int after_pass) {
  const bool comes_again = use < end_of_uses_[unit];
  for (const int b : BucketsOfUnit(draft_.program, unit)) {
    if (gathering_[b].unshard != kNone) AddReshard(b, comes_again, at, after_pass);
  }
}

void UnitGathers::AddReshard(int b, bool comes_again, Point at, int after_pass) {
  const int unshard = std::exchange(gathering_[b].unshard, kNone);
  const Reshard reshard = {.bucket = b,
                           .place = draft_.program.actions[unshard].As<Unshard>().place,
                           .unshard = unshard,
                           .secondary = draft_.program.buckets[b].groups.near.size > 1 &&
                                        gathering_[b].kept == kNone && comes_again};
  Action action = {.body = reshard, .after = {unshard}, .at = at};
  if (after_pass != kNone) action.after.push_back(after_pass);
  const int index = draft_.Add(std::move(action));
  ArenaOf(b).Give(reshard.place, index);
  if (reshard.secondary) gathering_[b].kept = index;
}

}  // namespace muster::plan
