// What an engine is set up with: the world and its groups, the parameters, the program of this
// rank, and the memory that the program says it holds. Those that own a part of a step are given
// it (engine_state.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "muster/communicator.h"
#include "muster/device.h"
#include "muster/parameter.h"
#include "muster/pipeline.h"
#include "muster/plan.h"
#include "muster/tensor.h"
#include "worker_runtime/engine/engine_set_up.h"
#include "worker_runtime/engine/rank_state.h"
#include "worker_runtime/engine/reduction.h"
#include "worker_runtime/plan/program.h"

namespace muster::engine {

// AdoptOrder writes the set-up, Recompile the program, the reduction and the hash. All else is
// constant once the engine is there.
//
// Threads: thread-compatible.
struct Rig {
  // `the_groups`: those of the program, all but the world.
  Rig(Communicator& the_world, ParameterStore& the_store, Plan the_plan, EngineSetUp the_set_up,
      plan::Program the_program, std::vector<std::unique_ptr<Communicator>> the_groups);

  bool is_pipeline() const { return set_up.mesh.places() > 1; }
  int place() const { return set_up.mesh.PlaceOf(world.rank()); }
  int replica() const { return set_up.mesh.IndexOf(world.rank(), plan::kReplicas); }
  bool host_reads() const { return queue.device().host_reads(); }
  // All of them, by their number in the program.
  std::vector<Communicator*> Groups() const;
  // That of the ranks along these dimensions, which the program has.
  Communicator& GroupAlong(plan::Dimensions along) const {
    return *Groups()[program.GroupAlong(along)];
  }
  // Ends all of them with this reason.
  void Abort(absl::string_view reason);
  // Returns `own`. An error ends all groups: other ranks may know nothing of it, and are, or will
  // be, in a call of one of them. What all ranks find out alike needs no guard.
  absl::Status Guard(absl::Status own);
  template <typename T>
  absl::StatusOr<T> Guard(absl::StatusOr<T> own) {
    Guard(own.status()).IgnoreError();
    return own;
  }
  // Makes program and reduction anew from the set-up; what refers to actions of the old program
  // must do so, too.
  void Recompile();

  Communicator& world;    // outlives the engine: the caller's
  ParameterStore& store;  // outlives the engine: the caller's
  const Plan plan;
  EngineSetUp set_up;
  plan::Program program;
  const std::vector<std::unique_ptr<Communicator>> own_groups;
  TensorPool pool;  // of the store's device
  Queue queue{pool.device(), &pool};
  RankState held;
  std::optional<Reduction> reduction;
  std::string plan_hash;
};

// Agrees with the other ranks on everything that a program is made from, proves the programs, and
// gives the parameters of `store` memory and initial values. `has_sample`: what `record` returns
// was seen, not assumed.
//
// Errors: Engine::Create's.
absl::StatusOr<std::unique_ptr<Rig>> MakeRig(Communicator& world, ParameterStore& store, Plan plan,
                                             const PipelineCut& cut, StageTracer record,
                                             bool has_sample);

// Adopts the order of gradients that was `observed` in the first step, which ran in the assumed
// one, if all ranks saw the same; DDP rebuilds its buckets so. Returns whether it is another, so
// that Recompile must follow; shards and memory stay where they are. All ranks call it together.
//
// Errors: the communicator's; those of ProvePrograms.
absl::StatusOr<bool> AdoptOrder(Rig& rig, const std::vector<int>& observed);

}  // namespace muster::engine
