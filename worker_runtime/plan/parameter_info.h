// A parameter as a plan sees it: what must be known to place and count it, without its memory.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "muster/dtype.h"

namespace muster::plan {

struct ParameterInfo {
  std::string name;            // unique in its model, "h.0.attn.c_attn.weight"
  std::vector<int64_t> shape;  // row-major; of what a rank holds of it
  int unit = 0;                // gathered, reduced and offloaded together with others of its number
  bool weight_decay = false;
  bool frozen = false;  // has no gradient: it lies apart from those that do
  bool cut = false;     // each tensor rank holds another part of it
  DType dtype = DType::kF32;

  // 1 for an empty shape, as of a scalar.
  int64_t num_elements() const {
    int64_t product = 1;
    for (const int64_t size : shape) product *= size;
    return product;
  }
  // The number of elements that have gradients.
  int64_t num_learned() const { return frozen ? 0 : num_elements(); }
  friend bool operator==(const ParameterInfo&, const ParameterInfo&) = default;
};

}  // namespace muster::plan
