// Flash attention: a block has 64 queries (or, for dK and dV, 64 keys) of one head, 16 per warp,
// and goes over the other side in tiles of kRows rows (attention_tiles.h); keys over the queries of
// every head that shares them. Tiles lie in shared memory, their rows filled up to kWidth with
// zeros; what is at or behind the end of the sequence is zeros too.
#include "worker_runtime/kernels/attention.h"

#include "worker_runtime/kernels/attention_tiles.h"
#include "worker_runtime/kernels/cuda_kernels.h"
#include "worker_runtime/kernels/tile_product.h"

namespace muster::kernels::cuda {
namespace {

static_assert(kBlockRows == kWarps * kTileRows);

template <typename T, int kWidth>
constexpr int kStride = SharedStride(sizeof(T), kWidth);
template <typename T, int kWidth, int kRows = kBlockRows>
constexpr int kTileElements = kRows* kStride<T, kWidth>;
// The warp's rows of scores against a tile.
template <int kRows>
using Scores = TileResult<kRows / kTileColumns>;

// What the kernels are given: nothing is left out of it.
AttentionShape Explicit(AttentionShape shape) {
  shape.kv_heads = shape.key_heads();
  shape.score_scale = shape.ScoreScale<float>();
  return shape;
}

// Blocks that a multiprocessor is to hold at least, for which a thread may have so many registers;
// 0: whatever the compiler likes. More of these spill on some GPUs.
template <typename T, int kWidth>
[[maybe_unused]] constexpr int kBlocksOf = sizeof(T) == 2 && kWidth == 64 ? 4 : 0;

// One head of one sequence in the interleaved arrays of the device's memory.
template <typename T>
struct Rows {
  T* data;
  int64_t stride;
};

// Row blockIdx.y of a launch is head `h` of sequence `b`.
struct HeadIndex {
  int64_t b;
  int64_t h;
};
__device__ inline HeadIndex HeadOfBlock(int64_t heads) {
  return {.b = blockIdx.y / heads, .h = blockIdx.y % heads};
}

// The rows of a head in qkv: in a line there are those of Q, then of K, then of V.
template <typename T>
__device__ Rows<T> LineHead(AttentionShape shape, T* qkv, HeadIndex head) {
  const int64_t line = (shape.heads + 2 * shape.kv_heads) * shape.head_width;
  return {.data = qkv + head.b * shape.sequence * line + head.h * shape.head_width, .stride = line};
}
// The rows of a head of K, and of V beside it.
template <typename T>
struct KeysAndValues {
  Rows<T> k;
  Rows<T> v;
};
template <typename T>
__device__ KeysAndValues<T> KeyHead(AttentionShape shape, T* qkv, HeadIndex head) {
  head.h += shape.heads;
  const Rows<T> k = LineHead(shape, qkv, head);
  head.h += shape.kv_heads;
  return {.k = k, .v = LineHead(shape, qkv, head)};
}
// Those that a head of Q sees.
template <typename T>
__device__ KeysAndValues<T> KeysOf(AttentionShape shape, T* qkv, HeadIndex head) {
  return KeyHead(shape, qkv, {.b = head.b, .h = head.h * shape.kv_heads / shape.heads});
}
template <typename T>
__device__ Rows<T> OutputHead(AttentionShape shape, T* out, HeadIndex head) {
  const int64_t width = shape.heads * shape.head_width;
  return {.data = out + head.b * shape.sequence * width + head.h * shape.head_width,
          .stride = width};
}

// Starts to copy rows [first, first + kRows) to a tile. Arrives with FinishCopies and a barrier.
template <typename T, int kWidth, int kRows = kBlockRows>
__device__ void LoadTile(AttentionShape shape, Rows<const T> from, int64_t first, T* tile) {
  constexpr int kGroups = kWidth / kVector<T>;
  const bool in_vectors = shape.head_width % kVector<T> == 0;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kGroups; i += kThreads) {
    const int64_t row = first + i / kGroups;
    const int64_t column = i % kGroups * kVector<T>;
    T* to = tile + i / kGroups * kStride<T, kWidth> + column;
    const T* at = from.data + row * from.stride + column;
    if (in_vectors) {
      const bool valid = row < shape.sequence && column < shape.head_width;
      simt::StartCopy(to, valid ? at : from.data, valid);
      continue;
    }
    for (int k = 0; k < kVector<T>; ++k) {
      to[k] = row < shape.sequence && column + k < shape.head_width ? at[k] : T{0};
    }
  }
}

// The warp's rows of a tile.
template <typename T, int kWidth>
__device__ SharedMatrix<T> WarpRows(const T* tile) {
  return {.data = tile + simt::Warp() * kTileRows * kStride<T, kWidth>,
          .stride = kStride<T, kWidth>};
}
template <typename T, int kWidth>
__device__ SharedMatrix<T> AllRows(const T* tile) {
  return {.data = tile, .stride = kStride<T, kWidth>};
}

// Writes the warp's rows of [kBlockRows, kRows] scores to shared memory, for a product that reads
// them.
template <int kRows, typename T>
__device__ void ShareScores(const Scores<kRows>& scores, T* tile) {
  simt::SyncWarp();  // the product before has read them
  T* rows = tile + simt::Warp() * kTileRows * kStride<T, kRows>;
  for (int piece = 0; piece < kRows / kTileColumns; ++piece) {
    for (int i = 0; i < 4; i += 2) {
      const float pair[2] = {scores.piece[piece][i], scores.piece[piece][i + 1]};
      Store(pair, rows + RowOf(i) * kStride<T, kRows> + ColumnOf(piece, i));
    }
  }
  simt::SyncWarp();
}

// Scores in shared memory: numbers of 16 bits stay in their lanes.
template <typename T, int kRows>
constexpr int kScoreElements = sizeof(T) == 2 ? 0 : kTileElements<T, kRows>;

// result += the warp's rows of scores, rounded to T, times a tile. `p`: kScoreElements<T, kRows> of
// shared memory.
template <typename T, int kWidth, int kRows, int kPieces>
__device__ void MultiplyScores(const Scores<kRows>& scores, const T* tile, T* p,
                               TileResult<kPieces>& result) {
  if constexpr (sizeof(T) == 2) {
    MultiplyAddResult(scores, AllRows<T, kWidth>(tile), result);
  } else {
    ShareScores<kRows>(scores, p);
    MultiplyAdd<false>(WarpRows<T, kRows>(p), AllRows<T, kWidth>(tile), kRows, result);
  }
}

// Writes factor[half] * result to rows from `first` on, where the sequence and the head have them.
template <typename T, int kPieces>
__device__ void StoreRows(AttentionShape shape, const TileResult<kPieces>& result,
                          const float (&factor)[2], int64_t first, Rows<T> to) {
  for (int i = 0; i < 4; ++i) {
    const int64_t row = first + RowOf(i);
    if (row >= shape.sequence) continue;
    for (int piece = 0; piece < kPieces; ++piece) {
      const int column = ColumnOf(piece, i);
      if (column >= shape.head_width) continue;
      to.data[row * to.stride + column] = FromFloat<T>(factor[i / 2] * result.piece[piece][i]);
    }
  }
}

__device__ inline float ScoreScale(AttentionShape shape) {
  return static_cast<float>(shape.score_scale);
}

// Over the four lanes that share a row of a result.
__device__ inline float RowMaximum(float x) {
  for (int mask = 1; mask < 4; mask *= 2) {
    const float other = simt::ShuffleXor(x, mask);
    x = x > other ? x : other;
  }
  return x;
}
__device__ inline float RowSum(float x) {
  for (int mask = 1; mask < 4; mask *= 2) x += simt::ShuffleXor(x, mask);
  return x;
}

// The softmax of a lane's two rows, as far as it has come.
struct RunningSoftmax {
  float max[2] = {kLowest, kLowest};
  float sum[2] = {0, 0};  // this lane's part
};

// Scores become exp(score - max), and what was added up before is rescaled. `query`, `key`: the
// first of the warp's rows and of the tile. Key 0 is in the first tile and visible to all.
template <int kScorePieces, int kPieces>
__device__ void AddToSoftmax(float score_scale, int64_t query, int64_t key,
                             TileResult<kScorePieces>& scores, RunningSoftmax& softmax,
                             TileResult<kPieces>& out) {
  for (int half = 0; half < 2; ++half) {
    const int64_t last_key = query + RowOf(2 * half);
    float max = softmax.max[half];
    for (int piece = 0; piece < kScorePieces; ++piece) {
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        float& score = scores.piece[piece][i];
        score = key + ColumnOf(piece, i) <= last_key ? score * score_scale : kLowest;
        max = score > max ? score : max;
      }
    }
    max = RowMaximum(max);
    const float rescale = expf(softmax.max[half] - max);
    softmax.max[half] = max;
    softmax.sum[half] *= rescale;
    for (int piece = 0; piece < kScorePieces; ++piece) {
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        float& score = scores.piece[piece][i];
        score = expf(score - max);  // 0 for what is hidden
        softmax.sum[half] += score;
      }
    }
    for (int piece = 0; piece < kPieces; ++piece) {
      for (int i = 2 * half; i < 2 * half + 2; ++i) out.piece[piece][i] *= rescale;
    }
  }
}

