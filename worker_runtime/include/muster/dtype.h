// Element types of tensors and collectives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "absl/strings/string_view.h"

namespace muster {

enum class DType { kF64, kF32, kBf16, kF16, kI64, kI32, kU8 };

constexpr size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBf16:
    case DType::kF16:
      return 2;
    case DType::kU8:
      return 1;
  }
  return 0;
}

constexpr absl::string_view ToString(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "f64";
    case DType::kF32:
      return "f32";
    case DType::kBf16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kI64:
      return "i64";
    case DType::kI32:
      return "i32";
    case DType::kU8:
      return "u8";
  }
  return "?";
}

// The element type of C++ types that have one; bf16 and f16 are spelled out by the caller.
template <typename T>
constexpr DType DTypeOf() {
  if constexpr (std::is_same_v<T, double>) {
    return DType::kF64;
  } else if constexpr (std::is_same_v<T, float>) {
    return DType::kF32;
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return DType::kI64;
  } else if constexpr (std::is_same_v<T, int32_t>) {
    return DType::kI32;
  } else {
    static_assert(std::is_same_v<T, uint8_t>, "no DType for this type; build a Buffer by hand");
    return DType::kU8;
  }
}

// Types of the states of a plan (muster/plan.h).
struct PlanDTypes {
  // Gradients, and the optimizer's masters and moments. Nothing: f32 where the parameters have 16
  // bits, else the parameters' own, which is the store's.
  std::optional<DType> gradients;
  std::optional<DType> optimizer;
  // Gradients between the ranks that add them up; nothing: the gradients' own. Ranks add 16 bits in
  // f32 and round once. f16 holds no more than 65504, and gradients are sums over the tokens of a
  // step.
  std::optional<DType> reduced;

  friend bool operator==(const PlanDTypes&, const PlanDTypes&) = default;
};

}  // namespace muster
