// Products of tiles that lie in shared memory, a warp at a time. Only `.cu` files include it.
//
// Numbers of 16 bits go through tensor cores; float, which has none with its precision, by fused
// multiply-add with the same numbers in the same lanes.
#pragma once

#include <type_traits>

#include "worker_runtime/kernels/device_numbers.h"

namespace muster::kernels::cuda {

// Rows of a result that a warp has, and columns of a piece of it.
inline constexpr int kTileRows = 16;
inline constexpr int kTileColumns = 8;

// A tile of [kTileRows, kTileColumns * kPieces], in the lanes that simt::MultiplyTile says: element
// i of a piece is at (RowOf(i), ColumnOf(piece, i)).
template <int kPieces>
struct TileResult {
  float piece[kPieces][4] = {};
};
__device__ inline int RowOf(int i) { return simt::Lane() / 4 + i / 2 * 8; }
__device__ inline int ColumnOf(int piece, int i) {
  return piece * kTileColumns + simt::Lane() % 4 * 2 + i % 2;
}

// A matrix in shared memory. Of 16 bits, `data` and `stride` are even.
template <typename T>
struct SharedMatrix {
  const T* data;
  int stride;
};

template <typename T>
__device__ uint32_t Pair(const T* low) {
  uint32_t word;
  memcpy(&word, low, sizeof(word));
  return word;
}
__device__ inline uint32_t Pair(uint16_t low, uint16_t high) {
  return static_cast<uint32_t>(low) | static_cast<uint32_t>(high) << 16;
}
__device__ inline uint32_t Pair(Half low, Half high) { return Pair(low.bits, high.bits); }

// Rows [k, k + 16) of b, times what the lanes hold of as many columns of a. b[k][n] is at n *
// stride + k if kByColumn, else at k * stride + n.
template <bool kByColumn, typename T, int kPieces>
__device__ void MultiplyAddDepth(const uint32_t (&of_a)[4], SharedMatrix<T> b, int k,
                                 TileResult<kPieces>& c) {
  const int g = simt::Lane() / 4;
  const int t = simt::Lane() % 4 * 2;
  for (int piece = 0; piece < kPieces; ++piece) {
    const int n = piece * kTileColumns + g;
    if constexpr (kByColumn) {
      const T* column = b.data + n * b.stride + k + t;
      const uint32_t of_b[2] = {Pair(column), Pair(column + 8)};
      simt::MultiplyTile<T>(c.piece[piece], of_a, of_b);
    } else {
      const T* row = b.data + (k + t) * b.stride + n;
      const T* later = row + 8 * b.stride;
      const uint32_t of_b[2] = {Pair(row[0], row[b.stride]), Pair(later[0], later[b.stride])};
      simt::MultiplyTile<T>(c.piece[piece], of_a, of_b);
    }
  }
}

template <bool kByColumn, typename T, int kPieces, std::enable_if_t<sizeof(T) == 2, int> = 0>
__device__ void MultiplyAdd(SharedMatrix<T> a, SharedMatrix<T> b, int depth,
                            TileResult<kPieces>& c) {
  const int g = simt::Lane() / 4;
  const int t = simt::Lane() % 4 * 2;
  for (int k = 0; k < depth; k += 16) {
    const T* upper = a.data + g * a.stride + k + t;
    const T* lower = upper + 8 * a.stride;
    MultiplyAddDepth<kByColumn>({Pair(upper), Pair(lower), Pair(upper + 8), Pair(lower + 8)}, b, k,
                                c);
  }
}

// The same of a result, rounded to T: each lane holds what it needs of it, two pieces for 16
// columns.
template <typename T, int kResultPieces, int kPieces>
__device__ void MultiplyAddResult(const TileResult<kResultPieces>& a, SharedMatrix<T> b,
                                  TileResult<kPieces>& c) {
  for (int piece = 0; piece < kResultPieces; piece += 2) {
    const float(&left)[4] = a.piece[piece];
    const float(&right)[4] = a.piece[piece + 1];
    MultiplyAddDepth<false>(
        {simt::PairOfFloats<T>(left[0], left[1]), simt::PairOfFloats<T>(left[2], left[3]),
         simt::PairOfFloats<T>(right[0], right[1]), simt::PairOfFloats<T>(right[2], right[3])},
        b, piece * kTileColumns, c);
  }
}

template <bool kByColumn, int kPieces>
__device__ void MultiplyAdd(SharedMatrix<float> a, SharedMatrix<float> b, int depth,
                            TileResult<kPieces>& c) {
  for (int k = 0; k < depth; ++k) {
    const float upper = a.data[RowOf(0) * a.stride + k];
    const float lower = a.data[RowOf(2) * a.stride + k];
    for (int piece = 0; piece < kPieces; ++piece) {
      for (int i = 0; i < 4; ++i) {
        const int n = ColumnOf(piece, i);
        const float of_b = b.data[kByColumn ? n * b.stride + k : k * b.stride + n];
        c.piece[piece][i] = fmaf(i < 2 ? upper : lower, of_b, c.piece[piece][i]);
      }
    }
  }
}

}  // namespace muster::kernels::cuda