// The first query of the block. The last queries see the most keys, so they begin first.
__device__ inline int64_t FirstQuery(AttentionShape shape) {
  return shape.first_query + static_cast<int64_t>(gridDim.x - 1 - blockIdx.x) * kBlockRows;
}

template <typename T, int kWidth, int kRows>
__global__ void __launch_bounds__(kThreads, kBlocksOf<T, kWidth>)
    ForwardKernel(AttentionShape shape, const T* qkv, T* out, AttentionSaved saved) {
  T* q = static_cast<T*>(simt::SharedMemory());
  T* k = q + kTileElements<T, kWidth>;
  T* v = k + kTileElements<T, kWidth, kRows>;
  T* p = v + kTileElements<T, kWidth, kRows>;
  const int64_t first = FirstQuery(shape);
  const int64_t warp_first = first + simt::Warp() * kTileRows;
  const HeadIndex head = HeadOfBlock(shape.heads);
  const KeysAndValues<const T> keys = KeysOf(shape, qkv, head);
  LoadTile<T, kWidth>(shape, LineHead(shape, qkv, head), first, q);
  RunningSoftmax softmax;
  TileResult<kWidth / kTileColumns> result;
  for (int64_t key = 0; key < first + kBlockRows && key < shape.sequence; key += kRows) {
    __syncthreads();  // the tiles before have been read
    LoadTile<T, kWidth, kRows>(shape, keys.k, key, k);
    LoadTile<T, kWidth, kRows>(shape, keys.v, key, v);
    simt::FinishCopies();
    __syncthreads();
    Scores<kRows> scores;
    MultiplyAdd<true>(WarpRows<T, kWidth>(q), AllRows<T, kWidth>(k), kWidth, scores);
    AddToSoftmax(ScoreScale(shape), warp_first, key, scores, softmax, result);
    MultiplyScores<T, kWidth, kRows>(scores, v, p, result);
  }
  float scale[2];
  for (int half = 0; half < 2; ++half) {
    scale[half] = 1.0f / RowSum(softmax.sum[half]);
    const int64_t row = warp_first + RowOf(2 * half);
    if (simt::Lane() % 4 != 0 || row >= shape.sequence) continue;
    saved.row_max[blockIdx.y * shape.sequence + row] = softmax.max[half];
    saved.row_scale[blockIdx.y * shape.sequence + row] = scale[half];
  }
  StoreRows(shape, result, scale, warp_first, OutputHead(shape, out, head));
}

