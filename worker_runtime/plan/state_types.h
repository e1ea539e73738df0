// The type of each state.
//
// Threads: pure.
#pragma once

#include <cstdint>

#include "muster/dtype.h"
#include "muster/plan.h"

namespace muster::plan {

// Layers compute with `parameters`. The update is made on `master`, in `moments`, from `gradients`;
// where the master has another type than the parameters, it is a copy of its own, from which they
// are rounded.
struct StateTypes {
  DType parameters = DType::kF32;
  DType master = DType::kF32;
  DType gradients = DType::kF32;
  DType moments = DType::kF32;
  DType reduced = DType::kF32;  // gradients between the ranks that add them up

  bool has_master() const { return master != parameters; }
  bool rounds_sums() const { return reduced != gradients; }
  friend bool operator==(const StateTypes&, const StateTypes&) = default;
};

// What the plan names, and else f32 over parameters of 16 bits, the parameters' own over others:
// sums and small steps need the digits.
StateTypes TypesOf(const Plan& plan, DType parameters);

inline int64_t BytesOf(DType dtype) { return static_cast<int64_t>(SizeOf(dtype)); }

}  // namespace muster::plan
