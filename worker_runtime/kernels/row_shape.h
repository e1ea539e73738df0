// The shape of a matrix that is worked on row by row.
#pragma once

#include <cstdint>

namespace muster::kernels {

struct RowShape {
  int64_t rows = 0;
  int64_t width = 0;
};

}  // namespace muster::kernels
