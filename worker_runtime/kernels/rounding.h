// Values of bf16 that follow masters of f32: 16 bits are drawn and added below those that bf16
// keeps, and the rest is cut off. So a step that is too small to show moves the value now and then,
// and the mean is right.
//
// The draws of an element come from (key, number of the update, index of the element in the whole
// model) alone: no bits depend on how elements are spread over ranks, and the values of a
// checkpoint's masters can be found again. Before the first update values are their masters rounded
// to nearest.
//
// Source: Gupta et al., "Deep Learning with Limited Numerical Precision", ICML 2015, section 3
#pragma once

#include <cstdint>

namespace muster::kernels {

struct RoundingDraws {
  uint32_t key_low = 0;
  uint32_t key_high = 0;
  int64_t first_element = 0;  // of the arrays; a multiple of kElementsPerDraw
};

// One block of Philox has the bits of so many neighbours: element i has half i % 2 of word i / 2.
inline constexpr int kElementsPerDraw = 8;

}  // namespace muster::kernels
