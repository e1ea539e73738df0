// What the stages of a pipeline hand to each other: activations and their gradients, and of
// parameters that two stages use (tied embeddings) gradients and new values.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "muster/communicator.h"
#include "muster/device.h"
#include "muster/parameter.h"
#include "muster/tensor.h"
#include "muster/work.h"
#include "worker_runtime/engine/engine_set_up.h"
#include "worker_runtime/engine/passes_in_flight.h"
#include "worker_runtime/plan/program.h"
#include "worker_runtime/plan/state_types.h"

namespace muster::engine {

// Threads: thread-compatible.
class StageTransfers {
 public:
  // `types`: of the state. The others outlive this; `queue` and `pool` are of the store's device.
  StageTransfers(Communicator& world, ParameterStore& store, const EngineSetUp& set_up,
                 plan::StateTypes types, PassesInFlight& passes, Queue& queue, TensorPool& pool)
      : world_(world),
        store_(store),
        set_up_(set_up),
        types_(types),
        passes_(passes),
        queue_(queue),
        pool_(pool) {}

  // What a SEND sends, or where a RECV receives; stays until the transfer is finished.
  std::vector<Tensor> MemoryOf(const plan::Transfer& transfer);
  // One piece of work for each.
  std::vector<Work> Start(const plan::Transfer& transfer, absl::Span<const Tensor> memory);
  // A RECV is done: what came goes to the pass, or the parameters, that it is for.
  void Finish(const plan::Transfer& transfer, std::vector<Tensor> memory);

  // "the activation of stage 2 and micro-batch 5, from rank 1": for people.
  std::string NameOf(const plan::Transfer& transfer) const;

  // What a pass has made goes to the stage behind, of a forward pass, or before, where this rank
  // has that stage too.
  void Keep(const plan::StagePass& pass);

  // Where `stage` uses parameters of another stage of this rank, their gradients go to memory of
  // their own from now on; over what is there, or added to it.
  void BindTied(int stage, bool adds);
  // Those gradients go to the stage that has the parameters.
  void KeepTied(int stage, int64_t micro_batch);

  // Adds what a later stage has found for parameters of `pass`, before its own backward pass does:
  // the order of one process that replays the whole model.
  void AddTiedGradient(int stage, PassInFlight& pass);

 private:
  int PeerOf(const plan::Transfer& transfer) const;
  // Those that learn of what another stage uses of `lender`, in one order on both ranks.
  std::vector<Parameter*> TiedTo(int lender) const;
  int LenderTo(int borrower) const;
  // Whether both are on one rank.
  bool IsTiedWithin(int borrower) const;
  // Their gradients or values, side by side.
  Tensor Gather(const std::vector<Parameter*>& parameters, plan::Payload payload);
  int64_t CountOf(const std::vector<Parameter*>& parameters) const;
  std::vector<Tensor> MemoryToReceive(const plan::Transfer& transfer);

  Communicator& world_;
  ParameterStore& store_;
  const EngineSetUp& set_up_;
  const plan::StateTypes types_;
  PassesInFlight& passes_;
  Queue& queue_;
  TensorPool& pool_;

  std::map<const Parameter*, Tensor> tied_gradients_;
};

}  // namespace muster::engine
