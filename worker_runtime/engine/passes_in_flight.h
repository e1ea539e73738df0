// Micro-batches between their forward and their backward pass, in each stage of a rank.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "muster/pipeline.h"
#include "muster/recompute.h"
#include "muster/tape.h"
#include "muster/tensor.h"

namespace muster::engine {

struct PassInFlight {
  std::unique_ptr<Tape> tape;
  std::vector<Tensor> came;          // what the stage before handed on, until the forward pass
  std::vector<Activation> received;  // the same, watched
  StageOutput output;
  std::vector<Tensor> gradients;        // of what was passed on, from the stage behind
  Tensor tied_gradient;                 // of a parameter that a later stage uses too, from there
  std::vector<Tensor> input_gradients;  // to the stage before
};

// Memory of the host that a step takes is found again by the next one.
//
// Threads: thread-compatible.
class PassesInFlight {
 public:
  // `pool`, of activations, outlives this. `recompute`: what models ask its tapes for.
  PassesInFlight(TensorPool& pool, Recompute recompute) : pool_(pool), recompute_(recompute) {}

  // Empty where nothing is under way. Stays where it is until Clear.
  PassInFlight& At(int stage, int64_t micro_batch);

  // Gives it a tape, on which what was received is watched.
  Tape& Begin(PassInFlight& pass);
  // Its backward pass is done: what it kept is given up, but for what is still to be sent.
  void End(PassInFlight& pass);

  // A step has failed: nothing is under way.
  void Clear() { in_flight_.clear(); }

 private:
  // Constant after construction.
  TensorPool& pool_;
  const Recompute recompute_;

  std::map<std::pair<int, int64_t>, std::unique_ptr<PassInFlight>> in_flight_;
  std::vector<std::unique_ptr<Tape>> free_tapes_;
};

}  // namespace muster::engine
