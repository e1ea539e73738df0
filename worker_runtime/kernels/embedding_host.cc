// Host twin of looking up rows of a table, and of adding to their gradients.
#include "worker_runtime/kernels/embedding.h"

#include "worker_runtime/kernels/pack.h"

namespace muster::kernels {
namespace {

template <typename T>
void CopyRow(const T* from, T* to, int64_t width) {
  ForEachPack<T>(width, [=](int64_t i, auto load, auto store) { store(load(from + i), to + i); });
}

template <typename T>
void AddRow(const T* a, const T* b, T* out, int64_t width) {
  ForEachPack<T>(
      width, [=](int64_t i, auto load, auto store) { store(load(a + i) + load(b + i), out + i); });
}

template <typename T>
void Forward(EmbeddingShape shape, const int32_t* tokens, const T* token_table,
             const T* position_table, T* y) {
  for (int64_t row = 0; row < shape.batch * shape.sequence; ++row, y += shape.width) {
    const T* const word = token_table + tokens[row] * shape.width;
    const int64_t position = shape.first_position + row % shape.sequence;
    if (position_table == nullptr) {
      CopyRow(word, y, shape.width);
    } else {
      AddRow(word, position_table + position * shape.width, y, shape.width);
    }
  }
}

template <typename T>
void TokenGradient(EmbeddingShape shape, const int32_t* tokens, const T* dy, T* dtoken) {
  for (int64_t row = 0; row < shape.batch * shape.sequence; ++row, dy += shape.width) {
    T* to = dtoken + tokens[row] * shape.width;
    AddRow(to, dy, to, shape.width);
  }
}

template <typename T>
void PositionGradient(EmbeddingShape shape, const T* dy, T* dposition) {
  for (int64_t row = 0; row < shape.batch * shape.sequence; ++row, dy += shape.width) {
    T* to = dposition + (shape.first_position + row % shape.sequence) * shape.width;
    AddRow(to, dy, to, shape.width);
  }
}

}  // namespace

template <Isa isa, typename T>
EmbeddingKernels<T> MakeEmbedding() {
  return {.forward = &Forward<T>,
          .token_gradient = &TokenGradient<T>,
          .position_gradient = &PositionGradient<T>};
}
template EmbeddingKernels<float> MakeEmbedding<kIsa, float>();
template EmbeddingKernels<double> MakeEmbedding<kIsa, double>();

}  // namespace muster::kernels
