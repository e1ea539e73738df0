// Uses of units by the model: where a pass waits for parameters that are sharded at rest, and for
// the memory of gradients.
#include <utility>

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
    const bool is_own = program.bucket_of_unit[unit] != plan::kNone;
    if (is_own && plan::UsesMatter(program)) EnterInStep(unit);
  } else if (!parameter.frozen() && (is_pipeline() || is_gathered(unit))) {
    EnterAlone(unit);
  }
}

// The model goes on whatever happens: it has no way to say that it stops. After a failure it
// computes with what lies there, and the step ends with that failure.
void Engine::State::EnterInStep(int unit) {
  const int bucket = program.bucket_of_unit[unit];
  const ExecutorCore::Arrival arrival =
      use_error.ok() ? core->WhatIs(unit) : ExecutorCore::Arrival::kUnknown;
  if (arrival == ExecutorCore::Arrival::kSame) return;
  if (arrival == ExecutorCore::Arrival::kUnknown) {
    const int number = unit;
    const auto& names = store.unit_names();
    use_error.Update(absl::InternalError(absl::StrCat(
        "rank ", world.rank(), ": the model uses unit ",
        number < static_cast<int>(names.size()) ? names[number] : absl::StrCat(number),
        " at a point where it did not when its order of use was found out; sharded plans need one "
        "that stays the same")));
    held.BindAnything(bucket, program.gathered[bucket], program.streams_gradients);
    return;
  }
  Start(core->Step(engine::UnitEntered{unit}));
  const MonoTime begin = MonoNow();
  for (int action = core->UseHoldUp(); action != plan::kNone; action = core->UseHoldUp()) {
    if (absl::Status status = Await(action); !status.ok()) {
      use_error = std::move(status);
      held.BindAnything(bucket, program.gathered[bucket], program.streams_gradients);
      return;
    }
  }
  result.times.gather += MonoNow() - begin;
  const plan::Entry& use = core->use();
  if (use.place != plan::kNone) held.BindUnreduced(bucket, use.place);
}

bool Engine::State::is_gathered(int unit) const {
  const int bucket = program.bucket_of_unit[unit];
  return bucket != plan::kNone && program.gathered[bucket];
}

int Engine::State::StageOf(int unit) const {
  int stage = 0;
  while (set_up.stages[stage].blocks.end <= set_up.layout.units[unit].begin) ++stage;
  return stage;
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
  const int bucket = program.bucket_of_unit[unit];
  const int stage = StageOf(unit);
  const plan::BlockRange blocks = set_up.layout.units[unit];
  absl::Status status = alone_error;
  Tensor values;
  if (stage != stage_number()) {
    values = held.BindVisitor(unit);
  } else if (program.gathered[bucket]) {
    const plan::Action gather = {.kind = plan::ActionKind::kUnshard,
                                 .bucket = bucket,
                                 .blocks = blocks,
                                 .place = 0,
                                 .collective = plan::Collective::kAllGather,
                                 .group = program.shards.group};
    if (status.ok()) status = reduction->Start(gather).Wait();
    held.BindGathered(bucket, 0);
    values = held.GatherPlace(0, blocks.num_blocks());
  } else {
    values = held.Values(blocks);
  }
  if (!status.ok() || !is_pipeline()) return status;
  return world
      .Broadcast(engine::BufferOfTensor(values), stage * set_up.mesh.replicas, {.queue = &queue})
      .Wait();
}

void Engine::State::ReleaseAlone() {
  if (alone == plan::kNone) return;
  if (is_gathered(alone)) {
    held.UnbindGathered(program.bucket_of_unit[alone]);
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
