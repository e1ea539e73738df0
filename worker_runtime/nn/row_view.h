// How layers that work row by row see a tensor of any rank.
#pragma once

#include <cstdint>

#include "muster/tensor.h"
#include "worker_runtime/kernels/row_shape.h"

namespace muster {

// All dimensions but the last are rows.
inline kernels::RowShape RowsOf(const Shape& shape) {
  const int64_t width = shape[shape.rank() - 1];
  return {.rows = width == 0 ? 0 : shape.num_elements() / width, .width = width};
}

// `shape` with another size in the last dimension.
inline Shape WithLast(const Shape& shape, int64_t last) {
  switch (shape.rank()) {
    case 1:
      return {last};
    case 2:
      return {shape[0], last};
    case 3:
      return {shape[0], shape[1], last};
    default:
      return {shape[0], shape[1], shape[2], last};
  }
}

}  // namespace muster
