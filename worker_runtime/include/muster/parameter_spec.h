// What a layer declares of a parameter (muster/parameter.h).
//
// Threads: pure.
#pragma once

#include <optional>
#include <string>

#include "muster/dtype.h"
#include "muster/tensor.h"
#include "muster/tensor_ranks.h"

namespace muster {

struct Initializer {
  enum class Kind { kConstant, kNormal };
  Kind kind = Kind::kConstant;
  double value = 0;  // the constant, or the standard deviation around 0

  static Initializer Constant(double value) { return {Kind::kConstant, value}; }
  static Initializer Normal(double std) { return {Kind::kNormal, std}; }
};

struct ParameterSpec {
  std::string name;  // unique in its store, "h.0.attn.c_attn.weight"
  Shape shape;       // of the whole, also where tensor ranks hold parts of it
  Initializer initializer;
  bool weight_decay = false;  // matrices and tables yes; biases and norms no
  // Nothing: its store's. Layers compute in the store's, but for LowRank (muster/low_rank.h).
  std::optional<DType> dtype = {};
  // How the store's tensor ranks cut it. Nothing: each of them holds all of it.
  std::optional<ParameterCut> cut = {};
};

}  // namespace muster