// corrections[row] = dO * O, summed over the head's width: a warp per row.
template <typename T>
__global__ void CorrectionKernel(AttentionShape shape, AttentionUpstream<T> upstream,
                                 float* corrections) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + simt::Warp();
  if (row >= shape.sequence) return;
  const HeadIndex head = HeadOfBlock(shape.heads);
  const Rows<const T> out = OutputHead(shape, upstream.out, head);
  const Rows<const T> dout = OutputHead(shape, upstream.dout, head);
  float sum = 0;
  for (int64_t i = simt::Lane(); i < shape.head_width; i += simt::kWarpSize) {
    sum = fmaf(ToFloat(out.data[row * out.stride + i]), ToFloat(dout.data[row * dout.stride + i]),
               sum);
  }
  sum = WarpSum(sum);
  if (simt::Lane() == 0) corrections[blockIdx.y * shape.sequence + row] = sum;
}

// Loads a tile's query statistics to shared memory. Queries behind the sequence weigh nothing.
template <int kRows>
__device__ void LoadStatistics(AttentionShape shape, AttentionSaved saved, const float* corrections,
                               HeadIndex head, int64_t first, QueryStatistics* to) {
  const int64_t begin = (head.b * shape.heads + head.h) * shape.sequence + first;
  for (int i = static_cast<int>(threadIdx.x); i < kRows; i += kThreads) {
    const int64_t at = begin + i;
    to[i] = first + i < shape.sequence
                ? QueryStatistics{saved.row_max[at], saved.row_scale[at], corrections[at]}
                : QueryStatistics{0, 0, 0};
  }
}

