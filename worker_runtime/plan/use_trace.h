// What one micro-batch does to the parameters and to memory.
//
// Recorded on the meta device from declared shapes (engine/meta_run.h), or assumed from the order
// of declaration. Reductions start in the order in which gradients come.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <vector>

namespace muster::plan {

// A backward pass comes to a parameter.
struct BackwardUse {
  int parameter = 0;
  int finished = 0;  // how many of UseTrace::gradients are whole by then
  friend bool operator==(const BackwardUse&, const BackwardUse&) = default;
};

// What tensor ranks add up in a pass, each having made a part of it.
struct TensorSum {
  // How many of UseTrace::forward or backward, of backward_uses and of gradients there are by then.
  int uses = 0;
  int parameters = 0;
  int finished = 0;
  int64_t bytes = 0;
  friend bool operator==(const TensorSum&, const TensorSum&) = default;
};

struct UseTrace {
  // Units, as the passes come to them; a unit may come again (tied embeddings), though not twice in
  // a row. Empty: not known.
  std::vector<int> forward;
  std::vector<int> backward;   // all of it, or the half that makes gradients of inputs
  std::vector<int> weights;    // the half that makes those of weights, where there are halves
  std::vector<int> gradients;  // parameters, each once, as a backward pass finishes them
  // Parameters that learn, in the order of the pass, not twice in a row. Empty: not known.
  std::vector<BackwardUse> backward_uses;
  // Sums in the order of the passes; the half that makes gradients of weights has none.
  std::vector<TensorSum> forward_sums;
  std::vector<TensorSum> backward_sums;
  // Memory on the tape and beside it: what stays from the forward pass until the backward pass
  // begins, and the most that is held at any moment of both. 0: not known.
  int64_t kept_bytes = 0;
  int64_t peak_bytes = 0;
  // What stays of it between the two halves of a backward pass, for the gradients of weights. 0:
  // not known, or it is not two.
  int64_t weights_bytes = 0;
  // Targets of the loss, where the pass ends in one. 0: not known.
  int64_t num_tokens = 0;
  friend bool operator==(const UseTrace&, const UseTrace&) = default;
};

// Backwards from the last parameter to the first.
UseTrace AssumedTrace(int num_parameters);

// The place of each parameter's gradient in the order of readiness; those that no operation uses
// come last, as they count as ready only with the end of the pass.
//
// Shapes: [num_parameters]
std::vector<int> ReadinessOf(const UseTrace& trace, int num_parameters);

}  // namespace muster::plan
