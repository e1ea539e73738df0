#include "worker_runtime/engine/units_alone.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "proto/base/status_macros.h"
#include "worker_runtime/engine/tensor_buffer.h"

namespace muster::engine {

bool UnitsAlone::IsGathered(int unit) const {
  const std::vector<int> buckets = plan::BucketsOfUnit(rig_.program, unit);
  return std::any_of(buckets.begin(), buckets.end(),
                     [this](int b) { return rig_.program.buckets[b].gathered; });
}

void UnitsAlone::Enter(int unit) {
  if (unit_ == unit || !(rig_.is_pipeline() || IsGathered(unit))) return;
  Release();
  unit_ = unit;
  absl::Status gathered = Gather(unit);
  if (error_.ok()) error_ = rig_.Guard(std::move(gathered));
}

absl::Status UnitsAlone::Gather(int unit) {
  const EngineSetUp& set_up = rig_.set_up;
  const int owner = set_up.PlaceOf(set_up.StageOfUnit(unit));
  absl::Status status = error_;
  std::vector<Tensor> parts;  // those of the unit that learn, and those that are frozen
  if (owner != rig_.place()) {
    parts = rig_.held.BindVisitor(unit);
  } else {
    for (const int b : plan::BucketsOfUnit(rig_.program, unit)) {
      const bool frozen = rig_.program.buckets[b].frozen;
      const plan::BlockRange blocks =
          (frozen ? set_up.layout.frozen_units : set_up.layout.units)[unit];
      if (!rig_.program.buckets[b].gathered) {
        parts.push_back(rig_.held.Values(blocks));
        continue;
      }
      if (status.ok()) status = GatherBucket(b);
      rig_.held.BindGathered(b, 0);
      parts.push_back(rig_.held.GatherPlace(frozen, 0, blocks.num_blocks()));
    }
  }
  for (const Tensor& part : parts) {
    if (!status.ok() || !rig_.is_pipeline()) return status;
    // Its copies lie with those that hold the same parts of matrices as this rank.
    const plan::Mesh& mesh = set_up.mesh;
    const int first = mesh.FirstOf(rig_.world.rank(), plan::kSameParts);
    const int root =
        mesh.IndexOf(mesh.Moved(first, plan::Dimension::kPipeline, owner), plan::kSameParts);
    status = rig_.GroupAlong(plan::kSameParts)
                 .Broadcast(BufferOfTensor(part), root, {.queue = &rig_.queue})
                 .Wait();
  }
  return status;
}

void UnitsAlone::AddUp(const Tensor& part) {
  if (!error_.ok()) return;
  const plan::Action sum = {.body = plan::Combine{.exchange = {.group = rig_.program.GroupAlong(
                                                                   {plan::Dimension::kTensor})}}};
  rig_.reduction->BringPart(part);
  error_ = rig_.Guard(rig_.reduction->Start(sum).Wait());
  rig_.reduction->Finish(sum);
}

absl::Status UnitsAlone::GatherBucket(int bucket) {
  const plan::Unshard gather = {
      .bucket = bucket,
      .place = 0,
      .exchange = {.collective = plan::Collective::kAllGather,
                   .group = rig_.program.buckets[bucket].groups.shards.group}};
  return rig_.reduction->Start({.body = gather}).Wait();
}

void UnitsAlone::Release() {
  if (unit_ == plan::kNone) return;
  if (rig_.set_up.PlaceOf(rig_.set_up.StageOfUnit(unit_)) == rig_.place()) {
    for (const int b : plan::BucketsOfUnit(rig_.program, unit_)) {
      if (rig_.program.buckets[b].gathered) rig_.held.UnbindGathered(b);
    }
  } else {
    rig_.held.ReleaseVisitor();
  }
  unit_ = plan::kNone;
}

absl::Status UnitsAlone::Leave() {
  Release();
  return std::exchange(error_, absl::OkStatus());
}

}  // namespace muster::engine