struct Probability {
  float p;
  float ds;  // with respect to the scaled score
};
__device__ inline Probability ProbabilityOf(float score, float dp, QueryStatistics query,
                                            bool visible) {
  if (!visible) return {0, 0};
  const float p = query.scale * expf(score - query.max);
  return {p, p * (dp - query.correction)};
}

// A tile of P and dS as the keys of a block see it, in place of scores and dP: [keys, queries].
template <int kRows>
__device__ void ToProbabilities(float score_scale, const QueryStatistics* statistics,
                                int64_t first_key, int64_t first_query, Scores<kRows>& scores,
                                Scores<kRows>& dp) {
  for (int piece = 0; piece < kRows / kTileColumns; ++piece) {
    for (int i = 0; i < 4; ++i) {
      const int column = ColumnOf(piece, i);
      const Probability got =
          ProbabilityOf(score_scale * scores.piece[piece][i], dp.piece[piece][i],
                        statistics[column], first_key + RowOf(i) <= first_query + column);
      scores.piece[piece][i] = got.p;
      dp.piece[piece][i] = got.ds;
    }
  }
}

// A block has 64 keys of one head of K, and adds up what the heads of Q that share them say, one
// after the other. Scores are worked transposed, [keys, queries].
template <typename T, int kWidth, int kRows>
__global__ void __launch_bounds__(kThreads)
    KeyGradientKernel(AttentionShape shape, const T* qkv, AttentionSaved saved, const T* dout,
                      const float* corrections, T* dqkv) {
  T* k = static_cast<T*>(simt::SharedMemory());
  T* v = k + kTileElements<T, kWidth>;
  T* q = v + kTileElements<T, kWidth>;
  T* d = q + kTileElements<T, kWidth, kRows>;
  T* p = d + kTileElements<T, kWidth, kRows>;
  auto* statistics = reinterpret_cast<QueryStatistics*>(p + kScoreElements<T, kRows>);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kBlockRows;
  const int64_t warp_first = first + simt::Warp() * kTileRows;
  const float score_scale = ScoreScale(shape);
  const HeadIndex key_head = HeadOfBlock(shape.kv_heads);
  const KeysAndValues<const T> keys = KeyHead(shape, qkv, key_head);
  LoadTile<T, kWidth>(shape, keys.k, first, k);
  LoadTile<T, kWidth>(shape, keys.v, first, v);
  TileResult<kWidth / kTileColumns> dk, dv;
  const int64_t group = shape.heads / shape.kv_heads;
  HeadIndex head = {.b = key_head.b, .h = key_head.h * group};
  for (const int64_t end = head.h + group; head.h < end; ++head.h) {
    for (int64_t query = first; query < shape.sequence; query += kRows) {
      __syncthreads();  // the tiles before have been read
      LoadTile<T, kWidth, kRows>(shape, LineHead(shape, qkv, head), query, q);
      LoadTile<T, kWidth, kRows>(shape, OutputHead(shape, dout, head), query, d);
      LoadStatistics<kRows>(shape, saved, corrections, head, query, statistics);
      simt::FinishCopies();
      __syncthreads();
      Scores<kRows> scores, dp;
      MultiplyAdd<true>(WarpRows<T, kWidth>(k), AllRows<T, kWidth>(q), kWidth, scores);
      MultiplyAdd<true>(WarpRows<T, kWidth>(v), AllRows<T, kWidth>(d), kWidth, dp);
      ToProbabilities<kRows>(score_scale, statistics, warp_first, query, scores, dp);
      MultiplyScores<T, kWidth, kRows>(scores, d, p, dv);
      MultiplyScores<T, kWidth, kRows>(dp, q, p, dk);
    }
  }
  const KeysAndValues<T> to = KeyHead(shape, dqkv, key_head);
  StoreRows(shape, dk, {score_scale, score_scale}, warp_first, to.k);
  StoreRows(shape, dv, {1, 1}, warp_first, to.v);
}

