// Embedding: a block per row forward, and per bucket of tokens backward.
#include <type_traits>

#include "worker_runtime/kernels/cuda_kernels.h"
#include "worker_runtime/kernels/device_numbers.h"

namespace muster::kernels::cuda {
namespace {

// A block has a row, its threads go along it.
template <typename T, int kCount>
__global__ void ForwardKernel(EmbeddingShape shape, const int32_t* tokens, const T* token_table,
                              const T* position_table, T* y) {
  const int64_t row = blockIdx.x;
  const T* word = token_table + tokens[row] * shape.width;
  const T* position = nullptr;
  if (position_table != nullptr) {
    position = position_table + (shape.first_position + row % shape.sequence) * shape.width;
  }
  for (int64_t i = threadIdx.x * kCount; i < shape.width; i += kThreads * kCount) {
    float a[kCount];
    Load(word + i, a);
    if (position != nullptr) {
      float b[kCount];
      Load(position + i, b);
      for (int k = 0; k < kCount; ++k) a[k] += b[k];
    }
    Store(a, y + row * shape.width + i);
  }
}

// The rows of one chunk that are a block's, in order.
struct Matches {
  int rows[kThreads];
  int per_warp[kWarps];
};

// Fills `to` with the numbers of the threads that say `mine` and returns how many there are. Two
// barriers: who is still at the rows of the chunk before holds up the first.
__device__ int FindMatches(bool mine, Matches& to) {
  const unsigned votes = simt::Ballot(mine);
  if (simt::Lane() == 0) to.per_warp[simt::Warp()] = simt::CountBits(votes);
  __syncthreads();
  int before = 0;
  int all = 0;
  for (int warp = 0; warp < kWarps; ++warp) {
    if (warp == simt::Warp()) before = all;
    all += to.per_warp[warp];
  }
  const unsigned lower = (1u << simt::Lane()) - 1;
  if (mine) to.rows[before + simt::CountBits(votes & lower)] = static_cast<int>(threadIdx.x);
  __syncthreads();
  return all;
}

// Rows of a bucket that are listed at once: more than it has, unless a few tokens are nearly all.
constexpr int kListed = 2048;

// The rows from some row on that are a bucket's, in order.
struct BucketRows {
  Matches matches;
  int rows[kListed];
  uint16_t done[kListed];  // 1: has been added up
};

// Lists as many as fit, from `first` on, and returns the first row that is not looked at. Barriers.
__device__ int64_t ListRows(int64_t first, int64_t rows, const int32_t* tokens, BucketRows& list,
                            int& count) {
  count = 0;
  for (; first < rows && count + kThreads <= kListed; first += kThreads) {
    const int64_t own = first + threadIdx.x;
    const bool mine = own < rows && static_cast<unsigned>(tokens[own]) % gridDim.x == blockIdx.x;
    const int found = FindMatches(mine, list.matches);
    for (int i = static_cast<int>(threadIdx.x); i < found; i += kThreads) {
      list.rows[count + i] = static_cast<int>(first) + list.matches.rows[i];
      list.done[count + i] = 0;
    }
    count += found;
  }
  __syncthreads();
  return first < rows ? first : rows;
}

// Whether a row before `last` has that token. Barriers.
__device__ bool CameBefore(int32_t token, int64_t last, const int32_t* tokens) {
  for (int64_t first = 0; first < last; first += kThreads) {
    const int64_t earlier = first + threadIdx.x;
    if (simt::AnyInBlock(earlier < last && tokens[earlier] == token)) return true;
  }
  return false;
}

// Block (bucket, piece of the columns), for gradients that are rounded when they are written, so
// that a number is one sum: the rows of a bucket are listed, and one token after another adds up
// what is listed of it. Where more rows are a bucket's than are listed at once, what follows is
// looked through for each token.
template <typename T, typename G, int kCount>
__global__ void TokenGradientKernel(RowShape shape, const int32_t* tokens, const T* dy, G* dtoken) {
  auto& list = *static_cast<BucketRows*>(simt::SharedMemory());
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kCount;
  const bool has_column = column < shape.width;
  for (int64_t begin = 0; begin < shape.rows;) {
    int count = 0;
    const int64_t end = ListRows(begin, shape.rows, tokens, list, count);
    for (int next = 0; next < count; ++next) {
      // All threads see the same: those ahead of others mark what is behind `next` alone.
      if (list.done[next] != 0) continue;
      const int32_t token = tokens[list.rows[next]];
      if (CameBefore(token, begin, tokens)) continue;
      float sum[kCount] = {};
      if (has_column) Load(dtoken + token * shape.width + column, sum);
      const auto add = [&](int64_t row) {
        float d[kCount];
        Load(dy + row * shape.width + column, d);
        for (int k = 0; k < kCount; ++k) sum[k] += d[k];
      };
      for (int first = next; first < count; first += kThreads) {
        const int own = first + static_cast<int>(threadIdx.x);
        const bool mine = own < count && tokens[list.rows[own]] == token;
        if (mine && own > next) list.done[own] = 1;
        const int found = FindMatches(mine, list.matches);
        for (int i = 0; i < found && has_column; ++i) {
          add(list.rows[first + list.matches.rows[i]]);
        }
      }
      for (int64_t first = end; first < shape.rows; first += kThreads) {
        const int64_t own = first + threadIdx.x;
        const int found = FindMatches(own < shape.rows && tokens[own] == token, list.matches);
        for (int i = 0; i < found && has_column; ++i) add(first + list.matches.rows[i]);
      }
      if (has_column) Store(sum, dtoken + token * shape.width + column);
    }
    __syncthreads();  // the list has been read
    begin = end;
  }
}

// Rows whose loads are under way at once.
constexpr int kRowsAhead = 4;

// Block (bucket, piece of the columns), for gradients in float, whose sums may lie in memory
// between two rows: each row is looked at once per bucket, and belongs to that of its token. A sum
// stays in registers while rows of its token follow each other, as those of the most frequent ones
// do.
template <typename T, int kCount>
__global__ void BucketGradientKernel(RowShape shape, const int32_t* tokens, const T* dy,
                                     float* dtoken) {
  auto& matches = *static_cast<Matches*>(simt::SharedMemory());
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kCount;
  const bool has_column = column < shape.width;
  float sum[kCount] = {};
  int64_t of_sum = -1;  // the token
  for (int64_t first = 0; first < shape.rows; first += kThreads) {
    const int64_t own = first + threadIdx.x;
    const bool mine =
        own < shape.rows && static_cast<unsigned>(tokens[own]) % gridDim.x == blockIdx.x;
    const int count = FindMatches(mine, matches);
    for (int i = 0; i < count && has_column; i += kRowsAhead) {
      float d[kRowsAhead][kCount];
      int64_t token[kRowsAhead];
      for (int k = 0; k < kRowsAhead; ++k) {
        const int64_t row = first + matches.rows[i + k < count ? i + k : i];
        token[k] = tokens[row];
        Load(dy + row * shape.width + column, d[k]);
      }
      for (int k = 0; k < kRowsAhead && i + k < count; ++k) {
        if (token[k] != of_sum) {
          if (of_sum >= 0) Store(sum, dtoken + of_sum * shape.width + column);
          of_sum = token[k];
          Load(dtoken + of_sum * shape.width + column, sum);
        }
        for (int j = 0; j < kCount; ++j) sum[j] += d[k][j];
      }
    }
  }
  if (of_sum >= 0) Store(sum, dtoken + of_sum * shape.width + column);
}

// The number of buckets that fills a GPU, where there are rows for them.
int64_t BucketsFor(int64_t rows) {
  constexpr int64_t kRowsOfBucket = 32, kBucketsMax = 1024;
  const int64_t wanted = BlocksFor(rows, kRowsOfBucket);
  return wanted < kBucketsMax ? wanted : kBucketsMax;
}

// Either way a number is one sum in the order of the rows.
template <typename T, typename G, int kCount>
LaunchError TokenGradient(StreamHandle stream, RowShape shape, const int32_t* tokens, const T* dy,
                          G* dtoken) {
  LaunchShape launch = {.blocks = BucketsFor(shape.rows),
                        .blocks_y = BlocksFor(shape.width, kThreads * kCount),
                        .threads = kThreads,
                        .shared_bytes = sizeof(Matches)};
  if constexpr (std::is_same_v<G, float>) {
    return simt::Launch(&BucketGradientKernel<T, kCount>, launch, stream, shape, tokens, dy,
                        dtoken);
  } else {
    launch.shared_bytes = sizeof(BucketRows);
    return simt::Launch(&TokenGradientKernel<T, G, kCount>, launch, stream, shape, tokens, dy,
                        dtoken);
  }
}

// A thread has some columns of a position.
template <typename T, typename G, int kCount>
__global__ void PositionGradientKernel(EmbeddingShape shape, const T* dy, G* dposition) {
  const int64_t column = GlobalThread() * kCount;
  if (column >= shape.width) return;
  const int64_t t = blockIdx.y;
  float sum[kCount];
  G* to = dposition + (shape.first_position + t) * shape.width + column;
  Load(to, sum);
  for (int64_t b = 0; b < shape.batch; ++b) {
    float d[kCount];
    Load(dy + (b * shape.sequence + t) * shape.width + column, d);
    for (int k = 0; k < kCount; ++k) sum[k] += d[k];
  }
  Store(sum, to);
}

}  // namespace

template <typename T>
LaunchError EmbeddingForward(StreamHandle stream, EmbeddingShape shape, const int32_t* tokens,
                             const T* token_table, const T* position_table, T* y) {
  return ForWidth<T>(shape.width, [&](auto count) {
    return simt::Launch(&ForwardKernel<T, count()>,
                        {.blocks = shape.batch * shape.sequence, .threads = kThreads}, stream,
                        shape, tokens, token_table, position_table, y);
  });
}

template <typename T, typename G>
LaunchError EmbeddingBackward(StreamHandle stream, EmbeddingShape shape, const int32_t* tokens,
                              const T* dy, EmbeddingGradients<G> to) {
  const RowShape rows = {.rows = shape.batch * shape.sequence, .width = shape.width};
  return ForWidth<T>(shape.width, [&](auto count) -> LaunchError {
    const int64_t pieces = BlocksFor(shape.width, kThreads * count());
    LaunchError error = nullptr;
    if (to.dtoken != nullptr) {
      error = TokenGradient<T, G, count()>(stream, rows, tokens, dy, to.dtoken);
    }
    if (error != nullptr || to.dposition == nullptr) return error;
    return simt::Launch(&PositionGradientKernel<T, G, count()>,
                        {.blocks = pieces, .blocks_y = shape.sequence, .threads = kThreads}, stream,
                        shape, dy, to.dposition);
  });
}

template LaunchError EmbeddingForward(StreamHandle, EmbeddingShape, const int32_t*, const float*,
                                      const float*, float*);
template LaunchError EmbeddingForward(StreamHandle, EmbeddingShape, const int32_t*, const uint16_t*,
                                      const uint16_t*, uint16_t*);
template LaunchError EmbeddingForward(StreamHandle, EmbeddingShape, const int32_t*, const Half*,
                                      const Half*, Half*);
template LaunchError EmbeddingBackward(StreamHandle, EmbeddingShape, const int32_t*, const float*,
                                       EmbeddingGradients<float>);
template LaunchError EmbeddingBackward(StreamHandle, EmbeddingShape, const int32_t*,
                                       const uint16_t*, EmbeddingGradients<uint16_t>);
template LaunchError EmbeddingBackward(StreamHandle, EmbeddingShape, const int32_t*, const Half*,
                                       EmbeddingGradients<Half>);
template LaunchError EmbeddingBackward(StreamHandle, EmbeddingShape, const int32_t*,
                                       const uint16_t*, EmbeddingGradients<float>);
template LaunchError EmbeddingBackward(StreamHandle, EmbeddingShape, const int32_t*, const Half*,
                                       EmbeddingGradients<float>);

}  // namespace muster::kernels::cuda
