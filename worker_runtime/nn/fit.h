// Sentences for what does not fit, the same for every layer.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "muster/tensor.h"

namespace muster {

// Whether the last dimension of `shape` is `width`.
inline bool HasWidth(const Shape& shape, int64_t width) {
  return shape.rank() > 0 && shape[shape.rank() - 1] == width;
}

// "h.0.mlp.c_fc: the input is [2, 16, 31], and its last size must be 32"
inline std::string WidthDiffers(absl::string_view layer, const Shape& input, int64_t width) {
  return absl::StrCat(layer, ": the input is ", input.ToString(), ", and its last size must be ",
                      width);
}

// "h.0.attn.c_proj: [2, 16, 32] and [2, 16, 31] cannot be added"
inline std::string SumDiffers(absl::string_view what, const Shape& a, const Shape& b) {
  return absl::StrCat(what, ": ", a.ToString(), " and ", b.ToString(), " cannot be added");
}

}  // namespace muster