// A block has 64 queries.
template <typename T, int kWidth, int kRows>
__global__ void __launch_bounds__(kThreads, kBlocksOf<T, kWidth>)
    QueryGradientKernel(AttentionShape shape, const T* qkv, AttentionSaved saved, const T* dout,
                        const float* corrections, T* dqkv) {
  T* q = static_cast<T*>(simt::SharedMemory());
  T* d = q + kTileElements<T, kWidth>;
  T* k = d + kTileElements<T, kWidth>;
  T* v = k + kTileElements<T, kWidth, kRows>;
  T* p = v + kTileElements<T, kWidth, kRows>;
  auto* statistics = reinterpret_cast<QueryStatistics*>(p + kScoreElements<T, kRows>);
  const int64_t first = FirstQuery(shape);
  const int64_t warp_first = first + simt::Warp() * kTileRows;
  const float score_scale = ScoreScale(shape);
  const HeadIndex head = HeadOfBlock(shape.heads);
  const KeysAndValues<const T> keys = KeysOf(shape, qkv, head);
  LoadTile<T, kWidth>(shape, LineHead(shape, qkv, head), first, q);
  LoadTile<T, kWidth>(shape, OutputHead(shape, dout, head), first, d);
  LoadStatistics<kBlockRows>(shape, saved, corrections, head, first, statistics);
  TileResult<kWidth / kTileColumns> dq;
  for (int64_t key = 0; key < first + kBlockRows && key < shape.sequence; key += kRows) {
    __syncthreads();  // the tiles before have been read
    LoadTile<T, kWidth, kRows>(shape, keys.k, key, k);
    LoadTile<T, kWidth, kRows>(shape, keys.v, key, v);
    simt::FinishCopies();
    __syncthreads();
    Scores<kRows> scores, dp;
    MultiplyAdd<true>(WarpRows<T, kWidth>(q), AllRows<T, kWidth>(k), kWidth, scores);
    MultiplyAdd<true>(WarpRows<T, kWidth>(d), AllRows<T, kWidth>(v), kWidth, dp);
    for (int piece = 0; piece < kRows / kTileColumns; ++piece) {
      for (int i = 0; i < 4; ++i) {
        const int row = simt::Warp() * kTileRows + RowOf(i);
        dp.piece[piece][i] = ProbabilityOf(score_scale * scores.piece[piece][i], dp.piece[piece][i],
                                           statistics[row], key + ColumnOf(piece, i) <= first + row)
                                 .ds;
      }
    }
    MultiplyScores<T, kWidth, kRows>(dp, k, p, dq);
  }
  StoreRows(shape, dq, {score_scale, score_scale}, warp_first, LineHead(shape, dqkv, head));
}

template <AttentionPass kPass, typename T>
LaunchShape LaunchOf(AttentionShape shape, int64_t heads, int width, int rows) {
  return {.blocks = BlocksFor(shape.sequence - shape.first_query, kBlockRows),
          .blocks_y = shape.batch * heads,
          .threads = kThreads,
          .shared_bytes = AttentionSharedBytes(kPass, sizeof(T), width, rows)};
}

