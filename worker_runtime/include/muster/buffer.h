// Elements in memory together with their type, as collectives and files take them.
//
// Threads: pure.
#pragma once

#include <cstdint>
#include <type_traits>

#include "muster/dtype.h"

namespace muster {

// Elements in memory, with their type, so that a byte count cannot be wrong. Not owned.
struct Buffer {
  void* data = nullptr;
  int64_t count = 0;
  DType dtype = DType::kU8;
};
struct ConstBuffer {
  ConstBuffer() = default;
  ConstBuffer(const void* elements, int64_t element_count, DType type)
      : data(elements), count(element_count), dtype(type) {}
  ConstBuffer(const Buffer& buffer)  // NOLINT: a buffer may be read
      : data(buffer.data), count(buffer.count), dtype(buffer.dtype) {}

  const void* data = nullptr;
  int64_t count = 0;
  DType dtype = DType::kU8;
};

// `elements` is a contiguous container (std::vector, absl::Span), which must outlive the operation.
template <typename Container>
Buffer BufferOf(Container& elements) {
  using T = std::remove_reference_t<decltype(*elements.data())>;
  return {elements.data(), static_cast<int64_t>(elements.size()), DTypeOf<T>()};
}
template <typename Container>
ConstBuffer ConstBufferOf(const Container& elements) {
  using T = std::remove_cv_t<std::remove_reference_t<decltype(*elements.data())>>;
  return {elements.data(), static_cast<int64_t>(elements.size()), DTypeOf<T>()};
}

}  // namespace muster
