// Uses of units by the model: where a pass waits for parameters that are sharded at rest, and for
// the memory of gradients.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/engine/engine_state.h"
#include "worker_runtime/engine/tensor_buffer.h"

namespace muster {

using engine::ExecutorCore;

void Engine::State::Enter(const Parameter& parameter) {
  const int unit = parameter.unit();
  if (in_step) {
    // A parameter of another stage is lent.
    const bool is_held = plan::HoldsUnit(program, unit) && plan::UsesMatter(program);
    if (is_held && core->IsOfPass(set_up.StageOfUnit(unit))) EnterInStep(parameter);
  } else if (is_pipeline() || is_gathered(unit)) {
    EnterAlone(unit);
  }
}

// The model goes on whatever happens: it has no way to say that it stops. After a failure it
// computes with what lies there, and the step ends with that failure.
void Engine::State::EnterInStep(const Parameter& parameter) {
  if (parameter.frozen() && plan::UsesBuckets(program)) return;  // it is whole
  const int unit = parameter.unit();
  const int use = plan::UseOf(program, parameter.index(), unit);
  const ExecutorCore::Arrival arrival =
      use_error.ok() ? core->WhatIs(use) : ExecutorCore::Arrival::kUnknown;
  if (arrival == ExecutorCore::Arrival::kSame) return;
  if (arrival == ExecutorCore::Arrival::kUnknown) {
    const int number = unit;
    const auto& names = store.unit_names();
    use_error.Update(absl::InternalError(absl::StrCat(
        "rank ", world.rank(), ": the model uses unit ",
        number < static_cast<int>(names.size()) ? names[number] : absl::StrCat(number),
        " at a point where it did not when its order of use was found out; sharded plans need one "
        "that stays the same")));
    held.BindAnything(unit);
    return;
  }
  Start(core->Step(engine::UnitEntered{use}));
  const MonoTime begin = MonoNow();
  for (int action = core->UseHoldUp(); action != plan::kNone; action = core->UseHoldUp()) {
    if (absl::Status status = Await(action); !status.ok()) {
      use_error = std::move(status);
      held.BindAnything(unit);
      return;
    }
  }
  result.times.gather += MonoNow() - begin;
  const int64_t place = core->use().place;
  if (place != plan::kNone) held.BindUnreduced(plan::GradientBucketOf(program, use), place);
}

bool Engine::State::is_gathered(int unit) const {
  const std::vector<int> buckets = plan::BucketsOfUnit(program, unit);
  return std::any_of(buckets.begin(), buckets.end(),
                     [this](int b) { return program.buckets[b].gathered; });
}

void Engine::State::EnterAlone(int unit) {
  if (alone == unit) return;
  ReleaseAlone();
  alone = unit;
  absl::Status gathered = GatherAlone(unit);
  if (alone_error.ok()) alone_error = std::move(gathered);
}

// Whatever fails, the unit has memory, so that a model may run to its end.
absl::Status Engine::State::GatherAlone(int unit) {
  const int owner = set_up.PlaceOf(set_up.StageOfUnit(unit));
  absl::Status status = alone_error;
  std::vector<Tensor> parts;  // those of the unit that learn, and those that are frozen
  if (owner != place()) {
    parts = held.BindVisitor(unit);
  } else {
    for (const int b : plan::BucketsOfUnit(program, unit)) {
      const bool frozen = program.buckets[b].frozen;
      const plan::BlockRange blocks =
          (frozen ? set_up.layout.frozen_units : set_up.layout.units)[unit];
      if (!program.buckets[b].gathered) {
        parts.push_back(held.Values(blocks));
        continue;
      }
      if (status.ok()) status = GatherBucketAlone(b);
      held.BindGathered(b, 0);
      parts.push_back(held.GatherPlace(frozen, 0, blocks.num_blocks()));
    }
  }
  for (const Tensor& part : parts) {
    if (!status.ok() || !is_pipeline()) return status;
    const int root = owner * set_up.mesh.replicas;
    status = world.Broadcast(engine::BufferOfTensor(part), root, {.queue = &queue}).Wait();
  }
  return status;
}

absl::Status Engine::State::GatherBucketAlone(int bucket) {
  const plan::Action gather = {.kind = plan::ActionKind::kUnshard,
                               .bucket = bucket,
                               .blocks = program.buckets[bucket].blocks,
                               .place = 0,
                               .collective = plan::Collective::kAllGather,
                               .group = program.shards.group};
  return reduction->Start(gather).Wait();
}

void Engine::State::ReleaseAlone() {
  if (alone == plan::kNone) return;
  if (set_up.PlaceOf(set_up.StageOfUnit(alone)) == place()) {
    for (const int b : plan::BucketsOfUnit(program, alone)) {
      if (program.buckets[b].gathered) held.UnbindGathered(b);
    }
  } else {
    held.ReleaseVisitor();
  }
  alone = plan::kNone;
}

absl::Status Engine::State::LeaveAlone() {
  ReleaseAlone();
  return std::exchange(alone_error, absl::OkStatus());
}

}  // namespace muster
