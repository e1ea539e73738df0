// The elements of floating tensors of any type, one by one: for what is no kernel.
#pragma once

#include <cstdint>
#include <type_traits>

#include "muster/sixteen_bits.h"
#include "muster/tensor.h"
#include "proto/base/status_macros.h"

namespace muster {

// Calls visit(read, write), where read(i) is element i as a double and write(i, x) rounds x to it.
template <typename Visit>
void WithElements(const Tensor& tensor, Visit visit) {
  const auto as = [&](auto* to) {
    using T = std::remove_pointer_t<decltype(to)>;
    visit([to](int64_t i) { return static_cast<double>(to[i]); },
          [to](int64_t i, double x) { to[i] = static_cast<T>(x); });
  };
  auto* bits = static_cast<uint16_t*>(tensor.raw_data());
  switch (tensor.dtype()) {
    case DType::kF32:
      return as(tensor.data<float>());
    case DType::kF64:
      return as(tensor.data<double>());
    case DType::kBf16:
      return visit([bits](int64_t i) { return static_cast<double>(FromBf16(bits[i])); },
                   [bits](int64_t i, double x) { bits[i] = ToBf16(static_cast<float>(x)); });
    default:
      MUSTER_CHECK(tensor.dtype() == DType::kF16);
      return visit([bits](int64_t i) { return static_cast<double>(FromF16(bits[i])); },
                   [bits](int64_t i, double x) { bits[i] = ToF16(static_cast<float>(x)); });
  }
}

}  // namespace muster
