// Calls a generic lambda with the C++ type of a floating tensor.
#pragma once

#include <utility>

#include "muster/dtype.h"
#include "proto/base/status_macros.h"

namespace muster {

// function(T{}) with T float or double; other types end the process.
template <typename Function>
void WithFloat(DType dtype, Function function) {
  if (dtype == DType::kF32) return function(float{});
  MUSTER_CHECK(dtype == DType::kF64);
  function(double{});
}

}  // namespace muster
