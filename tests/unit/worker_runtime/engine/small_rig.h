// One rank with a model in units that is set up, without an engine: for tests of an engine's parts.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/unit/worker_runtime/engine/reader_training.h"
#include "worker_runtime/engine/batch_feed.h"
#include "worker_runtime/engine/cut_model.h"
#include "worker_runtime/engine/meta_run.h"
#include "worker_runtime/engine/rig.h"
#include "worker_runtime/engine/stage_passes.h"
#include "worker_runtime/engine/step_listeners.h"
#include "worker_runtime/engine/training_progress.h"
#include "worker_runtime/engine/updater.h"

namespace muster::testing {

struct SmallRig {
  // `device`: see ParameterStore::PlaceOn.
  explicit SmallRig(Communicator& world, const Plan& plan, const Device* device = nullptr) {
    store.PlaceOn(device);
    gpt = *Decoder::Create(kSmallGpt, store);
    const UnitModel units = gpt->Units();
    made = engine::MakeRig(
        world, store, plan, {},
        [&](int stage) -> absl::StatusOr<plan::UseTrace> {
          MUSTER_ASSIGN_OR_RETURN(
              auto traces, engine::RecordStages(store, plan, {}, units,
                                                engine::SampleInput(kWhole.batch, kWhole.sequence),
                                                engine::MetaDeviceOf(store)));
          return traces[stage];
        },
        /*has_sample=*/true);
    if (made.ok()) (*made)->set_up.model = units;
  }
  engine::Rig& rig() { return **made; }

  // The model on a batch of `feed`, as Engine::Step(reader) calls it.
  absl::StatusOr<StageOutput> Run(engine::BatchFeed& feed, BatchReader& reader, Tape& tape,
                                  const plan::StagePass& pass,
                                  absl::Span<const Activation> received,
                                  bool is_capturing = false) {
    MUSTER_ASSIGN_OR_RETURN(const Batch* batch,
                            feed.At(reader, tape, pass.micro_batch, is_capturing));
    return rig().set_up.model(tape, rig().set_up.units[pass.stage],
                              {.tokens = batch->tokens(), .targets = batch->targets}, received);
  }
  std::unique_ptr<BatchReader> Read(int64_t first_step = 0) {
    return *BatchReader::Create(text, {.seed = rig().plan.seed,
                                       .rank = rig().replica(),
                                       .size = rig().set_up.mesh.replicas(),
                                       .accumulation = rig().plan.accumulation,
                                       .batch = kWhole.batch,
                                       .sequence = kWhole.sequence,
                                       .first_step = first_step});
  }
  // The gradients that the update takes of all parameters.
  void FillGradients(float value) {
    const Tensor gradients = rig().held.all_summed_gradients();
    std::fill(gradients.span<float>().begin(), gradients.span<float>().end(), value);
  }

  SmallText text;
  ParameterStore store;
  std::unique_ptr<Decoder> gpt;
  absl::StatusOr<std::unique_ptr<engine::Rig>> made;
};

// Runs `body` as the only rank.
inline void Alone(const std::function<void(Communicator& world)>& body) {
  OnRanks<int>(1, [&](Communicator& world) {
    body(world);
    return 0;
  });
}

// The actions of a kind, by their number.
inline std::vector<int> ActionsOf(const plan::Program& program, plan::ActionKind kind) {
  std::vector<int> found;
  for (size_t i = 0; i < program.actions.size(); ++i) {
    if (program.actions[i].kind() == kind) found.push_back(static_cast<int>(i));
  }
  return found;
}

}  // namespace muster::testing
