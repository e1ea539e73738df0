// Uses of units by the model: where a pass waits for parameters that are sharded at rest, and for the
// memory of gradients.
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/status_macros.h"
#include "worker_runtime/engine/engine_state.h"

namespace muster {

using engine::ExecutorCore;

void Engine::State::Enter(const Parameter& parameter) {
  const int bucket = program.bucket_of_unit[parameter.unit()];
  if (bucket == plan::kNone) return;  // of another stage, and lent
  if (in_step) {
    EnterInStep(parameter.unit());
  } else if (program.gathered[bucket]) {
    EnterAlone(bucket);
  }
}

// The model goes on whatever happens: it has no way to say that it stops. After a failure it computes
// with what lies there, and the step ends with that failure.
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

void Engine::State::EnterAlone(int bucket) {
  if (alone == bucket) return;
  if (alone != plan::kNone) held.UnbindGathered(alone);
  alone = bucket;
  if (alone_error.ok()) alone_error = GatherAlone(bucket);
  held.BindGathered(bucket, 0);
}

absl::Status Engine::State::GatherAlone(int bucket) {
  const plan::BlockRange blocks = program.buckets[bucket].blocks;
  const plan::Action gather = {.kind = plan::ActionKind::kUnshard,
                               .bucket = bucket,
                               .blocks = blocks,
                               .place = 0,
                               .collective = plan::Collective::kAllGather,
                               .group = program.shards.group};
  return reduction->Start(gather).Wait();
}

absl::Status Engine::State::LeaveAlone() {
  if (alone != plan::kNone) held.UnbindGathered(alone);
  alone = plan::kNone;
  return std::exchange(alone_error, absl::OkStatus());
}

}  // namespace muster
