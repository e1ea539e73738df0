// Tensors as collectives and files take them.
#pragma once

#include "muster/buffer.h"
#include "muster/tensor.h"

namespace muster::engine {

// A buffer of all elements; the tensor's memory must outlive its use.
inline Buffer BufferOfTensor(const Tensor& tensor) {
  return {tensor.raw_data(), tensor.num_elements(), tensor.dtype()};
}

}  // namespace muster::engine
