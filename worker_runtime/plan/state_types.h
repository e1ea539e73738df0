// The type of each state.
//
// Threads: pure.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "muster/dtype.h"
#include "muster/plan.h"
#include "worker_runtime/plan/parameter_info.h"

namespace muster::plan {

// Layers compute with `parameters` and `frozen`. The update is made on `master`, in `moments`, from
// `gradients`; where the master has another type than the parameters, it is a copy of its own, from
// which they are rounded.
struct StateTypes {
  DType parameters = DType::kF32;  // those that learn
  DType frozen = DType::kF32;      // those that do not
  DType master = DType::kF32;
  DType gradients = DType::kF32;
  DType moments = DType::kF32;
  DType reduced = DType::kF32;  // gradients between the ranks that add them up

  DType OfParameters(bool is_frozen) const { return is_frozen ? frozen : parameters; }
  bool has_master() const { return master != parameters; }
  bool rounds_sums() const { return reduced != gradients; }
  friend bool operator==(const StateTypes&, const StateTypes&) = default;
};

// What the plan names, and else f32 over parameters of 16 bits, the parameters' own over others:
// sums and small steps need the digits. All parameters have one type, or those that learn have that
// of the first that does, and so have those that are frozen.
StateTypes TypesOf(const Plan& plan, DType parameters);
StateTypes TypesOf(const Plan& plan, absl::Span<const ParameterInfo> parameters);

// Errors: kInvalidArgument: two that learn, or two that are frozen, differ (names them); f64 is one
// of two types.
absl::Status CheckParameterTypes(absl::Span<const ParameterInfo> parameters);

inline int64_t BytesOf(DType dtype) { return static_cast<int64_t>(SizeOf(dtype)); }

}  // namespace muster::plan