// Calls `run` with the width that heads are filled up to and the rows of a tile, as constants, of a
// kernel that fits.
template <AttentionPass kPass, typename T, typename Run>
LaunchError ForShape(AttentionShape shape, size_t shared_bytes_max, Run run) {
  const auto of_width = [&](auto width) -> LaunchError {
    constexpr int kWidth = width();
    const int rows = AttentionRows(kPass, sizeof(T), kWidth, shared_bytes_max);
    if (rows == kBlockRows) return run(width, std::integral_constant<int, kBlockRows>());
    if constexpr (HasFewRows(kPass, sizeof(T), kWidth)) {
      if (rows > 0) return run(width, std::integral_constant<int, FewRows(kPass)>());
    }
    return "attention: of heads this wide no kernel fits into the shared memory of this GPU; train "
           "in bf16 or f16, or with heads of at most 64";
  };
  if (shape.head_width <= 64) return of_width(std::integral_constant<int, 64>());
  if (shape.head_width <= kWidestHead) {
    return of_width(std::integral_constant<int, static_cast<int>(kWidestHead)>());
  }
  return "attention: heads of more than 128 are not worked on a CUDA device";
}

}  // namespace

template <typename T>
LaunchError AttentionForward(StreamHandle stream, AttentionShape shape, const T* qkv, T* out,
                             AttentionSaved saved, size_t shared_bytes_max) {
  constexpr AttentionPass kPass = AttentionPass::kForward;
  shape = Explicit(shape);
  return ForShape<kPass, T>(shape, shared_bytes_max, [&](auto width, auto rows) {
    return simt::Launch(&ForwardKernel<T, width(), rows()>,
                        LaunchOf<kPass, T>(shape, shape.heads, width(), rows()), stream, shape, qkv,
                        out, saved);
  });
}

template <typename T>
LaunchError AttentionBackward(StreamHandle stream, AttentionShape shape, const T* qkv,
                              AttentionSaved saved, AttentionUpstream<T> upstream, T* dqkv,
                              float* scratch, size_t shared_bytes_max) {
  constexpr AttentionPass kPass = AttentionPass::kBackward;
  shape = Explicit(shape);
  return ForShape<kPass, T>(shape, shared_bytes_max, [&](auto width, auto rows) {
    LaunchError error = simt::Launch(&CorrectionKernel<T>,
                                     {.blocks = BlocksFor(shape.sequence, kWarps),
                                      .blocks_y = shape.batch * shape.heads,
                                      .threads = kThreads},
                                     stream, shape, upstream, scratch);
    if (error == nullptr) {
      error = simt::Launch(&KeyGradientKernel<T, width(), rows()>,
                           LaunchOf<kPass, T>(shape, shape.kv_heads, width(), rows()), stream,
                           shape, qkv, saved, upstream.dout, scratch, dqkv);
    }
    if (error == nullptr) {
      error = simt::Launch(&QueryGradientKernel<T, width(), rows()>,
                           LaunchOf<kPass, T>(shape, shape.heads, width(), rows()), stream, shape,
                           qkv, saved, upstream.dout, scratch, dqkv);
    }
    return error;
  });
}

template LaunchError AttentionForward(StreamHandle, AttentionShape, const float*, float*,
                                      AttentionSaved, size_t);
template LaunchError AttentionForward(StreamHandle, AttentionShape, const uint16_t*, uint16_t*,
                                      AttentionSaved, size_t);
template LaunchError AttentionForward(StreamHandle, AttentionShape, const Half*, Half*,
                                      AttentionSaved, size_t);
template LaunchError AttentionBackward(StreamHandle, AttentionShape, const float*, AttentionSaved,
                                       AttentionUpstream<float>, float*, float*, size_t);
template LaunchError AttentionBackward(StreamHandle, AttentionShape, const uint16_t*,
                                       AttentionSaved, AttentionUpstream<uint16_t>, uint16_t*,
                                       float*, size_t);
template LaunchError AttentionBackward(StreamHandle, AttentionShape, const Half*, AttentionSaved,
                                       AttentionUpstream<Half>, Half*, float*, size_t);

}  // namespace muster::kernels::cuda
